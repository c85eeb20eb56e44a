# SPDX-License-Identifier: Apache-2.0
"""How many pairs of each fold every threshold accepts: all that figures of verification are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FoldCounts:
    """Pairs accepted at each candidate threshold, by fold and kind; a pair is accepted if its distance is below it.

    Attributes
    ----------
    thresholds : ndarray of float64, shape (m,)
        Candidates, ascending.
    genuine, impostor : ndarray of int64, shape (folds, m)
        Accepted pairs of one person and of two.
    genuine_pairs, impostor_pairs : ndarray of int64, shape (folds,)
        How many pairs of either kind a fold has.
    offered : ndarray of bool, shape (folds, m)
        Whether a candidate may be the threshold of a fold, which its own pairs must not have brought in.
    """

    thresholds: Floats
    genuine: Counts
    impostor: Counts
    genuine_pairs: Counts
    impostor_pairs: Counts
    offered: npt.NDArray[np.bool_]

    @property
    def correct(self) -> Counts:
        """Pairs classified right, shape (folds, m)."""
        right: Counts = self.genuine + (self.impostor_pairs[:, None] - self.impostor)
        return right

    @property
    def pairs(self) -> Counts:
        """Pairs of each fold, shape (folds,)."""
        total: Counts = self.genuine_pairs + self.impostor_pairs
        return total


def count_on_grid(
    distances: Floats, same: npt.NDArray[np.bool_], fold: Counts, folds: int, thresholds: Floats
) -> FoldCounts:
    """Count at fixed thresholds, which every fold may have.

    Parameters
    ----------
    distances : ndarray of float64, shape (pairs,)
        Finite.
    same : ndarray of bool, shape (pairs,)
        True where a pair shows one person.
    fold : ndarray of int64, shape (pairs,)
        Fold of each pair, from 0.
    folds : int
        How many there are.
    thresholds : ndarray of float64, shape (m,)
        Ascending.

    Raises
    ------
    DataError
        If shapes differ, a distance is not finite, or a fold has no pairs.
    """
    _check(distances, same, fold, folds)
    # side="right": a pair whose distance equals a threshold is not below it, so the next one is its first.
    accepted_from = np.searchsorted(thresholds, distances, side="right")
    at = _histogram(accepted_from, same, fold, folds, len(thresholds) + 1)
    impostor, genuine = np.cumsum(at, axis=2)
    return FoldCounts(
        thresholds,
        genuine[:, :-1],
        impostor[:, :-1],
        genuine[:, -1],
        impostor[:, -1],
        np.ones((folds, len(thresholds)), dtype=np.bool_),
    )


def count_exactly(distances: Floats, same: npt.NDArray[np.bool_], fold: Counts, folds: int) -> FoldCounts:
    """Count at every threshold that makes a difference: each distinct distance, and infinity, which accepts all.

    A candidate is offered to a fold if another fold has a pair of exactly this distance. Parameters and errors are
    those of :func:`count_on_grid`; the pairs are sorted once, whatever the number of folds.
    """
    _check(distances, same, fold, folds)
    values, rank = np.unique(distances, return_inverse=True)
    at = _histogram(rank.ravel(), same, fold, folds, len(values))
    here = at.sum(axis=0)
    offered = np.ones((folds, len(values) + 1), dtype=np.bool_)
    offered[:, :-1] = here.sum(axis=0) > here
    accepted = np.zeros((2, folds, len(values) + 1), dtype=np.int64)
    np.cumsum(at, axis=2, out=accepted[:, :, 1:])
    impostor, genuine = accepted
    return FoldCounts(np.append(values, np.inf), genuine, impostor, genuine[:, -1], impostor[:, -1], offered)


def cross_validate(counts: FoldCounts) -> tuple[Floats, Floats]:
    """Score each fold at the threshold that classifies most pairs of the others right, the lowest on a tie.

    Returns
    -------
    thresholds, accuracies : ndarray of float64, shape (folds,)
        What each fold was scored at, and the share of its pairs classified right.

    Raises
    ------
    DataError
        If there are fewer than two folds.
    """
    folds = len(counts.pairs)
    if folds < 2:
        raise DataError(f"{folds} fold cannot be cross-validated: another one must choose its threshold")
    correct = counts.correct
    elsewhere = correct.sum(axis=0) - correct
    best = np.where(counts.offered, elsewhere, -1).argmax(axis=1)
    accuracies: Floats = correct[np.arange(folds), best] / counts.pairs
    return counts.thresholds[best], accuracies


def best_of_all(counts: FoldCounts) -> tuple[float, float]:
    """Return the threshold that classifies most of all pairs right, the lowest on a tie, and that share."""
    correct = counts.correct.sum(axis=0)
    best = int(correct.argmax())
    return float(counts.thresholds[best]), int(correct[best]) / int(counts.pairs.sum())


def _histogram(place: npt.NDArray[np.intp], same: npt.NDArray[np.bool_], fold: Counts, folds: int, bins: int) -> Counts:
    """Count pairs by kind (impostor first), fold and place; shape (2, folds, bins)."""
    cells = (same * folds + fold) * bins + place
    counted: Counts = np.bincount(cells, minlength=2 * folds * bins).reshape(2, folds, bins)
    return counted


def _check(distances: Floats, same: npt.NDArray[np.bool_], fold: Counts, folds: int) -> None:
    if not distances.shape == same.shape == fold.shape or distances.ndim != 1:
        raise DataError(f"distances {distances.shape}, labels {same.shape} and folds {fold.shape} must be equally long")
    finite = np.isfinite(distances)
    if not finite.all():
        raise DataError(f"the distance of pair {int(np.argmin(finite))} is not finite: check its embeddings")
    if fold.size and (fold.min() < 0 or fold.max() >= folds):
        raise DataError(f"a pair is in fold {int(fold.min())} or {int(fold.max())}; they go from 0 to {folds - 1}")
    empty = np.flatnonzero(np.bincount(fold, minlength=folds) == 0)
    if len(empty):
        raise DataError(f"fold {int(empty[0]) + 1} of {folds} has no pairs; there must be pairs in each")
