# SPDX-License-Identifier: Apache-2.0
"""What travels instead of whole models: differences, which bear rounding where weights do not.

The global difference ``D_r = Theta_r - Theta_{r-1}`` is ``-eta_r M_r`` (Bai et al., arXiv 2105.02501, section 3.2): who
holds ``Theta_{r-1}`` gets both the new model and the momentum from that one array. Two rounds differ by far less than
the step of a 16-bit number at the weights' size; the difference itself keeps its leading bits in 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.federation.blocks import each_block, each_span
from fedface_flwr.federation.layout import Counters, ModelState, Vector

# NumPy has no bfloat16: its bits travel as unsigned integers.
WIRE_TYPES: dict[str, type[np.generic]] = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.float16}

_LARGEST_HALF = 2.0**15
_TOO_LARGE = 1e30
SCALES = (2.0**-100, 2.0**100)


@dataclass(frozen=True)
class Difference:
    """A vector in the type in which it travels.

    Attributes
    ----------
    dtype : str
        ``float32``, ``bfloat16`` or ``float16``.
    values : ndarray of ``WIRE_TYPES[dtype]``
        One number a parameter.
    scale : float
        What the numbers were multiplied by before they were rounded: a power of two.
    """

    dtype: str
    values: npt.NDArray[Any]
    scale: float = 1.0

    def widen(self, part: slice, out: Vector) -> None:
        """Write some of the numbers, in float32, into ``out``."""
        values = self.values[part]
        if self.dtype == "bfloat16":
            np.left_shift(values, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
        elif self.dtype == "float16":
            np.divide(values, np.float32(self.scale), out=out)
        else:
            out[:] = values


class MovedVector:
    """The vector of a local model as its trainer sent it: where it started from, and the difference, widened as read.

    It stands in for an array of its length wherever one is read block by block, at the difference's size in memory.

    Parameters
    ----------
    start : ndarray of float32, shape (num_values,)
        The global model that the round started from; it must not change.
    difference : Difference
        Over the leading parameters.
    statistics : ndarray of float32
        What stands behind them, whole.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, start: Vector, difference: Difference, statistics: Vector) -> None:
        self._start, self._difference, self._statistics = start, difference, statistics
        self.shape = start.shape

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, part: slice) -> Vector:
        start, stop, _ = part.indices(len(self))
        out: Vector = np.empty(max(0, stop - start), np.float32)
        parameters = len(self._difference.values)
        moved = slice(start, min(stop, parameters))
        count = max(0, moved.stop - moved.start)
        if count:
            self._difference.widen(moved, out[:count])
            out[:count] += self._start[moved]
        out[count:] = self._statistics[max(0, start - parameters) : max(0, stop - parameters)]
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[0 : len(self)].astype(dtype or self.dtype, copy=False)


@dataclass(frozen=True)
class FullModel:
    """A model for a party that holds none: the weights, and the server's momentum where there is one yet."""

    version: str
    model: ModelState
    momentum: Vector | None = None


@dataclass(frozen=True)
class GlobalChange:
    """The step from one global model to the next, for a party that holds the former.

    Attributes
    ----------
    version, base : str
        Names of the model that results and of the one that the difference applies to.
    difference : Difference
        Over the parameters.
    statistics : ndarray of float32, shape (num_values - num_parameters,)
        BatchNorm's running statistics, whole.
    counters : ndarray of int64
        BatchNorm's counters, whole.
    rate : float
        ``eta`` of the round that made the difference; 0 for methods without a server momentum.
    """

    version: str
    base: str
    difference: Difference
    statistics: Vector
    counters: Counters
    rate: float

    def apply(self, model: ModelState) -> Vector | None:
        """Turn the base into the new model in place, and return the momentum ``-D / eta``, if there is one.

        All parties and the server add the same numbers in the same order, so that all hold the same bits.
        """
        parameters = model.values[: len(self.difference.values)]
        step = decode(self.difference)
        parameters += step
        model.values[len(parameters) :] = self.statistics
        model.counters[:] = self.counters
        return momentum_of(step, self.rate) if self.rate else None


@dataclass(frozen=True)
class AnchoredModel:
    """A model as its difference from another, the anchor, that the receiver holds.

    Attributes
    ----------
    base : str
        Name of the anchor.
    difference : Difference
        Over the parameters.
    statistics : ndarray of float32, shape (num_values - num_parameters,)
        BatchNorm's running statistics, whole.
    counters : ndarray of int64
        BatchNorm's counters, whole.
    anchor : ndarray of float32, shape (num_values,), optional
        The anchor itself, for a party that does not hold it.
    """

    base: str
    difference: Difference
    statistics: Vector
    counters: Counters
    anchor: Vector | None = None

    def place(self, anchor: Vector) -> ModelState:
        """Return the model, whose bits are the same wherever it is made."""
        return ModelState(MovedVector(anchor, self.difference, self.statistics)[0 : len(anchor)], self.counters)


def momentum_of(step: Vector, rate: float) -> Vector:
    """Return ``M = -D / eta`` in the place of D (float32, shape (num_parameters,))."""
    step /= np.float32(-rate)
    return step


def encode(vector: Vector, dtype: str, start: Vector | None = None) -> Difference:
    """Round a vector, or how far it lies from ``start``, to the type in which it travels: to nearest, ties to even.

    Parameters
    ----------
    vector : ndarray of float32, shape (n,)
        The numbers.
    dtype : str
        ``float32``, ``bfloat16`` or ``float16``; the last is scaled by a power of two to use its narrow range.
    start : ndarray of float32, shape (n,), optional
        What is subtracted first, in pieces: no third vector of this length is made.

    Raises
    ------
    ValueError
        If a number is not finite.
    """

    def moved(part: slice) -> Vector:
        return vector[part] if start is None else vector[part] - start[part]

    tops: list[np.float32] = []
    each_block(len(vector), lambda part: tops.append(np.abs(moved(part)).max()))
    # Of nan and a number this is nan, in either order.
    largest = float(np.max(tops, initial=np.float32(0)))
    if not largest < _TOO_LARGE:
        raise ValueError("a difference must be finite")
    scale = half_scale(largest) if dtype == "float16" else 1.0
    result = Difference(dtype, np.empty(len(vector), WIRE_TYPES[dtype]), scale)
    each_block(len(vector), lambda part: narrow(moved(part), result, part))
    return result


def decode(difference: Difference) -> Vector:
    """Return the numbers of a difference in float32."""
    out: Vector = np.empty(len(difference.values), np.float32)
    each_span(len(out), lambda part: difference.widen(part, out[part]))
    return out


def half_scale(largest: float) -> float:
    """Return the power of two that brings numbers up to ``largest`` just inside float16's range."""
    return 2.0 ** max(-100, min(100, math.floor(math.log2(_LARGEST_HALF / largest)))) if largest > 0 else 1.0


def narrow(vector: Vector, into: Difference, part: slice) -> None:
    """Round some numbers into their place in a difference."""
    out = into.values[part]
    if into.dtype == "bfloat16":
        bits = vector.view(np.uint32)
        odd = (bits >> 16) & np.uint32(1)
        odd += np.uint32(0x7FFF)
        odd += bits
        np.right_shift(odd, 16, out=out, casting="unsafe")
    elif into.dtype == "float16":
        np.multiply(vector, np.float32(into.scale), out=out, casting="same_kind")
    else:
        out[:] = vector
