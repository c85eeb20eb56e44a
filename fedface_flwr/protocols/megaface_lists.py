# SPDX-License-Identifier: Apache-2.0
"""MegaFace's lists: of probes, of distractors, and of the faces in both that are noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_set import text_lines, text_of

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FaceList:
    """Faces by name.

    Attributes
    ----------
    source : Path
        The list's file.
    names : sequence of str
        Paths of the faces, relative to whatever folder their pictures or features are in, each once.
    identities : sequence of str, optional
        Person of each face, if the list says.
    """

    source: Path
    names: Sequence[str]
    identities: Sequence[str] | None

    def where(self, index: int) -> str:
        """Return the text that names an entry in an error."""
        return f"{self.source}: entry {index} ({self.names[index]})"


def read_list(path: Path) -> FaceList:
    """Read a list of faces.

    Either of the devkit's JSON lists, ``{"path": [...]}`` or ``{"id": [...], "path": [...]}``, or a text file with one
    path a line, as InsightFace's ``facescrub_lst`` and ``megaface_lst``.

    Raises
    ------
    DataError
        If the file is neither, is empty, or has a path twice, or one that leads out of the folder it is against.
    """
    text = text_of(path)
    names, identities = _from_json(path, text) if text.lstrip().startswith("{") else (None, None)
    if names is None:
        names = [line for _, line in text_lines(path)]
    if not names:
        raise DataError(f"{path}: lists no faces")
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name.startswith("/") or ".." in name.split("/") or not name.isprintable() or not name.strip("./"):
            raise DataError(f"{path}: entry {index}: {name[:80]!r} is no path below a folder")
        if name in seen:
            raise DataError(f"{path}: entry {index}: {name[:80]!r} is there twice")
        seen.add(name)
    return FaceList(path, names, identities)


def _from_json(path: Path, text: str) -> tuple[list[str], list[str] | None]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON list of faces ({str(error)[:120]})") from error
    names, identities = content.get("path"), content.get("id")
    if not _texts(names):
        raise DataError(f'{path}: "path" must be a list of texts')
    if identities is None:
        return names, None
    if not isinstance(identities, list) or not all(type(entry) in (str, int) for entry in identities):
        raise DataError(f'{path}: "id" must be a list of texts or whole numbers')
    if len(identities) != len(names):
        raise DataError(f'{path}: {len(names)} entries of "path" but {len(identities)} of "id"')
    return names, [str(entry) for entry in identities]


def _texts(entries: object) -> bool:
    return isinstance(entries, list) and all(isinstance(entry, str) for entry in entries)


def identities_of(probes: FaceList) -> npt.NDArray[np.int64]:
    """Return a number for each probe's person: as the list says, or else by the folder that its face is in.

    Raises
    ------
    DataError
        If the list says no persons and a face is in no folder.
    """
    persons = probes.identities
    if persons is None:
        for index, name in enumerate(probes.names):
            if "/" not in name:
                raise DataError(f"{probes.where(index)}: is in no folder, whose name would be the person's")
        persons = [PurePosixPath(name).parent.name for name in probes.names]
    # Numbers, since an array of texts takes for each the room of the longest.
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(person, len(codes)) for person in persons], dtype=np.int64)


def probe_noise(path: Path, probes: FaceList) -> Mask:
    """Return which probes InsightFace's ``facescrub_noises.txt`` names.

    As its ``remove_noises.py`` reads it: lines that begin with # are comments, and a line is the file name of a face,
    without its folder.
    """
    return _listed(_noise_lines(path), probes, lambda name: PurePosixPath(name).name)


def distractor_noise(path: Path, distractors: FaceList) -> Mask:
    """Return which distractors InsightFace's ``megaface_noises.txt`` names.

    As its ``remove_noises.py`` reads it: lines that begin with # are comments, and the second of a line's fields
    between tabs, or its only one, is a face's path, of which the last three parts count.
    """
    fields = [line.split("\t") for line in _noise_lines(path)]
    listed = [parts[1] if len(parts) > 1 else parts[0] for parts in fields]
    return _listed(listed, distractors, lambda name: "/".join(name.split("/")[-3:]))


def _noise_lines(path: Path) -> list[str]:
    return [line for _, line in text_lines(path) if not line.startswith("#")]


def _listed(noises: Sequence[str], faces: FaceList, key: Callable[[str], str]) -> Mask:
    wanted = set(noises)
    return np.array([key(name) in wanted for name in faces.names], dtype=np.bool_)


def rows_of(subset: FaceList, faces: FaceList) -> npt.NDArray[np.int64]:
    """Return where the faces of one list are in another; DataError if one is not in it."""
    places = {name: row for row, name in enumerate(faces.names)}
    rows = [places.get(name, -1) for name in subset.names]
    if -1 in rows:
        raise DataError(f"{subset.where(rows.index(-1))}: is not in {faces.source}")
    return np.array(rows, dtype=np.int64)
