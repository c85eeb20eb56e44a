# SPDX-License-Identifier: Apache-2.0
"""The pair lists of Cross-Age LFW and Cross-Pose LFW, ``pairs_CALFW.txt`` and ``pairs_CPLFW.txt``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_set import (
    DEALT,
    FOLDS,
    Album,
    Pairs,
    dealt,
    require_unasked,
    text_lines,
    whole_number,
)
from fedface_flwr.wording import numbered

_FOLDS = 10
TOLD = "given for one person, consecutive for two"


def read_calfw_pairs(path: Path, images: Path, folds: int | None) -> Pairs:
    """Read a list in which two lines make a pair, each ``NAME_0001.jpg TOKEN``, both with one token.

    Token 0 is a pair of two persons, any other a pair of one. Where they go from 1 to 10 they are the folds of the
    pairs of one person; those of the pairs of two are told nowhere and taken as consecutive tenths, in which order the
    list has them. Where there is only token 1, pairs of both kinds are dealt so.

    Parameters
    ----------
    path : Path
        The list.
    images : Path
        Folder of the pictures.
    folds : int or None
        Into how many folds pairs are dealt where the list has no folds, by default 10. In a list with folds it must be
        None.

    Raises
    ------
    DataError
        If a line is not of this form, or a picture is not there.
    """
    lines = text_lines(path)
    if not lines or len(lines) % 2:
        raise DataError(f"{path}: {numbered(len(lines), 'line')} cannot make pairs, which have two each")
    album, tokens = Album(path), list[int]()
    for (number, first), (_, second) in zip(lines[::2], lines[1::2], strict=True):
        where = f"line {number}"
        (left, token), (right, again) = (_entry(line, f"{path}: {where}") for line in (first, second))
        if token != again:
            raise DataError(f"{path}: {where}: the two lines of a pair end in {token} and {again}")
        album.add(images / left, images / right, token > 0, where)
        tokens.append(token)
    marks = np.array(tokens, dtype=np.int64)
    if marks.max() <= 1:
        return album.pairs(dealt(path, album.same, FOLDS if folds is None else folds), DEALT)
    if marks.max() != _FOLDS:
        raise DataError(f"{path}: folds up to {marks.max()} are named; there should be {_FOLDS}")
    require_unasked(path, folds)
    fold = dealt(path, album.same, _FOLDS)
    return album.pairs(np.where(marks > 0, marks - 1, fold), TOLD)


def _entry(line: str, where: str) -> tuple[str, int]:
    fields = line.split()
    if len(fields) != 2:
        raise DataError(f"{where}: {line[:80]!r} is not the name of a picture and a number")
    return fields[0], whole_number(fields[1], 0, where)
