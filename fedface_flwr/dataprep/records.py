# SPDX-License-Identifier: Apache-2.0
"""A RecordIO set as a source; of a damaged one, what is left."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedface_flwr.data import recordio
from fedface_flwr.data.own_files import IDENTITIES, PROPERTY
from fedface_flwr.data.recordio import INDEX, RECORDS, RecordIOSet
from fedface_flwr.dataprep.lists import lines
from fedface_flwr.dataprep.names import dense
from fedface_flwr.dataprep.record_faults import count_faults, identity_faults
from fedface_flwr.dataprep.source import Integers, file_stamp
from fedface_flwr.errors import DataError


@dataclass
class RecordIOSource:
    """Pictures of a RecordIO set; a ``Source``. Identities are called by the sidecar, or else by their labels."""

    faces: RecordIOSet
    labels: Integers
    identities: Sequence[str]
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kind: str = "recordio"

    @classmethod
    def open(cls, folder: Path) -> RecordIOSource:
        """Check all records' heads; pictures' damaged records are problems, others faults, a damaged index an error."""
        problems, faults = list[str](), list[str]()
        try:
            # Its folder is absolute, but one list of what is wrong names a file in one way only.
            faces = replace(RecordIOSet.open(folder), folder=folder)
            faults += identity_faults(faces) + count_faults(faces, whole=True)
        except DataError as first:
            faces = _salvaged(folder, problems, faults, first)
            faults += identity_faults(faces) + count_faults(faces, whole=not problems)
            if not problems and not faults:
                faults.append(str(first))
        labels, numbers = dense(faces.labels)
        named = _sidecar(folder / IDENTITIES)
        return cls(faces, labels, [named.get(number, str(number)) for number in numbers.tolist()], problems, faults)

    def stamp(self) -> Any:
        """Return the files' places, sizes and times of change."""
        return [file_stamp(path) for path in self.faces.files]

    def key(self, index: int) -> str:
        """Return the record's key."""
        return str(self.faces.keys[index])

    def read(self, index: int) -> tuple[bytes, str]:
        """Return the record's picture."""
        return self.faces.read(index)


def _salvaged(folder: Path, problems: list[str], faults: list[str], first: DataError) -> RecordIOSet:
    """Open a set that cannot be opened as a whole, record by record."""
    records = folder / RECORDS
    keys, offsets = recordio.read_index(folder / INDEX)
    if not records.is_file():
        raise first
    try:
        recordio.read_property(folder / PROPERTY)
    except DataError as error:
        faults.append(str(error))
    keys, offsets, with_ranges = _pictures(records, keys, offsets, faults)
    kept, labels = array("q"), array("q")
    for row, (key, offset) in enumerate(zip(keys.tolist(), offsets.tolist(), strict=True)):
        try:
            label = _label(records, offset, f"{records}: record {key}", with_ranges)
        except DataError as error:
            problems.append(str(error))
            continue
        if label is not None:
            labels.append(label)
            kept.append(row)
    if not kept:
        raise first
    rows, found = np.frombuffer(kept, dtype=np.int64), np.frombuffer(labels, dtype=np.int64)
    return RecordIOSet(folder.absolute().name, int(found.max()) + 1, found, folder, keys[rows], offsets[rows])


def _pictures(records: Path, keys: Integers, offsets: Integers, faults: list[str]) -> tuple[Integers, Integers, bool]:
    """Leave out the header and identity records; with a damaged header, tell that the latter are still among them."""
    try:
        if len(keys) and 0 <= offsets[0] <= records.stat().st_size - 8:
            return *recordio.without_header(records, keys, offsets), False
    except DataError as error:
        faults.append(str(error))
        return keys[keys != 0], offsets[keys != 0], True
    return keys, offsets, False


def _label(records: Path, offset: int, where: str, with_ranges: bool) -> int | None:
    """Return a picture's label, or None if the record may be, and is, an identity's range."""
    own, picture = recordio.unpack(recordio.read_record(records, offset, where), where)
    if with_ranges and len(own) == 2 and not picture:
        return None
    if not picture:
        raise DataError(f"{where}: holds no image")
    label = float(own[0])
    if not (label.is_integer() and 0 <= label <= 1 << 24):
        raise DataError(f"{where}: its label is not an identity's number (a whole number from 0)")
    return int(label)


def _sidecar(path: Path) -> dict[int, str]:
    named: dict[int, str] = {}
    if not path.is_file():
        return named
    for number, line in lines(path):
        label, tab, name = line.partition("\t")
        if not tab or not (label.isascii() and label.isdigit() and len(label) < 19) or not name:
            raise DataError(f"{path}: line {number} is not 'label<TAB>name'; remove the file or write it anew")
        named[int(label)] = name
    return named
