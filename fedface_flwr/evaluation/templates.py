# SPDX-License-Identifier: Apache-2.0
"""Template features and scores as the IJB protocols take them: media mean, template sum, L2, inner product.

Everything is summed in float64. All flag combinations are sums of the same faces with other weights, so one pass over
the faces, a few at a time, gives them all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.wording import numbered

Features = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Few enough that they stay in a core's cache.
_FACES_AT_ONCE = 128
# numpy releases the interpreter's lock; more threads than this wait for memory.
_THREADS = min(os.cpu_count() or 1, 4)
# A block of products: larger is no faster, and memory is bounded.
_ROWS_AT_ONCE = 256
_BLOCK_PRODUCTS = 1 << 23
_PAIRS_AT_ONCE = 2048
# One pair whose features are fetched costs as much as this many products of a matrix product.
_PRODUCTS_PER_PAIR = 50


@dataclass(frozen=True, order=True)
class Flags:
    """How faces are weighted in a template, by insightface's three flags (``eval_ijbc.py``, ``TestMode``).

    Attributes
    ----------
    norm : bool
        N1: a feature keeps its norm, as a score of the picture's quality. N0: it is scaled to norm 1 first.
    detector : bool
        D1: a feature, so scaled or not, is multiplied by its face detector's score.
    flip : bool
        F1: the feature is the sum of those of the picture and of its mirror image, before all else. F0: the
        picture's own.
    """

    norm: bool
    detector: bool
    flip: bool

    @property
    def name(self) -> str:
        """As published, such as ``N1D1F1``."""
        return f"N{self.norm:d}D{self.detector:d}F{self.flip:d}"

    @classmethod
    def parse(cls, name: str) -> Flags:
        """Read such a name; ConfigError if it is none."""
        found = re.fullmatch(r"N([01])D([01])F([01])", name)
        if not found:
            raise ConfigError(f"the flags {name!r} are not of the form N1D1F1, with 0 or 1 behind each letter")
        return cls(*(digit == "1" for digit in found.groups()))


ALL_FLAGS = tuple(Flags(*flags) for flags in product((True, False), repeat=3))
"""The eight combinations, ``N1D1F1``, which the field publishes, first."""


@dataclass(frozen=True)
class Faces:
    """What is known of each face besides its features.

    Attributes
    ----------
    template, media : ndarray of int64, shape (faces,)
        The template that it belongs to, and the photo or video that it comes from.
    detector : ndarray of float64, shape (faces,)
        Score of the face detector.
    """

    template: Ints
    media: Ints
    detector: Floats


def template_features(
    plain: Features, mirrored: Features | None, faces: Faces, flags: Sequence[Flags]
) -> tuple[Ints, dict[Flags, Floats]]:
    """Pool the faces of each template: mean over each of its media, sum over those means, L2 normalisation.

    Whitelam et al. (IARPA Janus Benchmark-B, CVPRW 2017) leave pooling open; this is that of Cao et al. (VGGFace2,
    FG 2018) and of insightface's ``image2template_feature``.

    Parameters
    ----------
    plain, mirrored : ndarray of float32 or float64, shape (faces, dim)
        Features of the faces and of their mirror images; the latter may be None where no flag asks for them. Both may
        be memory maps: about a hundred rows at a time are read.
    faces : Faces
        In the same order.
    flags : sequence of Flags
        The combinations wanted.

    Returns
    -------
    ids : ndarray of int64, shape (templates,)
        The templates, ascending.
    features : dict of Flags to ndarray of float64, shape (templates, dim)
        For each combination the features of norm 1; zero, as by scikit-learn's ``normalize``, where a template's
        faces cancel out or have no weight.

    Raises
    ------
    DataError
        If the numbers of faces differ, or a face's features are not finite, or zero while a norm must be divided out.
    ConfigError
        If a flag asks for mirrored features that are not there.
    """
    _check(plain, mirrored, faces, flags)
    order = np.lexsort((faces.media, faces.template))
    ids, template = np.unique(faces.template[order], return_inverse=True)
    share = 1 / _media_sizes(template, faces.media[order])
    sums = {flag: np.zeros((len(ids), plain.shape[1])) for flag in dict.fromkeys(flags)}
    weigh = _Weigh(plain, mirrored, faces.detector, order, template, share)
    with ThreadPoolExecutor(_THREADS) as threads:
        # Of no template do two threads have faces, so that each adds to rows of its own.
        for done in [threads.submit(weigh.add, sums, part) for part in _parts(template, _THREADS)]:
            done.result()
    for features in sums.values():
        norms = np.linalg.norm(features, axis=1, keepdims=True)
        features /= np.where(norms > 0, norms, 1)
    return ids, sums


def _check(plain: Features, mirrored: Features | None, faces: Faces, flags: Sequence[Flags]) -> None:
    shapes = {"media": faces.media.shape, "detector scores": faces.detector.shape, "features": plain.shape[:1]}
    if mirrored is not None:
        shapes["mirrored features"] = mirrored.shape[:1]
        if mirrored.shape[1:] != plain.shape[1:]:
            raise DataError(f"features of shape {plain.shape} do not match mirrored ones of shape {mirrored.shape}")
    for what, shape in shapes.items():
        if shape != faces.template.shape:
            raise DataError(f"{numbered(len(faces.template), 'face')} with templates, but {shape[0]} with {what}")
    if mirrored is None and any(flag.flip for flag in flags):
        raise ConfigError("F1 needs features of mirrored pictures, which are not there; ask for F0 only")


def _media_sizes(template: Ints, media: Ints) -> Ints:
    """Return, for faces ordered by template and media, the number of faces of each one's media in its template."""
    starts = np.flatnonzero(np.r_[True, (np.diff(template) != 0) | (np.diff(media) != 0)])
    sizes = np.diff(np.append(starts, len(media)))
    return np.repeat(sizes, sizes)


def _parts(template: Ints, count: int) -> list[slice]:
    """Divide faces, ordered by template, into about equal parts at templates' ends."""
    wanted = np.arange(1, count) * len(template) // count
    ends = np.searchsorted(template, template[wanted], side="right").tolist()
    bounds = [0, *ends, len(template)]
    return [slice(start, stop) for start, stop in pairwise(bounds) if stop > start]


@dataclass(frozen=True)
class _Weigh:
    """Adds faces to templates; ``template`` and ``share`` are those of the faces in ``order``."""

    plain: Features
    mirrored: Features | None
    detector: Floats
    order: Ints
    template: Ints
    share: Floats

    def add(self, sums: dict[Flags, Floats], part: slice) -> None:
        """Add this part of the ordered faces, a few at a time."""
        for start in range(part.start, part.stop, _FACES_AT_ONCE):
            some = slice(start, min(start + _FACES_AT_ONCE, part.stop))
            rows = self.order[some]
            vectors = _rows(self.plain, rows).astype(np.float64)
            for flip in (False, True):
                wanted = [flag for flag in sums if flag.flip == flip]
                if not wanted:
                    continue
                if flip and self.mirrored is not None:
                    vectors += _rows(self.mirrored, rows)
                weights = _weights(vectors, wanted, self.detector[rows], rows) * self.share[some]
                _add(sums, wanted, weights, vectors, self.template[some])


def _rows(features: Features, rows: Ints) -> Features:
    """Return rows, without a copy where they follow each other."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return features[rows[0] : rows[-1] + 1]
    return features[rows]


def _weights(vectors: Floats, flags: Sequence[Flags], detector: Floats, rows: Ints) -> Floats:
    """Return each flag combination's weight of each face; shape (flags, faces)."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    usable = np.isfinite(norms)
    if not all(flag.norm for flag in flags):
        usable &= norms > 0
    if not usable.all():
        face = rows[np.argmin(usable)]
        raise DataError(f"the features of face {face} are zero or not finite: check the model that gave them")
    return np.stack(
        [(1 if flag.norm else 1 / norms) * (detector if flag.detector else np.ones(len(rows))) for flag in flags]
    )


def _add(sums: dict[Flags, Floats], flags: Sequence[Flags], weights: Floats, vectors: Floats, template: Ints) -> None:
    """Add faces, ordered by template, to their templates."""
    bounds = [*np.flatnonzero(np.append(True, np.diff(template))).tolist(), len(template)]
    for start, stop in pairwise(bounds):
        # So small a product stays in this thread: BLAS would wait for the others' at each.
        added = weights[:, start:stop] @ vectors[start:stop]
        for flag, addend in zip(flags, added, strict=True):
            sums[flag][template[start]] += addend


@dataclass(frozen=True)
class TemplatePairs:
    """Pairs of templates, arranged once for the scores of many features.

    The products of all templates that occur on the left with all that occur on the right are thought of as a matrix.

    Attributes
    ----------
    rows, columns : ndarray of int64, shape (r,), (c,)
        The templates on the left and on the right, ascending, as rows of the features.
    place : ndarray of int32 or int64, shape (pairs,)
        Where each pair lies in the matrix, row by row, ascending: the order of the scores.
    """

    rows: Ints
    columns: Ints
    place: npt.NDArray[np.integer[Any]]

    @classmethod
    def of(cls, first: Ints, second: Ints) -> TemplatePairs:
        """Arrange pairs of rows of features, which come in any order and may repeat."""
        rows, row = _used(first)
        columns, column = _used(second)
        # Half as long numbers are sorted in half the time.
        short = len(rows) * len(columns) < 1 << 31
        kind: np.dtype[np.integer[Any]] = np.dtype(np.int32 if short else np.int64)
        place: npt.NDArray[np.integer[Any]] = row.astype(kind)[first]
        np.multiply(place, len(columns), out=place)
        np.add(place, column.astype(kind)[second], out=place)
        if not (place[:-1] <= place[1:]).all():
            place.sort()
        return cls(rows, columns, place)

    def __len__(self) -> int:
        return len(self.place)

    def some(self, chosen: npt.NDArray[np.intp]) -> TemplatePairs:
        """Return some of the pairs, chosen by ascending numbers in the scores' order."""
        return TemplatePairs(self.rows, self.columns, self.place[chosen])

    @property
    def first(self) -> Ints:
        """The left template of each pair, in the scores' order."""
        first: Ints = self.rows[self.place // len(self.columns)]
        return first

    @property
    def second(self) -> Ints:
        """The right template of each pair, in the scores' order."""
        second: Ints = self.columns[self.place % len(self.columns)]
        return second


def _used(templates: Ints) -> tuple[Ints, Ints]:
    """Return the templates that occur, ascending, and the place among them of every template up to the last."""
    occurs = np.zeros(int(templates.max(initial=-1)) + 1, dtype=np.bool_)
    occurs[templates] = True
    return np.flatnonzero(occurs), np.cumsum(occurs) - 1


def pair_scores(features: Features, pairs: TemplatePairs) -> Features:
    """Return the inner product of each pair's features, in the pairs' order.

    Of a block of rows with a good part of all its products asked for, as in IJB's lists (about a quarter of those of
    the galleries' with the probes' templates), all are computed as one matrix product and the scores are picked from
    it; of one with few pairs only their products are computed.

    Parameters
    ----------
    features : ndarray of float32 or float64, shape (templates, dim)
        Of norm 1, or zero.
    pairs : TemplatePairs
        Of rows of these.

    Returns
    -------
    ndarray of the features' precision, shape (pairs,)
    """
    scores = np.empty(len(pairs), features.dtype)
    width = len(pairs.columns)
    height = min(max(_BLOCK_PRODUCTS // max(width, 1), 1), _ROWS_AT_ONCE)
    firsts = range(0, len(pairs.rows), height)
    bounds = np.searchsorted(pairs.place, [row * width for row in (*firsts, len(pairs.rows))])
    right, products = features[:0], np.empty((0, width), features.dtype)
    for row, start, stop in zip(firsts, bounds[:-1], bounds[1:], strict=True):
        rows = pairs.rows[row : row + height]
        if (stop - start) * _PRODUCTS_PER_PAIR < len(rows) * width:
            _score_singly(scores[start:stop], features, pairs, pairs.place[start:stop])
            continue
        if not len(right):
            right = _rows(features, pairs.columns)
            products = np.empty((height, width), features.dtype)
        np.matmul(features[rows], right.T, out=products[: len(rows)])
        # Unlike the others, this mode needs no buffer for the result.
        np.take(products.reshape(-1), pairs.place[start:stop] - row * width, out=scores[start:stop], mode="clip")
    return scores


def _score_singly(
    scores: Features, features: Features, pairs: TemplatePairs, place: npt.NDArray[np.integer[Any]]
) -> None:
    for start in range(0, len(place), _PAIRS_AT_ONCE):
        part = slice(start, start + _PAIRS_AT_ONCE)
        row, column = np.divmod(place[part], len(pairs.columns))
        scores[part] = np.einsum("ij,ij->i", features[pairs.rows[row]], features[pairs.columns[column]])
