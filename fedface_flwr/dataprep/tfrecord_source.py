# SPDX-License-Identifier: Apache-2.0
"""Pictures in TFRecord files as a source: with TFace's index, or with labels in their Examples."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fedface_flwr.dataprep.lists import lines
from fedface_flwr.dataprep.names import Identities
from fedface_flwr.dataprep.source import Integers, SourceOptions, file_stamp
from fedface_flwr.dataprep.tfrecord import Values, parse_example, read_record, record_places
from fedface_flwr.errors import DataError

SUFFIXES = (".tfrecord", ".tfrecords")
_IMAGE_FEATURES = ("image", "image/encoded", "image_raw")
_LABEL_FEATURES = ("label", "image/class/label", "image/label")


@dataclass
class TFRecordSource:
    """Pictures in the Examples of TFRecord shards; a ``Source``.

    Attributes
    ----------
    index : Path or None
        The index file, if there is one.
    shards : list of Path
        The record files.
    shard, offsets : ndarray of int64, shape (n,)
        Where each record is.
    """

    index: Path | None
    shards: list[Path]
    image: str
    shard: Integers
    offsets: Integers
    labels: Integers
    identities: Sequence[str]
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kind: str = "tfrecord"

    @classmethod
    def open(cls, path: Path, options: SourceOptions) -> TFRecordSource:
        """Open an index file, or a folder that has one, or shards whose Examples have labels.

        An index line is TFace's ``name<TAB>shard<TAB>offset<TAB>label`` for ``name/name-SHARD.tfrecord`` below
        the root (by default the index's folder or the one above), or, in a ``NAME.index``,
        ``picture<TAB>shard<TAB>offset`` for ``NAME-SHARD.tfrecord`` beside it, where the folder that the picture
        was in is its identity. SHARD has five digits.

        Raises
        ------
        DataError
            If there is no record.
        """
        places = _Places()
        index = path if path.is_file() and not path.name.endswith(SUFFIXES) else _only_index(path)
        if index is not None:
            _read_index(index, options.root, places)
        else:
            for file in [path] if path.is_file() else _shards(path):
                _scan(file, options, places)
        if not len(places.offsets):
            raise DataError(f"{path}: no records" + (f"; {places.problems[0]}" if places.problems else ""))
        labels, identities = places.identities.numbered()
        shard = np.frombuffer(places.shard, dtype=np.int64)
        offsets = np.frombuffer(places.offsets, dtype=np.int64)
        shards = list(places.shards)
        return cls(index, shards, options.image, shard, offsets, labels, identities, places.problems)

    def stamp(self) -> Any:
        """Return the places, sizes and times of change of index and shards."""
        paths = [*self.shards, *([] if self.index is None else [self.index])]
        return [[file_stamp(path) for path in paths if path.exists()], self.image]

    def key(self, index: int) -> str:
        """Return the shard's name and the record's offset in it."""
        return f"{self.shards[self.shard[index]].name}:{self.offsets[index]}"

    def read(self, index: int) -> tuple[bytes, str]:
        """Return the picture of one Example."""
        path, offset = self.shards[self.shard[index]], int(self.offsets[index])
        where = f"{path}: record at byte {offset}"
        values = _first(_example(path, offset, where), self.image, _IMAGE_FEATURES)
        if not values or not isinstance(values[0], bytes):
            raise DataError(f"{where}: no image in the feature {self.image or ' or '.join(_IMAGE_FEATURES)}")
        return values[0], where


class _Places:
    """What is gathered while an index or shards are read."""

    def __init__(self) -> None:
        self.shards: dict[Path, int] = {}
        self.shard, self.offsets = array("q"), array("q")
        self.identities = Identities()
        self.problems: list[str] = []

    def append(self, path: Path, offset: int, identity: str) -> None:
        self.shard.append(self.shards.setdefault(path, len(self.shards)))
        self.offsets.append(offset)
        self.identities.append(identity)


def _only_index(folder: Path) -> Path | None:
    found = sorted(folder.glob("*.index")) if folder.is_dir() else []
    if len(found) > 1:
        raise DataError(f"{folder}: has {len(found)} .index files; name the one that is meant")
    return found[0] if found else None


def _shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))


def _read_index(index: Path, root: Path | None, places: _Places) -> None:
    sizes: dict[Path, int] = {}
    for number, line in lines(index):
        try:
            path, offset, identity = _index_entry(index, root, line.split("\t"))
            if offset < 0 or not identity:
                raise ValueError("negative or nameless")
        except ValueError:
            places.problems.append(
                f"{index}: line {number} is neither name, shard, offset, label nor picture, shard, offset (by tabs)"
            )
            continue
        if path not in sizes:
            # Unlike Path.is_file, this also says no to a name that is too long.
            sizes[path] = path.stat().st_size if os.path.isfile(path) else -1
        if offset >= sizes[path]:
            what = "there is no file" if sizes[path] < 0 else f"byte {offset} is outside of"
            places.problems.append(f"{index}: line {number}: {what} {path}")
            continue
        places.append(path, offset, identity)


def _index_entry(index: Path, root: Path | None, columns: list[str]) -> tuple[Path, int, str]:
    """Return shard, offset and identity of an index line; ValueError if it is none."""
    if len(columns) == 4:
        name, shard, offset, label = columns
        relative = Path(name, f"{name}-{int(shard):05d}.tfrecord")
        roots = [root] if root is not None else [index.parent, index.parent.parent]
        path = next((place / relative for place in roots if os.path.isfile(place / relative)), roots[0] / relative)
        return path, int(offset), str(int(label))
    if len(columns) == 3:
        picture, shard, offset = columns
        folder = index.parent if root is None else root
        return folder / f"{index.stem}-{int(shard):05d}.tfrecord", int(offset), PurePosixPath(picture).parent.name
    raise ValueError("columns")


def _scan(path: Path, options: SourceOptions, places: _Places) -> None:
    """Read every record's label; the pictures are not kept."""
    try:
        size = path.stat().st_size
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        for offset, problem in record_places(file.fileno(), size, str(path)):
            if problem:
                places.problems.append(problem)
                break
            where = f"{path}: record at byte {offset}"
            try:
                features = parse_example(read_record(file.fileno(), offset, size, where), where)
                places.append(path, offset, _label(features, options.label, where))
            except DataError as error:
                places.problems.append(str(error))


def _label(features: dict[str, Values], name: str, where: str) -> str:
    values = _first(features, name, _LABEL_FEATURES)
    if not values or isinstance(values[0], float):
        raise DataError(f"{where}: no label in the feature {name or ' or '.join(_LABEL_FEATURES)}")
    return values[0].decode("utf-8", "surrogateescape") if isinstance(values[0], bytes) else str(values[0])


def _first(features: dict[str, Values], name: str, usual: tuple[str, ...]) -> Values | None:
    return next((features[key] for key in ((name,) if name else usual) if key in features), None)


def _example(path: Path, offset: int, where: str) -> dict[str, Values]:
    try:
        with path.open("rb") as file:
            content = read_record(file.fileno(), offset, path.stat().st_size, where)
    except OSError as error:
        raise DataError(f"{where}: cannot be read ({error.strerror})") from error
    return parse_example(content, where)
