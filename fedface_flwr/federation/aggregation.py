# SPDX-License-Identifier: Apache-2.0
"""Weighted averages of local models, and the server momentum, in one pass over memory.

The rows may be views of received message buffers: they are read once, block by block, so that the sums run on data that
is still in the cache and no second copy of any model is made. Threads share out the columns, never a sum's terms: the
result's bits do not depend on their number or timing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedface_flwr.federation.layout import Counters

F = TypeVar("F", np.float32, np.float64)

BLOCK = 65_536
"""Columns a block at most: a sum, a term and a row of them fit a core's second-level cache, and each array operation is
long beside the interpreter's lock that threads pass on between operations."""

SPAN = 16 * BLOCK
"""Columns a task of the thread pool."""

_PRODUCT = 2**19
"""Multiplications a matrix product: a larger one BLAS shares out among threads of its own, which would fight ours."""

# The memory's speed is the limit, and a few cores reach it.
_POOL = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="aggregation")


def _spans(size: int, step: int, start: int = 0) -> Iterator[slice]:
    return (slice(a, min(a + step, size)) for a in range(start, size, step))


def combine(
    rows: Sequence[npt.NDArray[F]],
    weights: npt.NDArray[np.float64],
    out: npt.NDArray[F],
) -> None:
    """Write ``weights @ rows`` into ``out``.

    Parameters
    ----------
    rows : sequence of ndarray, each of shape (size,)
        Local models, in the order of ``weights``' columns. They need not be contiguous with one another.
    weights : ndarray, shape (candidates, len(rows))
        One weighted average a row.
    out : ndarray, shape (candidates, size)
        Receives the averages.

    Raises
    ------
    ValueError
        If shapes do not agree.
    """
    candidates, size = out.shape
    if weights.shape != (candidates, len(rows)) or any(row.shape != (size,) for row in rows):
        raise ValueError(
            f"weights {weights.shape}, rows {[row.shape for row in rows]} and out {out.shape} do not fit together"
        )
    factors = weights.astype(out.dtype)
    width = min(BLOCK, -(-_PRODUCT // max(weights.size, 1)))

    def work(span: slice) -> None:
        scratch = np.empty((len(rows), width), dtype=out.dtype)
        for block in _spans(span.stop, width, span.start):
            part = scratch[:, : block.stop - block.start]
            for i, row in enumerate(rows):
                part[i] = row[block]
            np.matmul(factors, part, out=out[:, block])

    list(_POOL.map(work, _spans(size, SPAN)))


def aggregate(
    rows: Sequence[npt.NDArray[F]],
    weights: npt.NDArray[np.float64],
    model: npt.NDArray[F],
    momentum: npt.NDArray[F],
    rate: float,
) -> None:
    """Move the global model to the weighted average of the local ones and set the server momentum, both in place.

    ``Theta_r = sum_i w_i theta_i`` over all values, and ``M_r = (Theta_{r-1} - Theta_r) / eta_r`` over the leading
    ``len(momentum)`` values, which are the parameters (Bai et al., arXiv 2105.02501, section 3.2).

    Parameters
    ----------
    rows : sequence of ndarray, each of shape (size,)
        Local models after K steps.
    weights : ndarray, shape (len(rows),)
        Aggregation weights; they must sum to one.
    model : ndarray, shape (size,)
        ``Theta_{r-1}`` on entry, ``Theta_r`` on return.
    momentum : ndarray, shape (parameters,)
        Receives ``M_r``. Of length zero for methods without it.
    rate : float
        Learning rate ``eta_r`` of the round that ends.

    Raises
    ------
    ValueError
        If shapes do not agree, the weights do not sum to one, or the rate is not positive.
    """
    size, parameters = len(model), len(momentum)
    if weights.shape != (len(rows),) or any(row.shape != (size,) for row in rows) or parameters > size:
        raise ValueError(f"weights {weights.shape}, rows {[r.shape for r in rows]} and model {model.shape} do not fit")
    if not abs(float(weights.sum()) - 1.0) <= 1e-6:
        raise ValueError(f"aggregation weights sum to {float(weights.sum())}, not to one")
    if not rate > 0:
        raise ValueError(f"the learning rate is {rate}; the momentum needs a positive one")
    factors = weights.astype(model.dtype)

    def work(span: slice) -> None:
        average = np.empty(BLOCK, dtype=model.dtype)
        term = np.empty(BLOCK, dtype=model.dtype)
        for block in _spans(span.stop, BLOCK, span.start):
            width = block.stop - block.start
            mean, scaled = average[:width], term[:width]
            np.multiply(rows[0][block], factors[0], out=mean)
            for row, factor in zip(rows[1:], factors[1:], strict=True):
                np.multiply(row[block], factor, out=scaled)
                mean += scaled
            moved = momentum[block]
            count = len(moved)
            np.subtract(model[block][:count], mean[:count], out=moved)
            moved /= model.dtype.type(rate)
            model[block] = mean

    list(_POOL.map(work, _spans(size, SPAN)))


def aggregate_counters(rows: Sequence[Counters]) -> Counters:
    """Combine BatchNorm's batch counters, which stay integers: the largest count any silo has seen."""
    largest: Counters = np.max(np.stack(rows), axis=0)
    return largest
