# SPDX-License-Identifier: Apache-2.0
"""Five points for picture files that are not aligned yet."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.alignment import align
from fedface_flwr.data.images import UnalignedError, decode_photo
from fedface_flwr.data.sets import Images
from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_set import FilePictures, Pairs, text_of

Points = npt.NDArray[np.float64]

_COORDINATES = tuple(f"{axis}{point}" for point in range(1, 6) for axis in "xy")


class PhotoPictures(FilePictures):
    """Photos, each a file of its own, of which the face with these five points is cut out."""

    def __init__(self, files: Sequence[Path], points: Sequence[Points]) -> None:
        super().__init__(files)
        self._points = points

    def recipe(self, index: int) -> bytes:
        """Return the points, which decide the pixels besides the encoded bytes."""
        return b"five points" + self._points[index].astype("<f8").tobytes()

    def pixels(self, data: bytes, index: int, size: int, where: str) -> Images:
        """Return uint8 RGB of shape (3, size, size); DataError if the picture or its points cannot be used."""
        try:
            return align(decode_photo(data, where), self._points[index], size)
        except DataError as error:
            raise error if str(error).startswith(where) else DataError(f"{where}: {error}") from error


class FacePictures(FilePictures):
    """Files of which each should be an aligned face; one that is not square is refused with what may be done."""

    def pixels(self, data: bytes, index: int, size: int, where: str) -> Images:
        """Return uint8 RGB of shape (3, size, size); DataError if the picture is damaged or not square."""
        try:
            return super().pixels(data, index, size, where)
        except UnalignedError as error:
            raise UnalignedError(f"{error}, or give five points by the benchmark's option landmarks") from error


def without_landmarks(load: Callable[[], Pairs]) -> Callable[[], Pairs]:
    """Return a reader of the same pairs of picture files that tells of the option ``landmarks`` where it would help."""

    def read() -> Pairs:
        pairs = load()
        assert isinstance(pairs.pictures, FilePictures)
        return replace(pairs, pictures=FacePictures(pairs.pictures.files))

    return read


def with_landmarks(load: Callable[[], Pairs], path: Path, images: Path) -> Callable[[], Pairs]:
    """Return a reader of the same pairs, their pictures aligned by a table of five points.

    Parameters
    ----------
    load : callable
        Reads pairs of picture files.
    path : Path
        A CSV table with columns ``picture`` (a path against ``images``) and ``x1``, ``y1`` to ``x5``, ``y5``: eyes,
        nose tip and corners of the mouth, the one at the picture's left first, in pixels.
    images : Path
        The pictures' folder.

    The reader raises DataError if the table is not of this form or lacks a picture.
    """

    def read() -> Pairs:
        pairs, points = load(), _read_points(path, images)
        if not isinstance(pairs.pictures, FilePictures):
            raise DataError(f"{path}: points are for picture files, which these pairs are not of")
        for file in pairs.pictures.files:
            if file not in points:
                raise DataError(f"{path}: no points of {file}")
        files = pairs.pictures.files
        return replace(pairs, pictures=PhotoPictures(files, [points[file] for file in files]))

    return read


def _read_points(path: Path, images: Path) -> Mapping[Path, Points]:
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""), strict=True)
    points: dict[Path, Points] = {}
    try:
        lacking = [column for column in ("picture", *_COORDINATES) if column not in (reader.fieldnames or ())]
        if lacking:
            raise DataError(f"{path}: its first line names no column {', '.join(lacking)}")
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            if None in row or None in row.values():
                raise DataError(f"{where}: not as many fields as the first line has columns")
            points[images / row["picture"]] = np.array([_number(row[name], where) for name in _COORDINATES]).reshape(
                5, 2
            )
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: not CSV ({error})") from error
    return points


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {text[:40]!r} is not a finite number")
    return number
