# SPDX-License-Identifier: Apache-2.0
"""Plain lists of pairs, such as ``agedb_30_ann.txt``: a label and two pictures a line."""

from __future__ import annotations

from pathlib import Path

from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_set import CONSECUTIVE, Album, Pairs, consecutive, text_lines


def read_list_pairs(path: Path, images: Path, folds: int) -> Pairs:
    """Read lines ``1 LEFT RIGHT`` (one person) and ``0 LEFT RIGHT`` (two) in the order of consecutive folds.

    Parameters
    ----------
    path : Path
        The list.
    images : Path
        Folder that the pictures' paths, which have no spaces, are against.
    folds : int
        How many folds there are.

    Raises
    ------
    DataError
        If a line is not of this form, a picture is not there, or there are fewer pairs than folds.
    """
    album = Album(path)
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) != 3 or fields[0] not in ("0", "1"):
            raise DataError(f"{path}: line {number}: {line[:80]!r} is not 0 or 1 and two paths")
        album.add(images / fields[1], images / fields[2], fields[0] == "1", f"line {number}")
    return album.pairs(consecutive(path, len(album.same), folds), CONSECUTIVE)
