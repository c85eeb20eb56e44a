# SPDX-License-Identifier: Apache-2.0
"""Checks a set's files against checksums, and the set itself in full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedface_flwr.data.images import UnalignedError
from fedface_flwr.data.own_files import PROPERTY
from fedface_flwr.data.recordio import INDEX, RECORDS
from fedface_flwr.dataprep.pictures import Encoding, prepare
from fedface_flwr.dataprep.record_faults import size_faults
from fedface_flwr.dataprep.records import RecordIOSource
from fedface_flwr.dataprep.source import Source
from fedface_flwr.dataprep.sums import Sum, digests_of
from fedface_flwr.dataprep.work import chunks
from fedface_flwr.errors import DataError
from fedface_flwr.reporting.bars import Reporter


def verify_sums(target: Path, sums: list[Sum], folder: Path, reporter: Reporter) -> Iterator[str | None]:
    """Yield, for each file that a checksum is of, None, or a text if it is missing or not what the checksum says.

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
    places = " or ".join(dict.fromkeys(str(place) for place in (home, folder)))
    if not wanted:
        raise DataError(f"{target}: the checksum file, whose names are looked for in {places}, has no line for it")
    total = sum(path.stat().st_size for _, path in wanted if os.path.isfile(path))
    with reporter.bar("checksums", total) as advance:
        for entry, path in wanted:
            if not os.path.isfile(path):
                yield f"{path}: missing; the checksum file lists {entry.name}, which is looked for in {places}"
            elif entry.digest not in digests_of(path, entry.algorithms, advance).values():
                yield f"{path}: not the file that the checksum was made of ({' or '.join(entry.algorithms)})"
            else:
                yield None


def _place(name: str, home: Path, folder: Path) -> Path:
    # os.path, unlike Path, takes any name; one that is no name at all (with a zero byte) is the name of no file.
    name = name.replace("\0", "\\0")
    return home / name if os.path.exists(home / name) else folder / name


def unlisted(target: Path, sums: list[Sum], folder: Path) -> list[Path]:
    """Return the RecordIO files of a set that no line is about."""
    listed = {os.path.realpath(_place(entry.name, target, folder)) for entry in sums}
    present = [target / name for name in (RECORDS, INDEX, PROPERTY) if (target / name).is_file()]
    return [path for path in present if os.path.realpath(path) not in listed]


@dataclass(frozen=True)
class Failed:
    """What is wrong with a set.

    Attributes
    ----------
    kind : str
        One of ``KINDS``.
    text : str
        Names file and record.
    """

    kind: str
    text: str


BROKEN, NOT_SQUARE, FAULT = "broken", "not square", "fault"
KINDS = (BROKEN, NOT_SQUARE, FAULT)
"""Pictures that cannot be decoded, those that are whole but no aligned faces, and what else is wrong with a set."""


def verify_structure(source: Source, reporter: Reporter) -> Iterator[Failed]:
    """Yield everything that is wrong with a set: records, pictures, sizes, identity ranges."""
    yield from (Failed(BROKEN, problem) for problem in source.problems)
    yield from (Failed(FAULT, fault) for fault in source.faults)
    sides: dict[int, str] = {}
    looking = chunks(lambda index: _side(source, index), 0, len(source.labels), "pictures", reporter)
    for _, results in looking:
        for result in results:
            if isinstance(result, DataError):
                yield Failed(NOT_SQUARE if isinstance(result, UnalignedError) else BROKEN, str(result))
            else:
                sides.setdefault(*result)
    if isinstance(source, RecordIOSource):
        yield from (Failed(FAULT, fault) for fault in size_faults(source.faces.folder, sides))


def _side(source: Source, index: int) -> tuple[int, str]:
    data, where = source.read(index)
    return prepare(data, where, Encoding()).side, where
