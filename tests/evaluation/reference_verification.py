# SPDX-License-Identifier: Apache-2.0
"""The usual loop over folds and thresholds: the tests' slow reference, the benchmark's yardstick."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import KFold


def threshold_accuracy(threshold: float, distances: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]) -> float:
    accepted = np.less(distances, threshold)
    true_accepts = np.sum(np.logical_and(accepted, same))
    true_rejects = np.sum(np.logical_and(np.logical_not(accepted), np.logical_not(same)))
    return float(true_accepts + true_rejects) / len(distances)


def usual_loop(
    distances: npt.NDArray[np.float64],
    same: npt.NDArray[np.bool_],
    folds: int,
    test_folds: Sequence[int],
    threshold_folds: Sequence[int],
) -> tuple[list[float], list[float]]:
    """Return the threshold and the accuracy of each test fold."""
    candidates = np.arange(0, 4, 0.01)
    members = [test for _, test in KFold(folds, shuffle=False).split(distances)]
    thresholds, accuracies = [], []
    for fold in test_folds:
        choosing = np.concatenate([members[other] for other in threshold_folds if other != fold])
        train_accuracies = np.zeros(len(candidates))
        for index, threshold in enumerate(candidates):
            train_accuracies[index] = threshold_accuracy(threshold, distances[choosing], same[choosing])
        best = candidates[np.argmax(train_accuracies)]
        thresholds.append(float(best))
        accuracies.append(threshold_accuracy(best, distances[members[fold]], same[members[fold]]))
    return thresholds, accuracies
