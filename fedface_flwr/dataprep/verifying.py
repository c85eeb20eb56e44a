# SPDX-License-Identifier: Apache-2.0
"""Checks a set's files against checksums, and the set itself in full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedface_flwr.data import recordio
from fedface_flwr.data.recordio import INDEX, PROPERTY, RECORDS
from fedface_flwr.dataprep.pictures import Encoding, prepare
from fedface_flwr.dataprep.records import RecordIOSource
from fedface_flwr.dataprep.source import Source
from fedface_flwr.dataprep.sums import Sum, digests_of
from fedface_flwr.dataprep.work import chunks
from fedface_flwr.errors import DataError
from fedface_flwr.reporting.bars import Reporter


def verify_sums(target: Path, sums: list[Sum], folder: Path, reporter: Reporter) -> Iterator[str]:
    """Yield a text for each file that is missing or not what its checksum says.

    Parameters
    ----------
    target : Path
        The set: a folder, or a file, of which only its own line counts.
    sums : list of Sum
        What the files should be.
    folder : Path
        What the names are relative to, if the files are not in the target's folder.
    reporter : Reporter
        Shows how far it is.

    Raises
    ------
    DataError
        If no line is about the target.
    """
    home = target if target.is_dir() else target.parent
    wanted = [(entry, _place(entry.name, home, folder)) for entry in sums]
    if not target.is_dir():
        own = os.path.realpath(target)
        wanted = [(entry, path) for entry, path in wanted if os.path.realpath(path) == own]
    if not wanted:
        raise DataError(f"{target}: the checksum file has no line for it")
    total = sum(path.stat().st_size for _, path in wanted if os.path.isfile(path))
    with reporter.bar("checksums", total) as advance:
        for entry, path in wanted:
            if not os.path.isfile(path):
                yield f"{path}: missing; the checksum file lists it"
            elif entry.digest not in digests_of(path, entry.algorithms, advance).values():
                yield f"{path}: not the file that the checksum was made of ({' or '.join(entry.algorithms)})"


def _place(name: str, home: Path, folder: Path) -> Path:
    # os.path, unlike Path, takes any name; one that is no name at all (with a zero byte) is the name of no file.
    name = name.replace("\0", "\\0")
    return home / name if os.path.exists(home / name) else folder / name


def unlisted(target: Path, sums: list[Sum], folder: Path) -> list[Path]:
    """Return the RecordIO files of a set that no line is about."""
    listed = {os.path.realpath(_place(entry.name, target, folder)) for entry in sums}
    present = [target / name for name in (RECORDS, INDEX, PROPERTY) if (target / name).is_file()]
    return [path for path in present if os.path.realpath(path) not in listed]


def verify_structure(source: Source, reporter: Reporter) -> Iterator[str]:
    """Yield a text for everything that is wrong with a set: records, pictures, sizes, identity ranges."""
    yield from source.problems
    if isinstance(source, RecordIOSource):
        yield from _declared_side(source)
        yield from _identity_ranges(source)
    sides: dict[int, str] = {}
    looking = chunks(lambda index: _side(source, index), 0, len(source.labels), "pictures", reporter)
    for _, results in looking:
        for result in results:
            if isinstance(result, DataError):
                yield str(result)
            else:
                sides.setdefault(*result)
    if len(sides) > 1:
        yield "pictures differ in size: " + ", ".join(f"{side}x{side} as {where}" for side, where in sides.items())


def _side(source: Source, index: int) -> tuple[int, str]:
    data, where = source.read(index)
    return prepare(data, where, Encoding()).side, where


def _declared_side(source: RecordIOSource) -> Iterator[str]:
    """Compare the size in ``property`` with the first picture; the others are compared with each other."""
    path = source.faces.folder / PROPERTY
    if not path.is_file() or not len(source.labels):
        return
    try:
        _, height, width = map(int, path.read_bytes().split(b","))
        side, where = _side(source, 0)
    except (ValueError, DataError):
        return  # reported already, with the problems or with the pictures
    if (height, width) != (side, side):
        yield f"{path}: declares {width}x{height}, but {where} is {side}x{side}"


def _identity_ranges(source: RecordIOSource) -> Iterator[str]:
    """Compare the range records that follow the pictures of a public pack with the pictures' labels."""
    records = source.faces.folder / RECORDS
    keys, offsets = recordio.read_index(source.faces.folder / INDEX)
    header = _range(records, int(keys[0]), int(offsets[0])) if len(keys) and keys[0] == 0 else None
    if header is None or isinstance(header, str):
        return
    first, past_last = header
    inside = (keys >= first) & (keys < past_last)
    if (lacking := past_last - first - int(inside.sum())) > 0:
        gaps = np.flatnonzero(keys[inside] != np.arange(first, first + int(inside.sum())))
        key = first + (int(gaps[0]) if len(gaps) else int(inside.sum()))
        yield f"{records}: record {key}: missing in {INDEX}, as are {lacking - 1} more identity records"
    pictures, labels, covered = source.faces.keys, source.faces.labels, 0
    for key, offset in zip(keys[inside].tolist(), offsets[inside].tolist(), strict=True):
        found = _range(records, key, offset)
        if isinstance(found, str) or found is None:
            yield found or f"{records}: record {key}: not an identity's range"
            continue
        start, stop = np.searchsorted(pictures, found).tolist()
        covered += max(0, stop - start)
        if start >= stop or labels[start:stop].min() != labels[start:stop].max():
            yield f"{records}: record {key}: the keys {found[0]} to {found[1] - 1} are not of one identity"
    if not lacking and covered != len(pictures):
        yield f"{records}: the identity records cover {covered} of {len(pictures)} pictures"


def _range(records: Path, key: int, offset: int) -> tuple[int, int] | str | None:
    """Return the two bounds that a range record holds, what is wrong with it, or None if it is a picture."""
    where = f"{records}: record {key}"
    try:
        labels, picture = recordio.unpack(recordio.read_record(records, offset, where), where)
    except DataError as error:
        return str(error)
    bounds = [float(label) for label in labels]
    if len(bounds) != 2 or picture:
        return None
    if not all(bound.is_integer() and 0 <= bound <= 1 << 24 for bound in bounds):
        return f"{where}: the bounds {bounds[0]} and {bounds[1]} are no keys"
    return int(bounds[0]), int(bounds[1])
