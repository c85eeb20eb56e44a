# SPDX-License-Identifier: Apache-2.0
"""Weighted averages of local models, and the server momentum, in one pass over memory.

The rows may be views of received message buffers: they are read once, block by block, so that the sums run on data that
is still in the cache and no second copy of any model is made. Threads share out the columns, never a sum's terms: the
result's bits do not depend on their number or timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedface_flwr.federation.blocks import BLOCK, cut, each_block, each_span
from fedface_flwr.federation.difference import WIRE_TYPES, Difference, half_scale, narrow
from fedface_flwr.federation.layout import Counters, Vector

F = TypeVar("F", np.float32, np.float64)

_PRODUCT = 2**19
"""Multiplications a matrix product: a larger one BLAS shares out among threads of its own, which would fight ours."""


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
        for block in cut(span.stop, width, span.start):
            part = scratch[:, : block.stop - block.start]
            for i, row in enumerate(rows):
                part[i] = row[block]
            np.matmul(factors, part, out=out[:, block])

    each_span(size, work)


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
    parameters = len(momentum)
    _check(rows, weights, len(model), parameters)
    if not rate > 0:
        raise ValueError(f"the learning rate is {rate}; the momentum needs a positive one")

    def take(block: slice, mean: npt.NDArray[F]) -> None:
        moved = momentum[block]
        count = len(moved)
        np.subtract(model[block][:count], mean[:count], out=moved)
        moved /= model.dtype.type(rate)
        model[block] = mean

    _each_mean(rows, weights, take)


def aggregate_difference(
    rows: Sequence[Vector], weights: npt.NDArray[np.float64], model: Vector, carry: Vector, dtype: str
) -> Difference:
    """Move the global model by the rounded difference to the weighted average, in place, and return that difference.

    What rounding left is kept in ``carry`` and goes into the next round's difference (error feedback), so that nothing
    is lost in the long run; running statistics are taken whole.

    Parameters
    ----------
    rows, weights : sequence of ndarray, ndarray
        As for :func:`aggregate`.
    model : ndarray of float32, shape (size,)
        ``Theta_{r-1}`` on entry, ``Theta_r = Theta_{r-1} + D_r`` on return: what every receiver of ``D_r`` computes.
    carry : ndarray of float32, shape (parameters,)
        What earlier rounds left on entry, what is left now on return; zero before the first round.
    dtype : str
        The type in which the difference travels.

    Raises
    ------
    ValueError
        If shapes do not agree, or the weights do not sum to one.
    """
    parameters = len(carry)
    _check(rows, weights, len(model), parameters)
    largest: list[float] = []

    def want(block: slice, mean: Vector) -> None:
        due, old = carry[block], model[block]
        count = len(due)
        due += mean[:count]
        due -= old[:count]
        old[count:] = mean[count:]
        largest.append(float(np.abs(due).max(initial=0.0)))

    _each_mean(rows, weights, want)
    scale = half_scale(max(largest, default=0.0)) if dtype == "float16" else 1.0
    difference = Difference(dtype, np.empty(parameters, WIRE_TYPES[dtype]), scale)

    def adopt(block: slice) -> None:
        narrow(carry[block], difference, block)
        step: Vector = np.empty(block.stop - block.start, np.float32)
        difference.widen(block, step)
        carry[block] -= step
        model[block] += step

    each_block(parameters, adopt)
    return difference


def _check(rows: Sequence[npt.NDArray[F]], weights: npt.NDArray[np.float64], size: int, parameters: int) -> None:
    if weights.shape != (len(rows),) or any(row.shape != (size,) for row in rows) or parameters > size:
        raise ValueError(f"weights {weights.shape}, rows {[r.shape for r in rows]} and a model of {size} do not fit")
    if not abs(float(weights.sum()) - 1.0) <= 1e-6:
        raise ValueError(f"aggregation weights sum to {float(weights.sum())}, not to one")


def _each_mean(
    rows: Sequence[npt.NDArray[F]],
    weights: npt.NDArray[np.float64],
    take: Callable[[slice, npt.NDArray[F]], None],
) -> None:
    """Call ``take`` with each block and the weighted average there, which is only its own for the call."""
    dtype = rows[0].dtype
    factors = weights.astype(dtype)

    def work(span: slice) -> None:
        average = np.empty(BLOCK, dtype=dtype)
        term = np.empty(BLOCK, dtype=dtype)
        for block in cut(span.stop, BLOCK, span.start):
            width = block.stop - block.start
            mean, scaled = average[:width], term[:width]
            np.multiply(rows[0][block], factors[0], out=mean)
            for row, factor in zip(rows[1:], factors[1:], strict=True):
                np.multiply(row[block], factor, out=scaled)
                mean += scaled
            take(block, mean)

    each_span(len(rows[0]), work)


def norm(vector: Vector, origin: Vector | None = None, count: int | None = None) -> float:
    """Return the Euclidean norm of a vector's first ``count`` numbers, from ``origin`` if given; not finite if one is.

    The vector is read block by block, without a second one of its length.
    """
    squares: list[float] = []

    def add(block: slice) -> None:
        part = vector[block] if origin is None else vector[block] - origin[block]
        with np.errstate(over="ignore", invalid="ignore"):
            squares.append(float(np.dot(part, part)))

    each_block(len(vector) if count is None else count, add)
    # Sorted, for blocks are done in any order, and a sum's bits depend on it.
    total = sum(sorted(squares))
    return math.sqrt(total) if math.isfinite(total) else total


def aggregate_counters(rows: Sequence[Counters]) -> Counters:
    """Combine BatchNorm's batch counters, which stay integers: the largest count any silo has seen."""
    largest: Counters = np.max(np.stack(rows), axis=0)
    return largest
