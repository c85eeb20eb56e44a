# SPDX-License-Identifier: Apache-2.0
"""Long vectors in pieces that fit a core's cache, shared out among a few threads.

Threads share out the columns, never a sum's terms: no result's bits depend on their number or timing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

BLOCK = 65_536
"""Columns a block at most: a sum, a term and a row of them fit a core's second-level cache, and each array operation is
long beside the interpreter's lock that threads pass on between operations."""

SPAN = 16 * BLOCK
"""Columns a task of the thread pool."""

# The memory's speed is the limit, and a few cores reach it.
_POOL = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="aggregation")


def cut(size: int, step: int, start: int = 0) -> Iterator[slice]:
    """Yield slices of at most ``step`` columns from ``start`` to ``size``."""
    return (slice(a, min(a + step, size)) for a in range(start, size, step))


def each_span(size: int, work: Callable[[slice], None]) -> None:
    """Call ``work`` with spans that make up ``size`` columns, several at a time."""
    list(_POOL.map(work, cut(size, SPAN)))


def each_block(size: int, work: Callable[[slice], None]) -> None:
    """Call ``work`` with blocks that make up ``size`` columns, several at a time."""

    def over(span: slice) -> None:
        for block in cut(span.stop, BLOCK, span.start):
            work(block)

    each_span(size, over)
