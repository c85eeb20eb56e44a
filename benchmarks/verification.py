# SPDX-License-Identifier: Apache-2.0
"""How many times faster than the usual loop over folds and thresholds ten-fold verification is.

By the grid rule, with the field's 400 thresholds, and by the exact rule, with every distinct distance of the other
folds. Loop and ours run in turns in one process on the same random distances. ``verify`` does more in its time: TAR and
AUC too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "evaluation"))

from reference_verification import threshold_accuracy, usual_loop
from timing import in_turns, ratio

from fedface_flwr.evaluation.pair_figures_counts import count_exactly, cross_validate
from fedface_flwr.evaluation.verification import FOLDS, fold_slices, verify


def random_pairs(pairs: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Distances of two overlapping classes, in alternating runs of one kind as LFW has them."""
    generator = np.random.default_rng(pairs)
    same = np.arange(pairs) // (pairs // (2 * FOLDS)) % 2 == 0
    centres = np.where(same, 1.2, 1.7)
    return np.clip(generator.normal(centres, 0.25), 0, 4), same


def compare(pairs: int, repeats: int) -> None:
    """Print the median ratio for one size; exit with an error when the accuracies differ."""
    distances, same = random_pairs(pairs)
    every = range(FOLDS)
    thresholds, accuracies = usual_loop(distances, same, FOLDS, every, every)
    ours = verify(distances, same)
    if ours.fold_accuracies != tuple(accuracies) or ours.thresholds != tuple(thresholds):
        raise SystemExit(f"{pairs} pairs: thresholds or accuracies differ from the usual loop's")

    times = in_turns(
        {
            "loop": lambda: usual_loop(distances, same, FOLDS, every, every),
            "ours": lambda: verify(distances, same),
        },
        repeats,
    )
    print(f"{pairs} pairs, {repeats} turns, identical accuracies: median ratio [middle half]")
    print(f"  usual loop / verify: {ratio(times['loop'], times['ours'])}")


def exact_loop(distances: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]) -> tuple[list[float], list[float]]:
    """Return the threshold and the accuracy of each fold by trying every distinct distance of the other folds."""
    thresholds, accuracies = [], []
    for part in fold_slices(len(distances)):
        choosing = np.ones(len(distances), dtype=np.bool_)
        choosing[part] = False
        candidates = np.append(np.unique(distances[choosing]), np.inf)
        right = [threshold_accuracy(threshold, distances[choosing], same[choosing]) for threshold in candidates]
        best = float(candidates[np.argmax(right)])
        thresholds.append(best)
        accuracies.append(threshold_accuracy(best, distances[part], same[part]))
    return thresholds, accuracies


def exactly(distances: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]) -> tuple[list[float], list[float]]:
    """Return the same by one sort of all pairs."""
    fold = np.arange(len(distances)) * FOLDS // len(distances)
    thresholds, accuracies = cross_validate(count_exactly(distances, same, fold, FOLDS))
    return thresholds.tolist(), accuracies.tolist()


def compare_exact(pairs: int, repeats: int) -> None:
    """Print the median ratio of the exact rule for one size; exit with an error when the accuracies differ."""
    distances, same = random_pairs(pairs)
    if exact_loop(distances, same) != exactly(distances, same):
        raise SystemExit(f"{pairs} pairs: exact thresholds or accuracies differ from the loop's")
    times = in_turns({"loop": lambda: exact_loop(distances, same), "ours": lambda: exactly(distances, same)}, repeats)
    print(f"{pairs} pairs, {repeats} turns, every distinct threshold, identical accuracies: median ratio [middle half]")
    print(f"  loop over folds and all thresholds / one sort: {ratio(times['loop'], times['ours'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    for pairs in (6000, 12000):
        compare(pairs, repeats)
        compare_exact(pairs, min(repeats, 3))


if __name__ == "__main__":
    main()
