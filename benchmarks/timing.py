# SPDX-License-Identifier: Apache-2.0
"""Comparing pieces of work on a machine that others use too: in turns, and by ratios within each turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


def in_turns(cases: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time every case once a turn, after one turn that is not counted; every other turn runs backwards.

    Returns
    -------
    dict of str to list of float
        Seconds by case, one figure a turn.
    """
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name in list(cases)[:: 1 if turn % 2 else -1]:
            took = seconds(cases[name])
            if turn:
                times[name].append(took)
    return times


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Return the median over the turns of ``above / below``, with the middle half of the turns in brackets."""
    low, middle, high = np.quantile(np.divide(above, below), [0.25, 0.5, 0.75])
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"
