# SPDX-License-Identifier: Apache-2.0
"""The public meta files of IJB-B and IJB-C, read quickly and strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.templates import Faces, TemplatePairs
from fedface_flwr.wording import numbered

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GALLERIES = {"B": ("S1", "S2"), "C": ("G1", "G2")}
"""The names of each protocol's two galleries, as in the files' names."""

_POINTS = tuple(f"{axis}{number}" for number in range(1, 6) for axis in "xy")


@dataclass(frozen=True)
class FaceList:
    """The faces of a protocol, in the order of its files.

    Attributes
    ----------
    names : list of str
        Names of the loose crops.
    points : ndarray of float64, shape (faces, 5, 2)
        (x, y) of eyes, nose tip and mouth corners in the loose crop.
    faces : Faces
        Template, media and detector score of each.
    """

    names: list[str]
    points: Floats
    faces: Faces


@dataclass(frozen=True)
class Gallery:
    """Templates with the persons they show.

    Attributes
    ----------
    templates, subjects : ndarray of int64, shape (n,)
        Each template once, ascending.
    """

    templates: Ints
    subjects: Ints


def read_faces(meta: Path, protocol: str) -> FaceList:
    """Read ``ijbX_face_tid_mid.txt`` (name, template, media) and ``ijbX_name_5pts_score.txt`` (name, points, score).

    Raises
    ------
    DataError
        If a file cannot be read, a line has other columns, a number is not finite, or the files do not list the same
        faces in the same order.
    """
    listed, pointed = _file(meta, protocol, "face_tid_mid.txt"), _file(meta, protocol, "name_5pts_score.txt")
    members = _columns(listed, {"name": "string", "tid": "int64", "mid": "int64"})
    numbers = _columns(pointed, {"name": "string", **dict.fromkeys(_POINTS, "float64"), "score": "float64"})
    names, points = members["name"], np.stack([numbers[point] for point in _POINTS], axis=1)
    if not len(names):
        raise DataError(f"{listed}: lists no faces")
    if len(names) != len(points):
        raise DataError(f"{pointed}: lists {numbered(len(points), 'face')}, but {listed} lists {len(names)}")
    differing = np.flatnonzero(names != numbers["name"])
    if len(differing):
        line = differing[0]
        raise DataError(f"{pointed}: line {line + 1} is of {numbers['name'][line]}, but {listed} has {names[line]}")
    for line, name in enumerate(names.tolist(), start=1):
        if "\0" in name or name.startswith("/") or ".." in name.split("/"):
            raise DataError(f"{listed}: line {line}: {name!r} is no path within a folder of pictures")
    detector = numbers["score"]
    finite = np.isfinite(points).all(axis=1) & np.isfinite(detector)
    if not finite.all():
        raise DataError(f"{pointed}: line {np.argmin(finite) + 1}: a point or the score is not finite")
    faces = Faces(members["tid"], members["mid"], detector)
    return FaceList(names.tolist(), points.reshape(-1, 5, 2), faces)


def read_pairs(meta: Path, protocol: str, templates: Ints) -> tuple[TemplatePairs, TemplatePairs]:
    """Read ``ijbX_template_pair_label.txt`` (template, template, label).

    Parameters
    ----------
    meta, protocol
        As for :func:`read_faces`.
    templates : ndarray of int64
        The templates that there are, ascending.

    Returns
    -------
    genuine, impostor : TemplatePairs
        The pairs of label 1 and of label 0, as rows of ``templates``.

    Raises
    ------
    DataError
        If the file cannot be read, a line has other columns, a label is neither 0 nor 1, a template has no faces, or
        one kind of pair is missing.
    """
    path = _file(meta, protocol, "template_pair_label.txt")
    columns = _columns(path, {"first": "int32", "second": "int32", "label": "int32"})
    label = columns.pop("label")
    wrong = np.flatnonzero((label != 0) & (label != 1))
    if len(wrong):
        raise DataError(f"{path}: line {wrong[0] + 1}: the label is {label[wrong[0]]}, neither 0 nor 1")
    first, second = (_rows(columns.pop(side), templates, path, "line") for side in ("first", "second"))
    same = label == 1
    if same.all() or not same.any():
        genuine = f"{np.count_nonzero(same)} of {numbered(len(same), 'pair')}"
        raise DataError(f"{path}: {genuine} genuine: nothing can be verified")
    return TemplatePairs.of(first[same], second[same]), TemplatePairs.of(first[~same], second[~same])


def read_gallery(meta: Path, protocol: str, name: str, templates: Ints) -> Gallery:
    """Read ``ijbX_1N_gallery_NAME.csv``, or with ``probe_mixed`` as name ``ijbX_1N_probe_mixed.csv``.

    The first two columns are template and subject; other columns, such as file names, are not looked at. A template
    may be listed once for each of its faces.

    Parameters
    ----------
    meta, protocol, templates
        As for :func:`read_pairs`.
    name : str
        ``G1``, ``G2``, ``S1``, ``S2`` or ``probe_mixed``.

    Raises
    ------
    DataError
        If the file cannot be read, has no header line or no record, a template has no faces or two subjects.
    """
    part = name if name.startswith("probe") else f"gallery_{name}"
    path = _file(meta, protocol, f"1N_{part}.csv")
    columns = _columns(path, {"f0": "int64", "f1": "int64"}, header=True)
    if not len(columns["f0"]):
        raise DataError(f"{path}: lists no template")
    _rows(columns["f0"], templates, path, "record")
    couples = np.unique(np.stack([columns["f0"], columns["f1"]], axis=1), axis=0)
    twice = np.flatnonzero(np.diff(couples[:, 0]) == 0)
    if len(twice):
        template, subject = couples[twice[0]]
        raise DataError(f"{path}: template {template} is of subject {subject} and of {couples[twice[0] + 1, 1]}")
    return Gallery(couples[:, 0], couples[:, 1])


def required_files(meta: Path, protocol: str, tasks: tuple[str, ...]) -> list[Path]:
    """Return the files that tasks ``1:1`` and ``1:N`` need; ConfigError if one is not there."""
    names = ["face_tid_mid.txt", "name_5pts_score.txt"]
    if "1:1" in tasks:
        names.append("template_pair_label.txt")
    if "1:N" in tasks:
        names += [f"1N_gallery_{gallery}.csv" for gallery in GALLERIES[protocol]] + ["1N_probe_mixed.csv"]
    paths = [_file(meta, protocol, name) for name in names]
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"there is no {path}, one of the public meta files of IJB-{protocol}")
    return paths


def _file(meta: Path, protocol: str, rest: str) -> Path:
    return meta / f"ijb{protocol.lower()}_{rest}"


def _rows(ids: npt.NDArray[Any], templates: Ints, path: Path, unit: str) -> Ints:
    """Return the rows of ``templates`` that have these ids."""
    rows = np.minimum(np.searchsorted(templates, ids), len(templates) - 1)
    unknown = templates[rows] != ids
    if unknown.any():
        place = int(np.argmax(unknown))
        raise DataError(f"{path}: {unit} {place + 1}: template {ids[place]} has no face in the list of faces")
    return rows


def _columns(path: Path, types: Mapping[str, str], *, header: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Read a table whose columns have these types and names; with ``header`` only the first ones of a CSV file."""
    try:
        import pyarrow
        from pyarrow import csv
    except ImportError as error:
        raise ConfigError("reading IJB's meta files needs pyarrow; install fedface-flwr[tools]") from error
    read = {"autogenerate_column_names": True, "skip_rows": 1} if header else {"column_names": list(types)}
    convert = csv.ConvertOptions(
        column_types={name: getattr(pyarrow, kind)() for name, kind in types.items()},
        include_columns=list(types),
        null_values=[],
    )
    parse = csv.ParseOptions(delimiter="," if header else " ", quote_char='"' if header else False)
    try:
        if header:
            _check_header(path)
        # With more threads the errors do not say the line.
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(use_threads=False, **read),
            parse_options=parse,
            convert_options=convert,
        )
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: {' '.join(str(error).split())[:300]}") from error
    return {name: table[name].to_numpy() for name in types}


def _check_header(path: Path) -> None:
    """Refuse a file whose first line is a record, which would be lost."""
    with path.open("rb") as file:
        first = file.readline(1 << 16)
    if first.split(b",")[0].strip().isdigit():
        raise DataError(f"{path}: line 1 is a record, where the names of the columns belong")
