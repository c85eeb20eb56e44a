# SPDX-License-Identifier: Apache-2.0
"""Identification's figures: how high probes' mates come, and how often strangers raise an alarm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.search import Search
from fedface_flwr.wording import numbered

Floats = npt.NDArray[np.float64]


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
