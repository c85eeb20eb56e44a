# SPDX-License-Identifier: Apache-2.0
"""Searching a gallery: where a probe's mates come in the ranking, and how much strangers look like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.ties import settle

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BLOCK_BYTES = 64 << 20
"""Size of one block of scores; a search holds a few arrays of this size at most."""


@dataclass(frozen=True)
class Search:
    """What each probe found in a gallery.

    Attributes
    ----------
    rank : ndarray of int64, shape (probes,)
        Place of the probe's best mate, counted from 1: one more than the number of gallery entries of other
        identities that score at least as high. 0 where the gallery has no mate: a non-mated search.
    mate : ndarray of float64, shape (probes,)
        Score of the best mate; -inf where there is none.
    other : ndarray of float64, shape (probes,)
        Best score among the gallery's other identities; -inf where it has none.
    precision : ndarray of float64, shape (probes,)
        Average precision of the whole ranking: the mean, over the mates, of the precision at each one's place; nan
        where there is no mate or it was not asked for.
    trapezoid : ndarray of float64, shape (probes,)
        The same with the mean of the precisions at each mate's place and just before it, which is 1 before the first
        place: the area that the public evaluation of TinyFace takes.
    strongest : ndarray of float64, shape (at most as many as asked for,)
        The highest scores of all probes against other identities, pooled, descending.
    """

    rank: Ints
    mate: Floats
    other: Floats
    precision: Floats
    trapezoid: Floats
    strongest: Floats

    @property
    def mated(self) -> npt.NDArray[np.bool_]:
        """True for each probe that has a mate in the gallery."""
        return self.rank > 0


def search(
    probes: npt.NDArray[np.floating],
    probe_ids: npt.NDArray[np.generic],
    gallery: npt.NDArray[np.floating],
    gallery_ids: npt.NDArray[np.generic],
    *,
    average_precision: bool = False,
    strongest: int = 0,
    block_bytes: int = BLOCK_BYTES,
) -> Search:
    """Rank a gallery for each probe by cosine.

    Ties count against the probe, so that a network which maps all faces to one point is never right: what a public
    script's ``argsort`` does with a tie depends on the order of the gallery.

    Scores are computed in the inputs' common precision, in blocks; the same inputs give the same bits on one machine.

    Parameters
    ----------
    probes, gallery : ndarray of float, shape (n, dim)
        Embeddings, of any length but zero; they are L2-normalised here, in their own precision.
    probe_ids, gallery_ids : ndarray of int or str, shape (n,)
        Identities. A gallery entry is a mate of a probe if theirs are equal; distractors have one that no probe has.
    average_precision : bool
        Also compute the average precision, at the cost of one pass over a probe's scores for each of its mates.
    strongest : int
        How many of the highest scores against other identities to keep, over all probes.
    block_bytes : int
        Bound of the memory for scores: a search needs about three times as much besides its normalised inputs.

    Raises
    ------
    DataError
        If shapes do not fit, a set is empty, or an embedding has no direction (zero, infinite or NaN).
    """
    _check_sets(probes, probe_ids, gallery, gallery_ids)
    codes = np.unique(np.concatenate([probe_ids, gallery_ids]), return_inverse=True)[1].reshape(-1)
    probe_codes, gallery_codes = codes[: len(probes)], codes[len(probes) :]
    count = len(probes)
    mate, other, standard, trapezoid = (np.full(count, np.nan) for _ in range(4))
    found = Search(np.zeros(count, np.int64), mate, other, standard, trapezoid, np.empty(0))
    pool: npt.NDArray[np.floating] = np.empty(0, np.result_type(probes, gallery))
    for rows, scores in _score_blocks(unit_rows(probes, "probe"), unit_rows(gallery, "gallery"), block_bytes):
        mates = probe_codes[rows, None] == gallery_codes[None, :]
        if average_precision:
            found.precision[rows], found.trapezoid[rows] = _average_precisions(scores, mates)
        best = np.where(mates, scores, -np.inf).max(axis=1)
        scores[mates] = -np.inf
        found.mate[rows], found.other[rows] = best, scores.max(axis=1)
        found.rank[rows] = np.where(best > -np.inf, 1 + (scores >= best[:, None]).sum(axis=1), 0)
        if strongest:
            pool = highest(np.concatenate([pool, highest(scores[~mates], strongest)]), strongest)
    return replace(found, strongest=np.sort(pool.astype(np.float64))[::-1])


def join_searches(searches: Sequence[Search]) -> Search:
    """Return searches of several galleries, or of several sets of probes, as one; ``strongest`` is then pooled too."""
    names = ("rank", "mate", "other", "precision", "trapezoid", "strongest")
    whole = {name: np.concatenate([getattr(found, name) for found in searches]) for name in names}
    return Search(**whole | {"strongest": np.sort(whole["strongest"])[::-1]})


def unit_rows(rows: npt.NDArray[np.floating], what: str) -> npt.NDArray[np.floating]:
    """Return the rows divided by their L2 norms, in their own precision; DataError if one has no direction."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    usable = np.isfinite(norms) & (norms > 0)
    if not usable.all():
        raise DataError(
            f"{what}: {np.count_nonzero(~usable)} of {len(norms)} embeddings are zero or not finite, "
            f"the first is number {int(np.argmin(usable))}"
        )
    unit: npt.NDArray[np.floating] = rows / norms.astype(rows.dtype)[:, None]
    return unit


def highest(values: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.floating]:
    """Return the ``count`` largest values, or all if there are fewer, in no particular order."""
    return values if len(values) <= count else np.partition(values, len(values) - count)[len(values) - count :]


def _score_blocks(
    probes: npt.NDArray[np.floating], gallery: npt.NDArray[np.floating], block_bytes: int
) -> Iterator[tuple[slice, npt.NDArray[np.floating]]]:
    """Cosines of some probes at a time with the whole gallery; the array is overwritten by the next block."""
    kind = np.result_type(probes, gallery)
    height = min(max(block_bytes // (len(gallery) * kind.itemsize), 1), len(probes))
    scores = np.empty((height, len(gallery)), kind)
    for start in range(0, len(probes), height):
        rows = slice(start, min(start + height, len(probes)))
        part = scores[: rows.stop - rows.start]
        np.matmul(probes[rows], gallery.T, out=part)
        yield rows, settle(part)


def _average_precisions(scores: npt.NDArray[np.floating], mates: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Both average precisions of each row, ties against the mates; nan without mates."""
    standard, trapezoid = np.full(len(scores), np.nan), np.full(len(scores), np.nan)
    for row, (all_scores, own) in enumerate(zip(scores, mates, strict=True)):
        if own.any():
            hits = np.sort(all_scores[own])[::-1]
            strangers = all_scores[~own]
            above = np.array([np.count_nonzero(strangers >= hit) for hit in hits])
            number = np.arange(1, len(hits) + 1)
            places = number + above
            precision = number / places
            before = np.where(places == 1, 1.0, (number - 1) / np.maximum(places - 1, 1))
            standard[row], trapezoid[row] = precision.mean(), ((precision + before) / 2).mean()
    return standard, trapezoid


def _check_sets(
    probes: npt.NDArray[np.floating],
    probe_ids: npt.NDArray[np.generic],
    gallery: npt.NDArray[np.floating],
    gallery_ids: npt.NDArray[np.generic],
) -> None:
    for what, rows, ids in (("probes", probes, probe_ids), ("gallery", gallery, gallery_ids)):
        if rows.ndim != 2 or not len(rows) or ids.shape != (len(rows),):
            raise DataError(f"{what}: embeddings of shape {rows.shape} and identities of shape {ids.shape} do not fit")
    if probes.shape[1] != gallery.shape[1]:
        raise DataError(
            f"probes have {probes.shape[1]} dimensions and the gallery {gallery.shape[1]}: they must be one network's"
        )
