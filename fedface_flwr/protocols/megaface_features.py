# SPDX-License-Identifier: Apache-2.0
"""Features of listed faces: a file each in the MegaFace devkit's matrix format, or one NumPy matrix of all."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.matrices import map_matrix
from fedface_flwr.errors import DataError
from fedface_flwr.files import replacing
from fedface_flwr.protocols.megaface_lists import FaceList
from fedface_flwr.reporting.bars import Reporter
from fedface_flwr.wording import numbered

Floats = npt.NDArray[np.float32]
Result = TypeVar("Result")

_HEADER = struct.Struct("<4i")
_KINDS: dict[int, np.dtype[np.floating]] = {5: np.dtype("<f4"), 6: np.dtype("<f8")}
"""OpenCV's type codes CV_32F and CV_64F, of one channel."""
_LARGEST_DIM = 1 << 16
_THREADS = 16
_BATCH = 1024


def read_feature(path: Path) -> npt.NDArray[np.floating]:
    """Read one feature in the devkit's matrix format.

    Four little-endian int32 (rows, columns, bytes from one row to the next, OpenCV's type code) and then the values,
    as the devkit's ``matio.py`` and InsightFace's ``write_bin`` write them: N rows of one float32.

    Returns
    -------
    ndarray of float32 or float64, shape (rows,)
        Read only.

    Raises
    ------
    DataError
        If the file cannot be read, its header does not describe one column of floats that fill the file exactly, or a
        value is not finite.
    """
    largest = _HEADER.size + 8 * _LARGEST_DIM
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) < _HEADER.size or len(data) > largest:
        size = "more bytes" if len(data) > largest else numbered(len(data), "byte")
        raise DataError(f"{path}: {size}, which is no feature of one face")
    rows, columns, stride, kind = _HEADER.unpack_from(data)
    dtype = _KINDS.get(kind)
    if dtype is None:
        raise DataError(f"{path}: type code {kind}; a feature has 5 (float32) or 6 (float64)")
    if columns != 1 or rows < 1 or stride != dtype.itemsize:
        raise DataError(
            f"{path}: {rows} x {columns} values, {numbered(stride, 'byte')} a row; a feature has one column, unpadded"
        )
    if len(data) != _HEADER.size + rows * dtype.itemsize:
        announced = f"{numbered(rows, 'value')} of {dtype.itemsize}"
        raise DataError(f"{path}: {numbered(len(data), 'byte')}, but its header announces {announced}")
    feature = np.frombuffer(data, dtype, offset=_HEADER.size)
    if not np.isfinite(feature).all():
        raise DataError(f"{path}: value {int(np.argmin(np.isfinite(feature)))} is not finite")
    return feature


class FeatureFiles:
    """A devkit feature file for each face of a list, known to be there.

    Parameters
    ----------
    root : Path
        Folder that the list's paths are against.
    ending : str
        What follows a face's path in its feature file's name, such as ``_r100.bin``.
    faces : FaceList
        The faces.

    Raises
    ------
    DataError
        If a file is not there.
    """

    def __init__(self, root: Path, ending: str, faces: FaceList) -> None:
        self._root, self._ending, self._faces = root, ending, faces
        digest = blake2b(f"{root.resolve()}\n{ending}\n".encode(errors="surrogateescape"), digest_size=16)
        with Reporter().bar(f"looking for {numbered(len(faces.names), 'feature')}", len(faces.names)) as advance:
            for first, states in _batches(self._states, len(faces.names)):
                digest.update(
                    "\n".join(f"{faces.names[first + at]} {state}" for at, state in enumerate(states)).encode()
                )
                advance(len(states))
        self.digest = digest.hexdigest()
        """Of the folder, and of the names, sizes and times of change of all files."""

    def _path(self, index: int) -> Path:
        return self._root / f"{self._faces.names[index]}{self._ending}"

    def _states(self, rows: range) -> list[str]:
        states = []
        for index in rows:
            try:
                state = os.stat(self._path(index))
            except OSError as error:
                raise DataError(
                    f"{self._faces.where(index)}: no feature {self._path(index)} ({error.strerror})"
                ) from error
            if not S_ISREG(state.st_mode):
                raise DataError(f"{self._faces.where(index)}: {self._path(index)} is no file")
            states.append(f"{state.st_size} {state.st_mtime_ns}")
        return states

    def load(self, cache: Path | None = None) -> Floats:
        """Return the features as unit rows.

        Parameters
        ----------
        cache : Path, optional
            Folder in which the matrix is kept, whole or not at all, for as long as no feature file changes; it is then
            a memory map.

        Raises
        ------
        DataError
            If a file is damaged, or has another number of values than the first.
        """
        dim = len(read_feature(self._path(0)))
        shape = (len(self._faces.names), dim)
        if cache is None:
            matrix = np.empty(shape, np.float32)
            self._fill(matrix)
            return matrix
        kept = cache / f"megaface-{self.digest}.npy"
        if not kept.exists():
            with replacing(kept) as temporary:
                mapped = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
                self._fill(mapped)
                mapped.flush()
        found = map_matrix(kept)
        if found.shape != shape or found.dtype != np.float32:
            raise DataError(f"{kept}: is not what its name says; delete it, and it will be made anew")
        return found.view(np.float32)

    def _fill(self, matrix: Floats) -> None:
        def read(rows: range) -> list[None]:
            for index in rows:
                path = self._path(index)
                feature = read_feature(path)
                if len(feature) != matrix.shape[1]:
                    raise DataError(
                        f"{path}: {numbered(len(feature), 'value')}, but the list's first face has {matrix.shape[1]}"
                    )
                with np.errstate(over="ignore"):
                    norm = np.linalg.norm(feature.astype(np.float64))
                if not 0 < norm < np.inf:
                    raise DataError(f"{path}: all values are zero, or too large, so it has no direction")
                matrix[index] = feature / norm
            return [None] * len(rows)

        with Reporter().bar(f"reading {numbered(len(matrix), 'feature')}", len(matrix)) as advance:
            for _, done in _batches(read, len(matrix)):
                advance(len(done))


def load_matrix(path: Path, faces: FaceList) -> Floats:
    """Read a ``.npy`` matrix with a row for each face of a list, and return its rows, normalised, in float32.

    Raises
    ------
    DataError
        If the file is no such matrix of floats, has another number of rows than the list, or a row is zero or not
        finite.
    """
    stored = map_matrix(path)
    if len(stored) != len(faces.names):
        raise DataError(
            f"{path}: {numbered(len(stored), 'row')}, but {faces.source} lists {numbered(len(faces.names), 'face')}"
        )
    return unit_matrix(stored.shape, lambda part: stored[part], lambda row: f"{path}: row {row}")


def unit_matrix(
    shape: tuple[int, ...], rows: Callable[[slice], npt.NDArray[np.floating]], where: Callable[[int], str]
) -> Floats:
    """Return rows, got some at a time, divided by their L2 norms; DataError if one is zero or not finite."""
    matrix = np.empty(shape, np.float32)
    for start in range(0, len(matrix), _BATCH):
        part = slice(start, min(start + _BATCH, len(matrix)))
        with np.errstate(over="ignore", invalid="ignore"):
            values = rows(part).astype(np.float64)
            norms = np.linalg.norm(values, axis=1, keepdims=True)
        usable = (np.isfinite(norms) & (norms > 0))[:, 0]
        if not usable.all():
            raise DataError(f"{where(start + int(np.argmin(usable)))}: is zero or not finite, so it has no direction")
        matrix[part] = values / norms
    return matrix


def _batches(work: Callable[[range], list[Result]], count: int) -> Iterator[tuple[int, list[Result]]]:
    """Yield what ``work`` returns for each batch of rows, in order, some batches ahead on threads."""
    parts = [range(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH)]
    with ThreadPoolExecutor(_THREADS) as pool:
        results: Iterable[list[Result]] = pool.map(work, parts)
        for part, result in zip(parts, results, strict=True):
            yield part.start, result
