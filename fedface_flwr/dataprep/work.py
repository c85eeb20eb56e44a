# SPDX-License-Identifier: Apache-2.0
"""Pictures one after another through a few threads, in order, some at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fedface_flwr.errors import DataError
from fedface_flwr.reporting.bars import Reporter

CHUNK = 512
"""Pictures that are in memory at a time, and between two checkpoints."""

_THREADS = min(4, os.cpu_count() or 1)

Result = TypeVar("Result")


def chunks(
    one: Callable[[int], Result], start: int, stop: int, what: str, reporter: Reporter
) -> Iterator[tuple[int, list[Result | DataError]]]:
    """Yield, a chunk at a time, the first index and for each index the result or what is wrong with it.

    Parameters
    ----------
    one : callable
        Works on one index, in a thread; may raise DataError.
    start, stop : int
        The indices.
    what : str
        Named beside the bar.
    reporter : Reporter
        Shows how far it is.
    """

    def guarded(index: int) -> Result | DataError:
        try:
            return one(index)
        except DataError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool, reporter.bar(what, stop, start) as advance:
        for first in range(start, stop, CHUNK):
            last = min(first + CHUNK, stop)
            yield first, list(pool.map(guarded, range(first, last)))
            advance(last - first)
