# SPDX-License-Identifier: Apache-2.0
"""Decoded pixels of a whole set, kept in one memory-mapped file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.decoding import EncodedSet, decode_many
from fedface_flwr.data.sets import Images
from fedface_flwr.files import replacing

_CHUNK = 1024  # images decoded, written and checked at a time
_CHECKSUM_BYTES = 4


@dataclass
class CachedSet:
    """An ``ImageSet`` whose decoded pixels lie in a file.

    Attributes
    ----------
    name : str
        The silo's name.
    num_identities : int
        Number of classes.
    labels : ndarray of int64, shape (n,)
        Identity of each image.
    pixels : ndarray of uint8, shape (n, 3, size, size)
        Memory-mapped RGB.
    """

    name: str
    num_identities: int
    labels: npt.NDArray[np.int64]
    pixels: Images

    def images(self, indices: npt.NDArray[np.int64]) -> Images:
        """Return a copy of the images at ``indices``, uint8 RGB of shape (len(indices), 3, size, size)."""
        return np.asarray(self.pixels[indices])


def cached(encoded: EncodedSet, size: int, cache_dir: Path) -> CachedSet:
    """Return the set with its pixels decoded, from the cache if they are there.

    The file is an ordinary ``.npy`` with a checksum after the array. Its name is a fingerprint of the
    source files' paths, sizes and times of change and of ``size``, so changed sources get a new file. A
    damaged file is rebuilt. Processes may race: each writes its own temporary file, and the last rename wins.

    Parameters
    ----------
    encoded : EncodedSet
        The source.
    size : int
        Side in pixels.
    cache_dir : Path
        Where the files are kept; made when missing.

    Raises
    ------
    DataError
        If a picture cannot be decoded.
    """
    path = cache_dir.absolute() / f"{encoded.name}-{_fingerprint(encoded, size)}.npy"
    shape = (len(encoded.labels), 3, size, size)
    pixels = _load(path, shape)
    if pixels is None:
        with replacing(path) as temporary, temporary.open("wb") as file:
            _write(encoded, shape, file)
        pixels = _map(path, shape)
    return CachedSet(encoded.name, encoded.num_identities, encoded.labels, pixels)


def _fingerprint(encoded: EncodedSet, size: int) -> str:
    stats = [(str(path.absolute()), path.stat()) for path in encoded.files]
    content = [size, [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _load(path: Path, shape: tuple[int, ...]) -> Images | None:
    """Map the cached pixels, or return None when the file is missing or is not what was once written."""
    header = _header(shape)
    expected_size = len(header) + math.prod(shape) + _CHECKSUM_BYTES
    if not path.is_file() or path.stat().st_size != expected_size:
        return None
    with path.open("rb") as file:
        if file.read(len(header)) != header:
            return None
        file.seek(-_CHECKSUM_BYTES, os.SEEK_END)
        written = file.read()
    pixels = _map(path, shape)
    checksum = 0
    for start in range(0, len(pixels), _CHUNK):
        checksum = zlib.crc32(pixels[start : start + _CHUNK].data, checksum)
    return pixels if written == checksum.to_bytes(_CHECKSUM_BYTES, "little") else None


def _map(path: Path, shape: tuple[int, ...]) -> Images:
    return np.memmap(path, dtype=np.uint8, mode="r", offset=len(_header(shape)), shape=shape)


def _header(shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


def _write(encoded: EncodedSet, shape: tuple[int, ...], file: BinaryIO) -> None:
    # Plain writes: a full disk is then an error, where a mapped file would kill the process.
    file.write(_header(shape))
    checksum = 0
    for start in range(0, shape[0], _CHUNK):
        indices = np.arange(start, min(start + _CHUNK, shape[0]), dtype=np.int64)
        pixels = decode_many(encoded.read, indices, shape[-1])
        checksum = zlib.crc32(pixels.data, checksum)
        file.write(pixels.data)
    file.write(checksum.to_bytes(_CHECKSUM_BYTES, "little"))
