# SPDX-License-Identifier: Apache-2.0
"""LFW's pair lists: ``pairs.txt`` (View 2, in folds) and ``pairsDevTest.txt`` (View 1, in one set)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_set import (
    DEALT,
    FOLDS,
    GIVEN,
    Album,
    Pairs,
    dealt,
    require_unasked,
    text_lines,
    whole_number,
)
from fedface_flwr.wording import numbered


def read_lfw_pairs(path: Path, images: Path, extension: str, folds: int | None) -> Pairs:
    """Read a pair list over a tree ``NAME/NAME_0001.jpg``.

    The first line holds the number of folds and of pairs of either kind in each, or, for one set, the latter alone. For
    each fold follow its pairs of one person, ``NAME n1 n2``, then those of two, ``NAME1 n1 NAME2 n2``.
    (http://vis-www.cs.umass.edu/lfw/README.txt)

    Parameters
    ----------
    path : Path
        The list.
    images : Path
        The tree's root.
    extension : str
        Ending of the picture files, without dot.
    folds : int or None
        Into how many folds the pairs of one set are dealt, by default 10. In a list with folds it must be None.

    Raises
    ------
    DataError
        If a line is not of this form, lines are missing or too many, or a picture is not there.
    """
    lines = text_lines(path)
    if not lines:
        raise DataError(f"{path}: empty; expected the number of folds and of pairs in its first line")
    given, each = _header(path, lines[0])
    if len(lines) - 1 != 2 * (given or 1) * each:
        expected = 2 * (given or 1) * each
        raise DataError(f"{path}: {numbered(len(lines) - 1, 'pair')} after the first line, which announces {expected}")
    album = Album(path)
    for place, (number, line) in enumerate(lines[1:]):
        where = f"line {number}"
        fields, same = line.split(), place // each % 2 == 0
        if len(fields) != (3 if same else 4):
            form = "NAME n1 n2, a pair of one person" if same else "NAME1 n1 NAME2 n2, a pair of two"
            raise DataError(f"{path}: {where}: {line[:80]!r} is not {form}")
        names, numbers = (fields[:1] * 2, fields[1:]) if same else (fields[::2], fields[1::2])
        left, right = (
            images / name / f"{name}_{whole_number(text, 1, f'{path}: {where}'):04d}.{extension}"
            for name, text in zip(names, numbers, strict=True)
        )
        album.add(left, right, same, where)
    if given:
        require_unasked(path, folds)
        return album.pairs(np.repeat(np.arange(given, dtype=np.int64), 2 * each), GIVEN)
    return album.pairs(dealt(path, album.same, FOLDS if folds is None else folds), DEALT)


def _header(path: Path, line: tuple[int, str]) -> tuple[int, int]:
    """Return the number of folds, 0 for one set, and of pairs of either kind in each."""
    number, text = line
    fields = [whole_number(field, 1, f"{path}: line {number}") for field in text.split()]
    if len(fields) not in (1, 2):
        raise DataError(f"{path}: line {number}: {text[:80]!r} is not the number of folds and of pairs")
    return (fields[0], fields[1]) if len(fields) == 2 else (0, fields[0])
