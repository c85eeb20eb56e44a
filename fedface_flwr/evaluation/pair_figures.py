# SPDX-License-Identifier: Apache-2.0
"""Every figure of face verification over folds, with its conditions, interval and doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation import bootstrap, roc
from fedface_flwr.evaluation.figures import Curve, Figure, Outcome
from fedface_flwr.evaluation.pair_figures_counts import (
    Counts,
    Floats,
    FoldCounts,
    best_of_all,
    count_exactly,
    count_on_grid,
    cross_validate,
)
from fedface_flwr.evaluation.pictures import Embedded
from fedface_flwr.evaluation.verification import THRESHOLDS

FAR_RULES = ("at most", "nearest", "interpolated")
DISTANCE = "squared Euclidean of unit vectors"
GRID_RULE = "grid 0..3.99 by 0.01"
EXACT_RULE = "exact"
BEST_RULE = "best on the same pairs"

_POOLED = "verification, pairs of all folds"
_CHUNK = 16384  # pairs


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs with their distances.

    Attributes
    ----------
    distances : ndarray of float64, shape (pairs,)
        Squared Euclidean distances of unit vectors.
    same : ndarray of bool, shape (pairs,)
        True where a pair shows one person.
    fold : ndarray of int64, shape (pairs,)
        Fold of each pair, from 0.
    folds : int
        How many folds there are.
    folding : str
        How pairs came into their folds.
    """

    distances: Floats
    same: npt.NDArray[np.bool_]
    fold: Counts
    folds: int
    folding: str


def distances_of(embedded: Embedded, left: Counts, right: Counts) -> Floats:
    """Squared Euclidean distances of the L2-normalised embeddings of pairs.

    Mirror images' embeddings are added in float64 before normalising, as the field's scripts do.

    Parameters
    ----------
    embedded : Embedded
        Of all pictures.
    left, right : ndarray of int64, shape (pairs,)
        Which two pictures make a pair.

    Returns
    -------
    ndarray of float64, shape (pairs,)
        Distances in [0, 4].

    Raises
    ------
    DataError
        If an embedding has no direction (zero, infinite or nan).
    """
    distances = np.empty(len(left))
    for start in range(0, len(left), _CHUNK):
        part = slice(start, start + _CHUNK)
        first, second = _unit_vectors(embedded, left[part]), _unit_vectors(embedded, right[part])
        distances[part] = np.square(first - second).sum(axis=1)
    return distances


def _unit_vectors(embedded: Embedded, rows: Counts) -> Floats:
    vectors = embedded.plain[rows].astype(np.float64)
    if embedded.mirrored is not None:
        vectors += embedded.mirrored[rows]
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    usable = (np.isfinite(norms) & (norms > 0))[:, 0]
    if not usable.all():
        raise DataError(
            f"the embedding of picture {int(rows[np.argmin(usable)])} is zero or not finite: the weights are damaged, "
            "or the precision is too low for them"
        )
    vectors /= norms
    return vectors


def measure(
    benchmark: str,
    pairs: ScoredPairs,
    *,
    flip: str,
    far_rules: Sequence[str] = ("at most",),
    targets: Sequence[float] = roc.FARS,
) -> Outcome:
    """Take every figure of verification.

    Accuracy is the mean over the folds, each scored at the threshold that classifies most pairs of the other folds
    right, once of the field's grid of thresholds and once of all; TAR, EER and AUC are of the pairs of all folds
    together. Intervals are those of :mod:`fedface_flwr.evaluation.bootstrap`.

    Parameters
    ----------
    benchmark : str
        As the suite names it.
    pairs : ScoredPairs
        At least one of each kind.
    flip : str
        What the figures' condition of this name says.
    far_rules : sequence of str
        Which of ``FAR_RULES`` TAR is taken by.
    targets : sequence of float
        False accept rates.

    Raises
    ------
    DataError
        If pairs are all of one kind, a fold is empty, or a distance is not finite.
    """
    if pairs.same.all() or not pairs.same.any():
        raise DataError("the pairs are all of one kind, so nothing can be verified")
    exact = count_exactly(pairs.distances, pairs.same, pairs.fold, pairs.folds)
    scores = -pairs.distances
    genuine, impostor = np.sort(scores[pairs.same]), np.sort(scores[~pairs.same])
    figures = [
        *_accuracies(benchmark, pairs, exact, flip),
        *_rates(benchmark, pairs, exact, (genuine, impostor), flip, far_rules, targets),
    ]
    label = f"flip {flip}"
    return Outcome(tuple(figures), (Curve(benchmark, "roc", label, *roc.curve(genuine, impostor)),))


def _accuracies(benchmark: str, pairs: ScoredPairs, exact: FoldCounts, flip: str) -> Iterator[Figure]:
    if pairs.folds >= 2:
        grid = count_on_grid(pairs.distances, pairs.same, pairs.fold, pairs.folds, THRESHOLDS)
        for rule, counts in ((GRID_RULE, grid), (EXACT_RULE, exact)):
            yield from _cross_validated(benchmark, pairs, counts, {"flip": flip, "threshold rule": rule})
    threshold, accuracy = best_of_all(exact)
    conditions = {"flip": flip, "threshold rule": BEST_RULE, "distance": DISTANCE}
    bias = "optimistic: the threshold was chosen on the pairs that it is scored on"
    yield Figure(benchmark, _POOLED, "accuracy", accuracy, conditions, note=bias)
    yield _threshold(benchmark, _POOLED, threshold, None, conditions)


def _cross_validated(
    benchmark: str, pairs: ScoredPairs, counts: FoldCounts, conditions: dict[str, str]
) -> Iterator[Figure]:
    protocol = f"verification, mean over {pairs.folds} folds"
    conditions = conditions | {"folds": pairs.folding, "distance": DISTANCE}
    thresholds, accuracies = cross_validate(counts)
    yield Figure(
        benchmark,
        protocol,
        "accuracy",
        float(np.mean(accuracies)),
        conditions,
        bootstrap.interval(bootstrap.accuracies(bootstrap.draw_folds(pairs.folds), accuracies)),
        float(np.std(accuracies)),
        _one_kind(counts),
    )
    spread = float(np.std(thresholds)) if np.isfinite(thresholds).all() else None
    yield _threshold(benchmark, protocol, float(np.mean(thresholds)), spread, conditions)


def _threshold(
    benchmark: str, protocol: str, threshold: float, spread: float | None, conditions: dict[str, str]
) -> Figure:
    finite = np.isfinite(threshold)
    note = "" if finite else "infinite: accepting every pair classifies most of them right"
    return Figure(
        benchmark,
        protocol,
        "threshold",
        threshold if finite else float("nan"),
        conditions,
        spread=spread,
        note=note,
    )


def _rates(
    benchmark: str,
    pairs: ScoredPairs,
    exact: FoldCounts,
    scores: tuple[Floats, Floats],
    flip: str,
    far_rules: Sequence[str],
    targets: Sequence[float],
) -> Iterator[Figure]:
    """TAR at each FAR by each rule, EER and AUC, of the pairs of all folds."""
    genuine, impostor = scores
    conditions = {"flip": flip, "distance": DISTANCE}
    drawn = bootstrap.draw_folds(pairs.folds) if pairs.folds >= 2 else None
    bounds = None if drawn is None else bootstrap.tars_at_fars(drawn, exact, targets)
    for rule in far_rules:
        for place, point in enumerate(roc.tar_at_far(genuine, impostor, targets, rule)):
            note, decided = roc.doubt(point.target, len(impostor))
            within = None
            if bounds is not None and decided and rule == "at most":
                within = bootstrap.interval(bounds[:, place])
            value = point.tar if decided else float("nan")
            metric, ruled = f"TAR at FAR {point.target:.0e}", conditions | {"FAR rule": rule}
            yield Figure(benchmark, _POOLED, metric, value, ruled, within, note=note)
    for metric, value, sample in (
        ("EER", roc.eer(genuine, impostor), bootstrap.eers),
        ("AUC", roc.auc(genuine, impostor), bootstrap.aucs),
    ):
        within = None if drawn is None else bootstrap.interval(sample(drawn, exact))
        yield Figure(benchmark, _POOLED, metric, value, conditions, within)


def _one_kind(counts: FoldCounts) -> str:
    lacking = int(np.count_nonzero((counts.genuine_pairs == 0) | (counts.impostor_pairs == 0)))
    return f"{lacking} of {len(counts.pairs)} folds have pairs of one kind only" if lacking else ""
