# SPDX-License-Identifier: Apache-2.0
"""From raw pictures and their five points to aligned faces: a tree of JPEG files or a RecordIO set."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedface_flwr.data.alignment import align
from fedface_flwr.data.images import decode_photo
from fedface_flwr.data.own_files import BROKEN
from fedface_flwr.dataprep.building import Builder, Plan, more, write_broken
from fedface_flwr.dataprep.folders import read_file
from fedface_flwr.dataprep.lists import ListSource
from fedface_flwr.dataprep.names import Identities, first_repeated
from fedface_flwr.dataprep.pictures import Prepared, jpeg
from fedface_flwr.dataprep.points import Points, read_points
from fedface_flwr.dataprep.source import Integers, file_stamp
from fedface_flwr.dataprep.staging import Staging, made_of, staging, write_origin
from fedface_flwr.dataprep.work import chunks
from fedface_flwr.errors import DataError
from fedface_flwr.reporting.bars import Reporter
from fedface_flwr.wording import numbered

TARGETS = ("folder", "recordio")

_REMEDY = "without --strict such pictures are left out"


@dataclass(frozen=True)
class Aligned:
    """How many faces were aligned, how many pictures were left out, and whether this was not done before."""

    images: int
    broken: int
    new: bool = True


@dataclass
class RawFaces:
    """Raw pictures with points.

    Attributes
    ----------
    root : Path
        The pictures' folder.
    faces : Points
        Names and points.
    labels : ndarray of int64, shape (n,)
        Identity of each picture.
    identities : sequence of str
        Names by label.
    outputs : sequence of str
        Where each face goes in a tree.
    """

    root: Path
    faces: Points
    labels: Integers
    identities: Sequence[str]
    outputs: Sequence[str]
    stamp: list[Any] = field(default_factory=list)

    @classmethod
    def open(cls, root: Path, points: Path, identities: Path | None) -> RawFaces:
        """Read points and identities, without a look at the pictures.

        A picture's identity is what the list of identities says (lines ``name label``), and its place in a tree
        ``IDENTITY/NAME``; without a list the place is its name, and the identity the folder in it.

        Raises
        ------
        DataError
            If a file is malformed, a name leads out of the tree, or two faces would get one place.
        """
        faces = read_points(points)
        listed = None if identities is None else _listed(identities)
        numbered, outputs = Identities(), []
        for name in faces.names:
            _require_inside(points, name)
            folder = PurePosixPath(name).parent if listed is None else PurePosixPath(listed.get(name, ""))
            if listed is not None and name not in listed:
                raise DataError(f"{identities}: no identity for {name}, which has points in {points}")
            _require_inside(points, str(folder))
            numbered.append(str(folder))
            outputs.append(str((folder / PurePosixPath(name).name).with_suffix(".jpg")))
        if (repeated := first_repeated(outputs)) is not None:
            raise DataError(f"{points}: two faces would become {repeated}; give each picture's face once")
        stamp = [str(root.absolute()), file_stamp(points), None if identities is None else file_stamp(identities)]
        return cls(root, faces, *numbered.numbered(), outputs, stamp)

    def face(self, index: int, size: int, quality: int) -> Prepared:
        """Return face ``index`` aligned and encoded; DataError if its picture or points are of no use."""
        data, where = read_file(self.root / self.faces.names[index])
        pixels = decode_photo(data, where)
        try:
            return Prepared(jpeg(align(pixels, self.faces.points[index], size), quality), size)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error


def align_all(
    raw: RawFaces, dest: Path, target: str, size: int, quality: int, *, strict: bool, reporter: Reporter
) -> Aligned:
    """Align every face into ``dest``; pictures that are broken are left out and listed in ``broken.txt``.

    An interrupted call is gone on with by the same call; a finished one is not done again.

    Raises
    ------
    DataError
        If ``dest`` is taken, nothing is left, or, if ``strict``, a picture is broken.
    ConfigError
        If OpenCV is not installed.
    """
    request = {"command": "align", "source": raw.stamp, "target": target, "size": size, "quality": quality}
    request["strict"] = strict
    if (origin := made_of(dest, request)) is not None:
        return Aligned(**origin["result"], new=False)
    with staging(dest, request) as stage:
        if stage.done:
            reporter.note(f"{dest}: going on after {numbered(stage.done, 'picture')}")
        if target == "recordio":
            result = _into_recordio(stage, raw, size, quality, strict, reporter)
        else:
            result = _into_tree(stage, raw, size, quality, strict, reporter)
        write_origin(stage.set, request, {key: value for key, value in result.__dict__.items() if key != "new"})
    return result


def _into_recordio(stage: Staging, raw: RawFaces, size: int, quality: int, strict: bool, reporter: Reporter) -> Aligned:
    if "." in raw.identities:
        raise DataError(f"{raw.root}: pictures outside of identity folders; name their identities by --identities")
    plan = Plan(raw.labels, raw.identities, ["."], np.zeros_like(raw.labels), raw.faces.problems)
    builder = Builder(stage, plan, remedy=_REMEDY if strict else "")
    (built,) = builder.run(lambda index: raw.face(index, size, quality), "aligning", reporter)
    return Aligned(built.images, len(builder.broken()))


def _into_tree(stage: Staging, raw: RawFaces, size: int, quality: int, strict: bool, reporter: Reporter) -> Aligned:
    if strict and raw.faces.problems:
        raise DataError(f"{raw.faces.problems[0]}{more(len(raw.faces.problems))}; {_REMEDY}")
    broken = stage.appender("broken")
    if stage.done == 0:
        broken.writelines(json.dumps(problem).encode() + b"\n" for problem in raw.faces.problems)

    def one(index: int) -> None:
        prepared = raw.face(index, size, quality)
        path = stage.set / raw.outputs[index]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(prepared.data)
            file.flush()
            os.fsync(file.fileno())

    for first, results in chunks(one, stage.done, len(raw.faces.names), "aligning", reporter):
        for error in results:
            if isinstance(error, DataError):
                if strict:
                    raise DataError(f"{error}; {_REMEDY}") from error
                broken.write(json.dumps(str(error)).encode() + b"\n")
        stage.checkpoint(first + len(results))
    stage.checkpoint(len(raw.faces.names))
    texts = [json.loads(line) for line in stage.content("broken").splitlines()]
    images = len(raw.faces.names) - (len(texts) - len(raw.faces.problems))
    if not images:
        stage.forget()
        raise DataError(f"{raw.root}: not one face could be aligned; {texts[0]}")
    if texts:
        write_broken(stage.set / BROKEN, texts)
    return Aligned(images, len(texts))


def _listed(path: Path) -> dict[str, str]:
    source = ListSource.open(path)
    if source.problems:
        raise DataError(source.problems[0])
    labels = source.labels.tolist()
    return {name: source.identities[label] for name, label in zip(source.names, labels, strict=True)}


def _require_inside(path: Path, name: str) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\0" in name:
        raise DataError(f"{path}: {name!r} leads out of the folder; names must be below it")
