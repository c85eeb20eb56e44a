# SPDX-License-Identifier: Apache-2.0
"""Millions of names in little memory, and identities as numbers from 0."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_DIGEST = 16  # bytes that tell contents apart


class Names(Sequence[str]):
    """A list of strings in one block of bytes, with eight bytes more for each; file names are kept exactly."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bytes = bytearray()
        self._ends = array("q")
        for name in names:
            self.append(name)

    def append(self, name: str) -> None:
        """Add a name at the end."""
        self._bytes += name.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start = self._ends[index - 1] if index else 0
        return self._bytes[start : self._ends[index]].decode("utf-8", "surrogateescape")


class Identities:
    """Collects identities' names as they come, then numbers them in order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._seen = array("q")

    def append(self, name: str) -> None:
        """Add the next picture's identity."""
        self._seen.append(self._numbers.setdefault(name, len(self._numbers)))

    def numbered(self) -> tuple[Integers, list[str]]:
        """Return each picture's label and the names by label.

        Names that are all whole numbers are ordered as such, others as text.
        """
        names = sorted(self._numbers, key=_order(self._numbers))
        labels = np.empty(len(names), dtype=np.int64)
        labels[[self._numbers[name] for name in names]] = np.arange(len(names))
        seen = np.frombuffer(self._seen, dtype=np.int64) if self._seen else np.empty(0, dtype=np.int64)
        return labels[seen], names


def _order(names: Iterable[str]) -> Callable[[str], tuple[int, str]]:
    numeric = all(name.isascii() and name.removeprefix("-").isdigit() and len(name) < 20 for name in names)
    return (lambda name: (int(name), name)) if numeric else (lambda name: (0, name))


def dense(labels: Integers) -> tuple[Integers, Integers]:
    """Return labels without gaps, in the same order, and the original label of each."""
    kept, numbered = np.unique(labels, return_inverse=True)
    return numbered.astype(np.int64).reshape(-1), kept.astype(np.int64)


def digests(items: Iterable[bytes], count: int) -> npt.NDArray[np.uint8]:
    """Return 16 bytes of BLAKE2b of each item, shape (count, 16)."""
    found = np.zeros((count, _DIGEST), dtype=np.uint8)
    for index, item in enumerate(items):
        found[index] = np.frombuffer(hashlib.blake2b(item, digest_size=_DIGEST).digest(), dtype=np.uint8)
    return found


def repeats(found: npt.NDArray[np.uint8]) -> list[Integers]:
    """Return the groups of equal rows, each ascending, in the order of their first members."""
    if not len(found):
        return []
    words = np.ascontiguousarray(found).view(np.uint64)
    order = np.lexsort(words.T).astype(np.int64)
    arranged = words[order]
    starts = np.flatnonzero(np.concatenate([[True], (arranged[1:] != arranged[:-1]).any(axis=1)]))
    lengths = np.diff(np.append(starts, len(order)))
    several = lengths > 1
    bounds = zip(starts[several].tolist(), lengths[several].tolist(), strict=True)
    groups = [order[start : start + length] for start, length in bounds]
    return sorted(groups, key=lambda group: int(group[0]))


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs again, if any does."""
    groups = repeats(digests((name.encode("utf-8", "surrogateescape") for name in names), len(names)))
    return names[int(groups[0][0])] if groups else None
