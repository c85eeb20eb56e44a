# SPDX-License-Identifier: Apache-2.0
"""Identification: where a probe's mates come in a ranking of the gallery, and how often strangers raise an alarm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.ties import settle
from fedface_flwr.wording import numbered

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


@dataclass(frozen=True)
class OpenSet:
    """One operating point of open-set identification; every rate is a fraction in [0, 1].

    Attributes
    ----------
    target : float
        False positive identification rate that was asked for.
    threshold : float
        Of the rule that was used, which also says whether a score equal to it counts.
    fpir : float
        False positive identification rate that was met, of the searches that the rule takes it from.
    tpir : float
        True positive identification rate.
    """

    target: float
    threshold: float
    fpir: float
    tpir: float


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


def cmc(found: Search, upto: int) -> Floats:
    """Cumulative match characteristic: the share of mated probes of rank at most 1, 2 .. ``upto``.

    Raises
    ------
    DataError
        If no probe has a mate in the gallery.
    """
    ranks = found.rank[found.mated]
    if not len(ranks):
        raise DataError("no probe has a mate in the gallery: check the identities of both lists")
    return np.cumsum(np.bincount(np.minimum(ranks, upto + 1), minlength=upto + 2)[1 : upto + 1]) / len(ranks)


def rank_rate(found: Search, k: int) -> float:
    """Share of mated probes whose best mate is among the first ``k``; DataError if there are no mated probes."""
    return float(cmc(found, k)[-1])


def mean_average_precision(found: Search, rule: str = "standard") -> float:
    """Mean, over the mated probes, of the average precision that :func:`search` was asked for.

    Parameters
    ----------
    found : Search
        Made with ``average_precision``.
    rule : {'standard', 'trapezoidal'}
        Which of ``precision`` and ``trapezoid``.

    Raises
    ------
    DataError
        If no probe has a mate.
    ConfigError
        If the rule is unknown, or the search was not asked for it.
    """
    if rule not in ("standard", "trapezoidal"):
        raise ConfigError(f"the rule of average precision is {rule!r}: it must be 'standard' or 'trapezoidal'")
    if not found.mated.any():
        raise DataError("no probe has a mate in the gallery: check the identities of both lists")
    precisions = (found.precision if rule == "standard" else found.trapezoid)[found.mated]
    if np.isnan(precisions).any():
        raise ConfigError("mean average precision needs a search that was asked for it")
    return float(precisions.mean())


def tpir_at_fpir(found: Search, targets: Sequence[float]) -> tuple[OpenSet, ...]:
    """Open-set identification with rank 1 (ISO/IEC 19795-1; NIST IR 8271: 1 - FNIR(N, R = 1, T) at FPIR(N, T)).

    A non-mated search is a false positive if its best score is above the threshold; a mated one is a true positive if
    its mate is at rank 1 and scores above it. The threshold is the lowest real number with an FPIR of at most the
    target: if k of the non-mated searches may pass, it is the best score of search k + 1 in descending order, which
    itself stays out together with its ties.

    Parameters
    ----------
    found : Search
        With mated and non-mated probes.
    targets : sequence of float
        False positive identification rates in [0, 1).

    Raises
    ------
    DataError
        If there are no mated or no non-mated searches.
    ConfigError
        If a target is outside [0, 1).
    """
    alarms, mated = _open_set_parts(found)
    ascending = np.arange(len(alarms)) / len(alarms)
    points = []
    for target in targets:
        _check_target(target)
        threshold = float(alarms[int(np.searchsorted(ascending, target, side="right")) - 1])
        fpir = _share(alarms > threshold, len(alarms))
        points.append(OpenSet(target, threshold, fpir, _hits(found, mated, found.mate > threshold)))
    return tuple(points)


def tpir_curve(found: Search, points: int = 300) -> tuple[Floats, Floats]:
    """Thin the curve of TPIR over FPIR, as :func:`tpir_at_fpir` has both, for a plot with a logarithmic axis.

    Parameters
    ----------
    found : Search
        With mated and non-mated probes; DataError otherwise.
    points : int
        Rates tried, evenly spaced by logarithm from that of one non-mated search to that of all but one.

    Returns
    -------
    fpir, tpir : ndarray of float64, shape (k,)
        At most ``points + 1`` points that the curve has, FPIR ascending without repetition, the first 0.
    """
    count = len(found.rank) - int(np.count_nonzero(found.mated))
    passing = np.unique(np.rint(np.geomspace(1, max(count - 1, 1), points)))
    targets = [0.0, *(passing[passing < count] / count).tolist()]
    reached = tpir_at_fpir(found, targets)
    fpir, first = np.unique([point.fpir for point in reached], return_index=True)
    return fpir, np.array([point.tpir for point in reached])[first]


def tpir_at_fpir_rounded(found: Search, targets: Sequence[float]) -> tuple[OpenSet, ...]:
    """:func:`tpir_at_fpir` as ``DIR_FAR`` of the public Probabilistic Face Embeddings and AdaFace code has it.

    There the best score of non-mated search round(target * n) is the threshold, halves rounded to even, and a score
    equal to it passes; where that number is 0, the threshold is 1e-5 above all of them. The FPIR met can thus exceed
    the target, by rounding and by ties.
    """
    alarms, mated = _open_set_parts(found)
    points = []
    for target in targets:
        _check_target(target)
        passing = int(np.round(len(alarms) * target))
        threshold = float(alarms[passing - 1]) if passing else float(alarms[0]) + 1e-5
        fpir = _share(alarms >= threshold, len(alarms))
        points.append(OpenSet(target, threshold, fpir, _hits(found, mated, found.mate >= threshold)))
    return tuple(points)


def tpir_at_fpir_pooled(found: Search, targets: Sequence[float]) -> tuple[OpenSet, ...]:
    """TPIR at FPIR as the public scripts for IJB 1:N have it: InsightFace's and AdaFace's ``evaluation``.

    They have no non-mated searches: every probe is mated, and the threshold is score number ceil(target * probes), in
    descending order, of all scores of all probes against other identities; what is above it counts, whether or not
    the mate is at rank 1. One probe that resembles ten strangers thus spends the alarms of ten. The ``fpir`` here is
    the number of such scores above the threshold, divided by the number of probes.

    Parameters
    ----------
    found : Search
        Of mated probes, with ``strongest`` at least ceil(target * probes).
    targets : sequence of float
        Rates in (0, 1).

    Raises
    ------
    DataError
        If a probe has no mate, or ``strongest`` holds too few scores.
    """
    count = len(found.rank)
    if not found.mated.all():
        raise DataError(
            f"{numbered(int(np.count_nonzero(~found.mated)), 'probe')} without a mate in the gallery: this rule needs "
            "one each"
        )
    points = []
    for target in targets:
        _check_target(target)
        place = pooled_place(count, target)
        if not 0 < place <= len(found.strongest):
            raise DataError(
                f"FPIR {target:g} needs the {numbered(place, 'strongest score')} of strangers: "
                f"{len(found.strongest)} kept"
            )
        threshold = float(found.strongest[place - 1])
        fpir = _share(found.strongest > threshold, count)
        points.append(OpenSet(target, threshold, fpir, _share(found.mate > threshold, count)))
    return tuple(points)


def pooled_place(probes: int, target: float) -> int:
    """Place of the score, counted from 1, that :func:`tpir_at_fpir_pooled` takes as threshold."""
    return math.ceil(probes * target)


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


def _open_set_parts(found: Search) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Best scores of the non-mated searches, descending, and which searches are mated."""
    mated = found.mated
    if mated.all() or not mated.any():
        raise DataError("open-set identification needs probes with a mate in the gallery and probes without")
    return np.sort(found.other[~mated])[::-1], mated


def _hits(found: Search, mated: npt.NDArray[np.bool_], passing: npt.NDArray[np.bool_]) -> float:
    return _share(mated & (found.rank == 1) & passing, int(np.count_nonzero(mated)))


def _share(mask: npt.NDArray[np.bool_], of: int) -> float:
    return int(np.count_nonzero(mask)) / of


def _check_target(target: float) -> None:
    if not 0 <= target < 1:
        raise ConfigError(f"a false positive identification rate of {target!r} was asked for: it must be in [0, 1)")


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
