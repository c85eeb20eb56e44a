# SPDX-License-Identifier: Apache-2.0
"""Files of five points a picture."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.dataprep.lists import lines
from fedface_flwr.dataprep.names import Names
from fedface_flwr.errors import DataError

_NUMBERS = 10


@dataclass(frozen=True)
class Points:
    """Pictures with their five points.

    Attributes
    ----------
    names : sequence of str
        Each picture's path, relative to the pictures' folder.
    points : ndarray of float64, shape (n, 5, 2)
        (x, y) in pixels: the eyes, the nose tip and the mouth's corners, the one at the picture's left first.
    problems : list of str
        Lines that are of no use; each text names file and line.
    """

    names: Sequence[str]
    points: npt.NDArray[np.float64]
    problems: list[str]


def read_points(path: Path) -> Points:
    """Read a file of points.

    A line is ``name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5`` and perhaps a score, which is passed over, separated by commas,
    tabs or blanks; names may hold blanks where commas or tabs separate. A first line that counts the pictures and
    a line of column names, as in CelebA's ``list_landmarks_align_celeba.txt``, are passed over.

    Raises
    ------
    DataError
        If the file cannot be read, or has no line of this form.
    """
    names, values, problems = Names(), array("d"), list[str]()
    begun = False
    for number, line in lines(path):
        columns = _columns(line)
        numbers = _numbers(columns[1:])
        if numbers is None:
            if begun or not _is_heading(columns):
                problems.append(f"{path}: line {number}: not a name and five points")
            continue
        begun = True
        if not all(map(math.isfinite, numbers)):
            problems.append(f"{path}: line {number}: {columns[0]} has points that are no finite numbers")
            continue
        names.append(columns[0])
        values.extend(numbers)
    if not len(names):
        raise DataError(f"{path}: no line has a name and five points" + (f"; {problems[0]}" if problems else ""))
    return Points(names, np.frombuffer(values, dtype=np.float64).reshape(-1, 5, 2), problems)


def _columns(line: str) -> list[str]:
    for separator in ("\t", ","):
        if separator in line:
            return [column.strip() for column in line.split(separator)]
    return line.split()


def _numbers(columns: list[str]) -> list[float] | None:
    """Return the ten coordinates, if these are what a line of points has after its name."""
    if len(columns) not in (_NUMBERS, _NUMBERS + 1):
        return None
    try:
        return [float(column) for column in columns][:_NUMBERS]
    except ValueError:
        return None


def _is_heading(columns: list[str]) -> bool:
    """Tell a count of pictures, or column names, from a damaged line of points."""
    if len(columns) == 1:
        return columns[0].isdigit()
    return len(columns) >= _NUMBERS and not any(_is_number(column) for column in columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
