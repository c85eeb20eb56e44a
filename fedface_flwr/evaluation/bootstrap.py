# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of verification figures by the percentile bootstrap over folds.

Folds are drawn with replacement, as many as there are, and the figure is taken of the pairs of what was drawn, as often
as each fold was drawn. Public protocols keep the pairs of one person inside one fold, so folds are the largest parts
that can be taken for independent draws. (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedface_flwr.evaluation.pair_figures_counts import Counts, Floats, FoldCounts

SAMPLES = 2000
SEED = 0
LEVEL = 0.95

Interval = tuple[float, float]


def draw_folds(folds: int, samples: int = SAMPLES, seed: int = SEED) -> Counts:
    """Return how often each fold was drawn, int64 of shape (samples, folds); each row sums to ``folds``."""
    drawn: Counts = np.random.default_rng(seed).multinomial(folds, np.full(folds, 1 / folds), samples)
    return drawn


def interval(values: Floats, level: float = LEVEL) -> Interval | None:
    """Return the bounds between which the middle ``level`` of the values lies, or None if one is not finite."""
    if not np.isfinite(values).all():
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def accuracies(drawn: Counts, fold_accuracies: Floats) -> Floats:
    """Return the mean accuracy of each draw of folds; (samples,). The folds' thresholds are not chosen anew."""
    means: Floats = drawn @ fold_accuracies / drawn.shape[1]
    return means


def tars_at_fars(drawn: Counts, counts: FoldCounts, targets: npt.ArrayLike) -> Floats:
    """Return TAR at the largest threshold whose FAR is at most each target, for each draw of folds.

    FAR grows with the threshold, so all draws and targets are bisected at once: a step costs one look-up in the counts
    by draw, target and fold, whatever the number of pairs.

    Parameters
    ----------
    drawn : ndarray of int64, shape (samples, folds)
        From :func:`draw_folds`.
    counts : FoldCounts
        From :func:`~fedface_flwr.evaluation.pair_figures_counts.count_exactly`.
    targets : array_like of float, shape (n,)
        False accept rates.

    Returns
    -------
    ndarray of float64, shape (samples, n)
        nan where a draw has no pairs of one kind.
    """
    limits = np.asarray(targets, dtype=np.float64)
    totals = drawn @ counts.impostor_pairs
    last = len(counts.thresholds) - 1
    low = np.zeros((len(drawn), len(limits)), dtype=np.intp)
    high = np.full_like(low, last)
    with np.errstate(invalid="ignore", divide="ignore"):
        while (low < high).any():
            middle = (low + high + 1) // 2
            allowed = _accepted(drawn, counts.impostor, middle) / totals[:, None] <= limits
            low, high = np.where(allowed, middle, low), np.where(allowed, high, middle - 1)
        rates: Floats = _accepted(drawn, counts.genuine, low) / (drawn @ counts.genuine_pairs)[:, None]
    rates[totals == 0] = np.nan
    return rates


def eers(drawn: Counts, counts: FoldCounts) -> Floats:
    """Return the equal error rate of each draw of folds, (samples,), as :func:`fedface_flwr.evaluation.roc.eer` does.

    The first threshold at which FAR reaches FRR is bisected for; the two rates are taken as straight between it and
    the one before.
    """
    genuine_pairs, impostor_pairs = drawn @ counts.genuine_pairs, drawn @ counts.impostor_pairs
    low = np.zeros((len(drawn), 1), dtype=np.intp)
    high = np.full_like(low, len(counts.thresholds) - 1)

    def rates(at: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
        accepted, passed = _accepted(drawn, counts.genuine, at), _accepted(drawn, counts.impostor, at)
        return (passed / impostor_pairs[:, None])[:, 0], (1 - accepted / genuine_pairs[:, None])[:, 0]

    with np.errstate(invalid="ignore", divide="ignore"):
        while (low < high).any():
            middle = (low + high) // 2
            far, frr = rates(middle)
            # Not "far >= frr": without pairs of a kind both are nan, and the search must still end inside.
            reached = ~(far < frr)[:, None]
            low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
        far, frr = rates(low)
        far_before, frr_before = rates(np.maximum(low - 1, 0))
        before, after = frr_before - far_before, frr - far
        share = np.where(before > after, before / (before - after), 0.0)
        crossing: Floats = far_before + share * (far - far_before)
    crossing[(genuine_pairs == 0) | (impostor_pairs == 0)] = np.nan
    return crossing


def aucs(drawn: Counts, counts: FoldCounts) -> Floats:
    """Return the area under the ROC curve of each draw of folds, (samples,).

    It is the share of (genuine, impostor) couples with the genuine pair nearer, a tie counting half: their numbers by
    the two pairs' folds are found once, and weighted with how often both folds were drawn.
    """
    arriving = np.diff(counts.genuine, axis=1).astype(np.float64)
    closer = (counts.impostor[:, :-1] + counts.impostor[:, 1:]).astype(np.float64)
    twice = arriving @ (2 * counts.impostor_pairs[:, None] - closer).T
    weights = drawn.astype(np.float64)
    couples = (drawn @ counts.genuine_pairs) * (drawn @ counts.impostor_pairs)
    with np.errstate(invalid="ignore", divide="ignore"):
        areas: Floats = np.einsum("bf,fg,bg->b", weights, twice, weights, optimize=True) / (2 * couples)
    return areas


def _accepted(drawn: Counts, accepted: Counts, at: npt.NDArray[np.intp]) -> Counts:
    """Sum accepted pairs (folds, m) at places (samples, n) over the folds drawn; shape (samples, n)."""
    summed: Counts = np.zeros(at.shape, dtype=np.int64)
    for fold, row in enumerate(accepted):
        summed += drawn[:, fold, None] * row[at]
    return summed
