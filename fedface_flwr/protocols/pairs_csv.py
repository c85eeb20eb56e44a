# SPDX-License-Identifier: Apache-2.0
"""Pairs of one's own, as a CSV table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_set import (
    CONSECUTIVE,
    FOLDS,
    GIVEN,
    Album,
    Pairs,
    consecutive,
    require_unasked,
    text_of,
    whole_number,
)

_COLUMNS = ("left", "right", "same")
_SAME = {"1": True, "true": True, "0": False, "false": False}


def read_csv_pairs(path: Path, images: Path, folds: int | None) -> Pairs:
    """Read a table with columns ``left``, ``right``, ``same`` and perhaps ``fold``, by name, in any order.

    Parameters
    ----------
    path : Path
        The table, in UTF-8, with a header.
    images : Path
        Folder that the pictures' paths are against.
    folds : int or None
        How many consecutive folds the pairs make where there is no column ``fold``. With one it must be None: a fold
        is then what has the same whole number in it.

    Raises
    ------
    DataError
        If the table has not these columns, a row is not of this form, or a picture is not there.
    """
    album, marks = Album(path), list[int]()
    for number, row in _rows(path):
        where = f"line {number}"
        same = _SAME.get(row["same"].strip().lower())
        if same is None:
            raise DataError(f"{path}: {where}: same is {row['same'][:40]!r}; it must be 1, 0, true or false")
        if not row["left"] or not row["right"]:
            raise DataError(f"{path}: {where}: a picture is not named")
        album.add(images / row["left"], images / row["right"], same, where)
        if "fold" in row:
            marks.append(whole_number(row["fold"].strip(), 0, f"{path}: {where}: fold"))
    if not album.same:
        raise DataError(f"{path}: the table has no pairs")
    if marks:
        require_unasked(path, folds)
        return album.pairs(np.unique(marks, return_inverse=True)[1].astype(np.int64).ravel(), GIVEN)
    return album.pairs(consecutive(path, len(album.same), FOLDS if folds is None else folds), CONSECUTIVE)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""), strict=True)
    try:
        lacking = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
        if lacking:
            raise DataError(f"{path}: no column {' or '.join(lacking)}; its first line must name left, right and same")
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{path}: line {reader.line_num}: not as many fields as the first line has columns")
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: not CSV ({error})") from error
