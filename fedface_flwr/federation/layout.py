# SPDX-License-Identifier: Apache-2.0
"""How a model's named tensors lie in one flat vector.

Every party holds the same :class:`Layout`, so that a model travels as one contiguous float32 vector (parameters first,
BatchNorm statistics after them) and one short int64 vector (BatchNorm's batch counters).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Counters = npt.NDArray[np.int64]


class Kind(StrEnum):
    """What a tensor of the model is, which decides how parties combine it."""

    PARAMETER = "parameter"
    RUNNING_MEAN = "running_mean"
    RUNNING_VARIANCE = "running_variance"
    COUNTER = "counter"


@dataclass(frozen=True)
class Entry:
    """One named tensor."""

    name: str
    shape: tuple[int, ...]
    kind: Kind

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Order, shape and kind of a model's tensors.

    Parameters
    ----------
    entries : tuple of Entry
        Parameters first, then running statistics, then counters.

    Raises
    ------
    ValueError
        If the entries are not in that order, or a name occurs twice.
    """

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        order = [(e.kind is not Kind.PARAMETER) + (e.kind is Kind.COUNTER) for e in self.entries]
        if order != sorted(order):
            raise ValueError("layout entries must be parameters, then running statistics, then counters")
        if len({e.name for e in self.entries}) != len(self.entries):
            raise ValueError("layout entries must have distinct names")

    @cached_property
    def num_parameters(self) -> int:
        """Length of the vector's leading part that gradients and momentum apply to."""
        return sum(e.size for e in self.entries if e.kind is Kind.PARAMETER)

    @cached_property
    def num_values(self) -> int:
        """Length of the float32 vector: parameters and running statistics."""
        return sum(e.size for e in self.entries if e.kind is not Kind.COUNTER)

    @cached_property
    def num_counters(self) -> int:
        """Length of the int64 vector."""
        return sum(e.size for e in self.entries if e.kind is Kind.COUNTER)

    @cached_property
    def digest(self) -> str:
        """Short fingerprint by which two parties recognise that they hold the same layout."""
        text = "\n".join(f"{e.name} {e.shape} {e.kind}" for e in self.entries)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def items(self) -> Iterator[tuple[Entry, slice]]:
        """Yield every entry with its place in the float32 vector (or, for counters, in the int64 vector)."""
        values = counters = 0
        for entry in self.entries:
            start = counters if entry.kind is Kind.COUNTER else values
            yield entry, slice(start, start + entry.size)
            if entry.kind is Kind.COUNTER:
                counters += entry.size
            else:
                values += entry.size


@dataclass(frozen=True)
class ModelState:
    """One model: ``values`` float32 of shape (num_values,) and ``counters`` int64 of shape (num_counters,)."""

    values: Vector
    counters: Counters

    def tensors(self, layout: Layout) -> dict[str, npt.NDArray[np.float32] | Counters]:
        """Return the named tensors as views in their own shapes."""
        return {
            entry.name: (self.counters if entry.kind is Kind.COUNTER else self.values)[place].reshape(entry.shape)
            for entry, place in layout.items()
        }
