# SPDX-License-Identifier: Apache-2.0
"""Pairs of pictures with their folds, as every reader of a format gives them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.images import decode
from fedface_flwr.data.sets import Images
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.pair_figures_counts import Counts
from fedface_flwr.evaluation.pictures import Pictures
from fedface_flwr.evaluation.verification import fold_slices
from fedface_flwr.files import read_regular

FOLDS = 10
"""How many folds there are where neither the pairs' files nor the suite say so."""
GIVEN = "given"
CONSECUTIVE = "consecutive"
DEALT = "consecutive by kind"


@dataclass(frozen=True)
class Pairs:
    """Pairs of pictures.

    Attributes
    ----------
    pictures : Pictures
        Each once.
    left, right : ndarray of int64, shape (pairs,)
        Which two of them make a pair.
    same : ndarray of bool, shape (pairs,)
        True where a pair shows one person.
    fold : ndarray of int64, shape (pairs,)
        Fold of each pair, from 0.
    folding : str
        How pairs came into their folds: ``GIVEN``, ``CONSECUTIVE`` or ``DEALT``.
    """

    pictures: Pictures
    left: Counts
    right: Counts
    same: npt.NDArray[np.bool_]
    fold: Counts
    folding: str

    @property
    def folds(self) -> int:
        """How many folds there are."""
        return int(self.fold.max()) + 1


class FilePictures:
    """Aligned faces, each a file of its own; a :class:`~fedface_flwr.evaluation.pictures.Pictures`."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``, encoded, and its path; DataError if the file cannot be read."""
        path = self.files[index]
        try:
            return read_regular(path), str(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error

    def recipe(self, index: int) -> bytes:
        """Return nothing: the encoded bytes alone decide the pixels."""
        return b""

    def pixels(self, data: bytes, index: int, size: int, where: str) -> Images:
        """Return uint8 RGB of shape (3, size, size); DataError if the picture is damaged or not square."""
        return decode(data, size, where)


class Album:
    """Collects pairs of picture files, each file once and known to be there."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._places: dict[Path, int] = {}
        self._pairs: list[tuple[int, int]] = []
        self.same: list[bool] = []

    def add(self, left: Path, right: Path, same: bool, line: str) -> None:
        """Add a pair; ``line`` says where its file names it. DataError if a picture is not there."""
        self._pairs.append((self._place(left, line), self._place(right, line)))
        self.same.append(same)

    def _place(self, path: Path, line: str) -> int:
        place = self._places.get(path)
        if place is None:
            # Unlike Path.is_file, this also says no to a name that is too long.
            if not os.path.isfile(path):
                raise DataError(f"{self._source}: {line}: there is no picture {str(path)[:400]}")
            place = self._places[path] = len(self._places)
        return place

    def pairs(self, fold: Counts, folding: str) -> Pairs:
        """Return what was collected, with the fold of each pair; DataError if there is nothing."""
        if not self._pairs:
            raise DataError(f"{self._source}: no pairs")
        left, right = np.array(self._pairs, dtype=np.int64).T
        same = np.array(self.same, dtype=np.bool_)
        return Pairs(FilePictures(list(self._places)), left, right, same, fold, folding)


def consecutive(source: Path, pairs: int, folds: int) -> Counts:
    """Return folds of consecutive pairs, as scikit-learn's ``KFold`` makes them; DataError if there are too few."""
    try:
        slices = fold_slices(pairs, folds)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    fold = np.empty(pairs, dtype=np.int64)
    for number, part in enumerate(slices):
        fold[part] = number
    return fold


def require_unasked(source: Path, folds: int | None) -> None:
    """Raise DataError if a number of folds is asked for, where the pairs' file has folds of its own."""
    if folds is not None:
        raise DataError(f"{source}: has folds of its own; leave out the option folds")


def dealt(source: Path, same: Sequence[bool], folds: int) -> Counts:
    """Return folds of which the k-th has the k-th part of the pairs of either kind, in order."""
    kinds = np.array(same, dtype=np.bool_)
    fold = np.empty(len(kinds), dtype=np.int64)
    for kind in (True, False):
        fold[kinds == kind] = consecutive(source, int(np.count_nonzero(kinds == kind)), folds)
    return fold


def text_lines(path: Path) -> list[tuple[int, str]]:
    """Return a text file's lines that are not blank, stripped, with their numbers from 1; DataError if it is none."""
    lines = text_of(path).splitlines()
    return [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]


def text_of(path: Path) -> str:
    """Return a text file's content; DataError if it cannot be read as UTF-8, or holds zero bytes."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
    if "\0" in text:
        raise DataError(f"{path}: not a text file: it holds zero bytes")
    return text


def whole_number(text: str, least: int, where: str) -> int:
    """Return a number written in decimal digits; DataError if it is none or below ``least``."""
    # Python reads no more than some thousand digits, and int() also takes signs, spaces and underscores.
    if not (text.isascii() and text.isdigit() and len(text) <= 18) or int(text) < least:
        raise DataError(f"{where}: {text[:40]!r} is not a whole number of at least {least}")
    return int(text)
