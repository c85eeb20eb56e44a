# SPDX-License-Identifier: Apache-2.0
"""Scores against thresholds: which of many each one reaches, and which scores are the highest of all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Thresholds:
    """Thresholds of each row, so sorted that one binary search finds all those which a score of the row reaches.

    Each threshold has a key of 64 bits: the row, then the value's bits in an order that is that of the values. A row
    begins with a key below all its values, which stands for "none reached".

    Parameters
    ----------
    of_row : ndarray of int64, shape (n,)
        The row of each threshold.
    values : ndarray of float32, shape (n,)
        The thresholds, none NaN.
    rows : int
        Number of rows, some of which may have no threshold.

    Attributes
    ----------
    place : ndarray of int64, shape (n,)
        Where each given threshold is in the arrays by key, such as those of :meth:`reached`.
    starts : ndarray of int64, shape (rows,)
        Where each row's first key is.
    """

    def __init__(self, of_row: Ints, values: Floats, rows: int) -> None:
        keys = np.concatenate([np.arange(rows, dtype=np.int64) << 32, keys_of(of_row, values)])
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        self.values = np.concatenate([np.full(rows, -np.inf, np.float32), values])[order]
        inverse = np.empty(len(keys), np.int64)
        inverse[order] = np.arange(len(keys))
        self.starts, self.place = inverse[:rows], inverse[rows:]
        self._ends = np.append(self.starts[1:], len(keys))
        self._row_of_key = np.repeat(np.arange(rows), self._ends - self.starts)

    def reached(self, of_row: Ints, scores: Floats) -> Ints:
        """Count, for each key, the scores of its row that are at least its value."""
        found = np.searchsorted(self.keys, keys_of(of_row, scores), side="right") - 1
        # From each key on to the end of all; what lies beyond the row's own end is taken off again.
        onward = np.append(np.cumsum(np.bincount(found, minlength=len(self.keys))[::-1])[::-1], 0)
        counts: Ints = onward[:-1] - onward[self._ends][self._row_of_key]
        return counts

    def lowest(self, is_open: npt.NDArray[np.bool_]) -> Floats:
        """Return each row's lowest threshold whose key is marked open; inf where a row has none."""
        open_values = np.where(is_open, self.values, np.float32(np.inf))
        open_values[self.starts] = np.inf
        lowest: Floats = np.minimum.reduceat(open_values, self.starts)
        return lowest


class Highest:
    """The ``count`` highest of all scores that it is given, exactly."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[Floats] = []
        self._held = 0
        self.cutoff = -np.inf if count else np.inf
        """A score below which nothing can be among the highest; -inf until enough scores were given."""

    def add(self, scores: Floats) -> None:
        """Take scores into account."""
        if self._count and len(scores):
            self._parts.append(scores)
            self._held += len(scores)
            if self._held >= 2 * self._count or (self.cutoff == -np.inf and self._held >= self._count):
                self.values()

    def values(self) -> Floats:
        """Return the highest so far, in no particular order."""
        kept = np.concatenate([np.empty(0, np.float32), *self._parts])
        if len(kept) >= self._count > 0:
            surplus = len(kept) - self._count
            kept = np.partition(kept, surplus)[surplus:]
            self.cutoff = float(kept[0])
        self._parts, self._held = [kept], len(kept)
        return kept


def keys_of(rows: Ints, values: Floats) -> Ints:
    """Return keys that order first by row, then by value; -0 and 0 have the same."""
    bits = (values + np.float32(0)).view(np.int32).astype(np.int64)
    ordered = np.where(bits < 0, ~bits & 0x7FFFFFFF, bits | 0x80000000)
    return (rows << 32) + ordered
