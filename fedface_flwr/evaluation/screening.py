# SPDX-License-Identifier: Apache-2.0
"""Rates at low false accept rates, of many pairs: all scored roughly, and exactly where a rate is decided.

A false accept rate asks how many impostor pairs lie above a score, and a true accept rate how many genuine ones do:
only the order near few places counts, from the genuine score below each to the one above. An inner product of vectors
of norm 1 in float32 is off by at most ``(dim + 2) u`` with ``u = 2**-24``, in whatever order it is summed (Higham,
Accuracy and Stability of Numerical Algorithms, 2002, section 3.1, and one rounding of each factor). So a pair whose
rough score is farther than twice that from a place is on the same side of it as its exact score, and the others, some
ten thousands, are scored again in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedface_flwr.evaluation.templates import TemplatePairs, pair_scores
from fedface_flwr.evaluation.ties import settle

Floats = npt.NDArray[np.float64]
Rough = npt.NDArray[np.float32]

_UNIT = 2.0**-24
# Scores on either side of a place that the rules for a rate may look at: so many, of which so many must differ.
_NEIGHBOURS, _DISTINCT = 16, 3
# Above this share of all pairs, scoring all of them is as quick as scoring some again.
_MOST, _FEW = 1 / 64, 1000
# The cut between the highest scores and the rest is an estimate, of every so many scores.
_STRIDE = 61


def highest_scores(
    features: Floats, pairs: TemplatePairs, genuine: Floats, targets: Sequence[float], share: float
) -> tuple[Floats, int] | None:
    """Return about this share of the pairs' scores, the highest ones, and how many others are below them all.

    Parameters
    ----------
    features : ndarray of float64, shape (templates, dim)
        Of norm 1, or zero.
    pairs : TemplatePairs
        Impostor ones, of rows of these.
    genuine : ndarray of float64
        Exact scores of the genuine pairs, ascending.
    targets : sequence of float
        False accept rates at which the scores' order is to be exact, all below ``share``.
    share : float
        Of the pairs, in (0, 1).

    Returns
    -------
    scores : ndarray of float64, ascending
        Exact wherever a rate of ``targets`` is decided by any rule of :func:`~fedface_flwr.evaluation.roc.tar_at_far`,
        and elsewhere right to about 1e-7.
    below : int
        How many pairs are not among them.
    None
        If the scores do not tell such a share apart: there are few of them, or many alike.
    """
    margin = 2 * (features.shape[1] + 4) * _UNIT
    rough = pair_scores(features.astype(np.float32), pairs)
    cut = _cut(rough, share)
    kept = np.flatnonzero(rough >= cut)
    values = rough[kept]
    ascending = np.sort(values)
    if len(kept) <= int(max(targets) * len(rough)) + _NEIGHBOURS:
        return None
    ranks = [int(target * len(rough)) for target in targets]
    windows = [_at_rank(ascending, rank, margin) for rank in ranks]
    windows = [_between_corners(genuine, low, high, margin) for low, high in windows]
    if any(low < cut <= high for low, high in windows):
        return None
    bounds = _bounds(windows)
    near = np.searchsorted(bounds, values, side="right") % 2 == 1
    if np.count_nonzero(near) > max(_FEW, len(rough) * _MOST):
        return None
    exact = settle(pair_scores(features, pairs.some(kept[near]))).astype(np.float64, copy=False)
    if np.isin(exact, genuine).any():
        return None
    scores = _exact_within(ascending, bounds, np.sort(exact))
    if not all(_tells_apart(scores, rank) for rank in ranks):
        return None
    return scores, len(rough) - len(scores)


def _cut(rough: Rough, share: float) -> float:
    sample = np.sort(rough[::_STRIDE])
    return float(sample[int(len(sample) * (1 - share))])


def _at_rank(ascending: Rough, rank: int, margin: float) -> tuple[float, float]:
    """Return between which rough scores the pairs about this rank, from 0 at the highest, may be found."""
    last = len(ascending) - 1
    low = ascending[max(last - rank - _NEIGHBOURS, 0)]
    high = ascending[min(last - rank + _NEIGHBOURS, last)]
    return float(low) - margin, float(high) + margin


def _exact_within(ascending: Rough, bounds: Rough, exact: Floats) -> Floats:
    """Return the scores in order, those between bounds replaced by exact ones."""
    scores = ascending.astype(np.float64)
    done = 0
    for start, stop in np.searchsorted(ascending, bounds).reshape(-1, 2).tolist():
        scores[start:stop] = exact[done : done + stop - start]
        done += stop - start
    # All but in order already, which this way of sorting makes use of.
    scores.sort(kind="stable")
    return scores


def _tells_apart(ascending: Floats, rank: int) -> bool:
    """Return whether the exact scores about a rank go beyond those that are equal to the one there."""
    at = len(ascending) - 1 - rank
    below = np.unique(ascending[max(at - _NEIGHBOURS, 0) : at])
    above = np.unique(ascending[at + 1 : at + 1 + _NEIGHBOURS])
    return len(below) >= _DISTINCT and (len(above) >= _DISTINCT or rank <= _NEIGHBOURS)


def _bounds(windows: Sequence[tuple[float, float]]) -> Rough:
    """Return where windows begin and end, the end left out, in turns; those that overlap are one."""
    bounds: list[float] = []
    for low, high in sorted(windows):
        if bounds and low <= bounds[-1]:
            bounds[-1] = max(bounds[-1], high)
        else:
            bounds += [low, high]
    return np.array(bounds, np.float32)


def _between_corners(genuine: Floats, low: float, high: float, margin: float) -> tuple[float, float]:
    """Return the same from the genuine score below a place to the one above.

    The curve has a corner at each, and in between one wherever scores are equal, which the rule ``nearest`` may choose.
    """
    start, stop = np.searchsorted(genuine, [low, high])
    below = genuine[start - 1] if start else -np.inf
    above = genuine[stop] if stop < len(genuine) else np.inf
    return float(below) - margin, float(above) + margin
