# SPDX-License-Identifier: Apache-2.0
"""Sets of encoded pictures, and decoding many of them at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.images import decode
from fedface_flwr.data.sets import Images, LabelledSet

# Decoding leaves Python's lock, but a silo shares its machine: a few threads, not all cores.
_THREADS = min(4, os.cpu_count() or 1)


class EncodedSet(LabelledSet, Protocol):
    """Labelled pictures still in their files; what a reader of a format provides."""

    @property
    def files(self) -> Sequence[Path]:
        """Every file that the set's content depends on."""
        ...

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``, encoded, and the text that names its file and record."""
        ...


@dataclass
class StreamedSet:
    """An ``ImageSet`` that reads and decodes its pictures each time they are asked for.

    It keeps no open file and no thread between calls, so threads, forks and pickling are all safe.
    """

    encoded: EncodedSet
    size: int

    def __post_init__(self) -> None:
        self.name = self.encoded.name
        self.num_identities = self.encoded.num_identities
        self.labels = self.encoded.labels

    def images(self, indices: npt.NDArray[np.int64]) -> Images:
        """Return uint8 RGB of shape (len(indices), 3, size, size); DataError names a bad picture."""
        return decode_many(self.encoded.read, indices, self.size)


def decode_many(read: Callable[[int], tuple[bytes, str]], indices: npt.NDArray[np.int64], size: int) -> Images:
    """Read and decode pictures with a small pool of threads.

    Parameters
    ----------
    read : callable
        Gives, for an index, the encoded picture and the text that names its file and record.
    indices : ndarray of int64, shape (n,)
        The pictures wanted, in order.
    size : int
        Side in pixels.

    Returns
    -------
    ndarray of uint8, shape (n, 3, size, size)
        RGB pixels.

    Raises
    ------
    DataError
        From ``read`` or ``decode``, for the first bad picture in order.
    """
    images = np.empty((len(indices), 3, size, size), dtype=np.uint8)

    def place(slot: int) -> None:
        data, where = read(int(indices[slot]))
        images[slot] = decode(data, size, where)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(place, range(len(indices))))
    return images
