# SPDX-License-Identifier: Apache-2.0
"""MXNet RecordIO sets (``train.rec``, ``train.idx``, ``property``), read without mxnet.

A record is the magic number, a word whose upper 3 bits say which part of a record it is (0 whole, 1 first,
2 middle, 3 last) and whose lower 29 bits are the length, then the payload, padded to 4 bytes. A payload
that holds the aligned magic number itself is cut there into parts, without it. A picture's payload starts
with ``flag, label, id, id2``; a flag above zero is the number of float32 labels that follow.

The public face packs (MS1M, Glint, VGGFace2) start with a header record: two labels, no picture, which are
the first key and one past the last key of the records that follow the pictures, one per identity.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.own_files import PROPERTY
from fedface_flwr.errors import DataError

RECORDS, INDEX = "train.rec", "train.idx"

_MAGIC = 0xCED7230A
_WHOLE, _FIRST, _LAST = 0, 1, 3
_PART = struct.Struct("<II")
_IR_HEADER = struct.Struct("<IfQQ")
_LARGEST_LABEL = 1 << 24  # above it float32 no longer tells neighbours apart
_CHUNK = 1 << 16  # records whose heads are looked at together

# A record's first bytes: both words, the picture's header, and the first of the labels that may follow.
_HEAD = np.dtype(
    [
        ("magic", "<u4"),
        ("word", "<u4"),
        ("flag", "<u4"),
        ("label", "<f4"),
        ("ids", "<u8", 2),
        ("array", "<f4"),
    ]
)

Integers = npt.NDArray[np.int64]


@dataclass
class RecordIOSet:
    """Encoded pictures in a RecordIO file; an ``EncodedSet``.

    Attributes
    ----------
    name : str
        The folder's name.
    num_identities : int
        The first number in ``property``, or without that file the largest label plus one.
    labels : ndarray of int64, shape (n,)
        Identity of each picture: its label, or the first of its labels.
    folder : Path
        Where the files are.
    keys, offsets : ndarray of int64, shape (n,)
        The index: each picture's key, ascending, and its place in the file in bytes.
    """

    name: str
    num_identities: int
    labels: Integers
    folder: Path
    keys: Integers
    offsets: Integers

    @classmethod
    def open(cls, folder: Path) -> RecordIOSet:
        """Check every record's head and label, without decoding a picture.

        Raises
        ------
        DataError
            If a file is missing or empty, an index line is malformed or points outside of the records, a
            record is damaged or truncated, or a label is no identity; the text names file and record.
        """
        records = folder / RECORDS
        keys, offsets = read_index(folder / INDEX)
        declared = read_property(folder / PROPERTY)
        size = _size(records)
        _require(offsets <= size - _PART.size, keys, records, f"the index points outside of its {size} bytes")
        keys, offsets = without_header(records, keys, offsets)
        labels = _read_labels(records, keys, offsets)
        num_identities = int(labels.max()) + 1 if declared is None else declared
        outside = f"label is not below the {num_identities} identities that {PROPERTY} declares"
        _require(labels < num_identities, keys, records, outside)
        return cls(folder.absolute().name, num_identities, labels, folder.absolute(), keys, offsets)

    @property
    def files(self) -> Sequence[Path]:
        """The files that are there of ``train.rec``, ``train.idx`` and ``property``."""
        return [path for name in (RECORDS, INDEX, PROPERTY) if (path := self.folder / name).exists()]

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``, encoded, and its file and record; DataError if the record is damaged."""
        records = self.folder / RECORDS
        where = f"{records}: record {self.keys[index]}"
        return unpack(read_record(records, int(self.offsets[index]), where), where)[1], where


def _require(valid: npt.NDArray[np.bool_], keys: Integers, path: Path, problem: str) -> None:
    """Raise DataError for the first record that is not valid."""
    if not valid.all():
        raise DataError(f"{path}: record {keys[np.argmin(valid)]}: {problem}")


def _size(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path}: no such file; a RecordIO set needs {RECORDS} and {INDEX}")
    return path.stat().st_size


def read_index(path: Path) -> tuple[Integers, Integers]:
    """Return the index's keys, ascending, and their offsets."""
    if _size(path) == 0:
        raise DataError(f"{path}: the index is empty, so the set holds no images")
    keys, offsets = array("q"), array("q")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                key, offset = map(int, line.split())
                if key < 0 or offset < 0:
                    raise ValueError("negative")
                keys.append(key)
                offsets.append(offset)
            except (ValueError, OverflowError) as error:
                raise DataError(f"{path}: line {number} is not 'key<TAB>offset'; make the index anew") from error
    unsorted = np.frombuffer(keys, dtype=np.int64)
    order = np.argsort(unsorted, kind="stable")
    ascending = unsorted[order]
    repeated = ascending[1:] == ascending[:-1]
    if repeated.any():
        raise DataError(f"{path}: key {ascending[1:][repeated][0]} occurs more than once")
    return ascending, np.frombuffer(offsets, dtype=np.int64)[order]


def read_property(path: Path) -> int | None:
    """Return the number of identities that ``property`` (identities,height,width) declares, if it exists."""
    if not path.exists():
        return None
    try:
        identities, height, width = map(int, path.read_bytes().split(b","))
        if min(identities, height, width) < 1 or identities > _LARGEST_LABEL + 1:
            raise ValueError("not positive, or too many to be labels")
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path}: not 'identities,height,width' in positive whole numbers up to {_LARGEST_LABEL + 1}"
        ) from error
    return identities


def read_record(path: Path, offset: int, where: str) -> bytes:
    """Return one record's payload, its parts put together again.

    The file is opened for this one read, at a position of its own: safe in threads and after a fork.
    """
    size = _size(path)
    parts: list[bytes] = []
    with path.open("rb") as file:
        while True:
            head = os.pread(file.fileno(), _PART.size, offset) if offset < size else b""
            if len(head) < _PART.size:
                raise DataError(f"{where}: truncated, the file ends inside of it")
            magic, word = _PART.unpack(head)
            kind, length = word >> 29, word & 0x1FFFFFFF
            if magic != _MAGIC:
                raise DataError(f"{where}: no record starts at byte {offset} (wrong magic number)")
            if kind > _LAST or (kind in (_WHOLE, _FIRST)) == bool(parts):
                raise DataError(f"{where}: part of kind {kind} at byte {offset} is out of order")
            offset += _PART.size
            if offset + length > size:
                raise DataError(f"{where}: truncated, the file ends inside of it")
            parts.append(os.pread(file.fileno(), length, offset))
            if kind in (_WHOLE, _LAST):
                return _MAGIC.to_bytes(4, "little").join(parts)
            offset += length + -length % 4


def unpack(payload: bytes, where: str) -> tuple[npt.NDArray[np.float32], bytes]:
    """Split a payload into its labels, at least one, and its picture."""
    if len(payload) < _IR_HEADER.size:
        raise DataError(f"{where}: {len(payload)} bytes are too few for a picture's header")
    flag, label, _, _ = _IR_HEADER.unpack_from(payload)
    start = _IR_HEADER.size + 4 * flag
    if start > len(payload):
        raise DataError(f"{where}: its {flag} labels do not fit into its {len(payload)} bytes")
    if flag == 0:
        return np.array([label], dtype=np.float32), payload[start:]
    return np.frombuffer(payload, dtype="<f4", count=flag, offset=_IR_HEADER.size), payload[start:]


def without_header(path: Path, keys: Integers, offsets: Integers) -> tuple[Integers, Integers]:
    """Keep the pictures only, where record 0 is the header of the public face packs."""
    if keys[0] != 0:
        return keys, offsets
    where = f"{path}: record 0"
    labels, picture = unpack(read_record(path, int(offsets[0]), where), where)
    # A picture may have two labels too; only the header has them without a picture.
    if len(labels) != 2 or picture:
        return keys, offsets
    first, past_last = map(float, labels)
    if not (first.is_integer() and past_last.is_integer() and 1 <= first <= past_last):
        raise DataError(f"{where}: the header's identity records, {first} to {past_last}, are no range")
    if first == 1:
        raise DataError(f"{path}: the set holds no images")
    listed = keys == np.arange(len(keys))
    known = len(keys) if listed.all() else int(np.argmin(listed))
    if known < first:
        raise DataError(f"{path.with_name(INDEX)}: record {known} is missing; the header has {int(first) - 1}")
    return keys[1 : int(first)], offsets[1 : int(first)]


def _read_labels(path: Path, keys: Integers, offsets: Integers) -> Integers:
    """Return each record's identity after checking the records' heads."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    labels = np.concatenate(
        [
            _chunk_labels(path, data, keys[start : start + _CHUNK], offsets[start : start + _CHUNK])
            for start in range(0, len(keys), _CHUNK)
        ]
    )
    whole = (labels >= 0) & (labels <= _LARGEST_LABEL) & (labels == np.floor(labels))
    _require(whole, keys, path, "its label is not an identity's number (a whole number from 0)")
    return labels.astype(np.int64)


def _chunk_labels(
    path: Path, data: npt.NDArray[np.uint8], keys: Integers, offsets: Integers
) -> npt.NDArray[np.float32]:
    places = np.minimum(offsets[:, None] + np.arange(_HEAD.itemsize), len(data) - 1)
    heads = np.ascontiguousarray(data[places]).view(_HEAD)[:, 0]
    kind, length = heads["word"] >> 29, (heads["word"] & 0x1FFFFFFF).astype(np.int64)
    magic = heads["magic"] == _MAGIC
    _require(magic, keys, path, "no record starts where the index says (wrong magic number)")
    inside = offsets + _PART.size + length <= len(data)
    _require(inside, keys, path, "truncated, the file ends inside of it")
    labels = np.where(heads["flag"] > 0, heads["array"], heads["label"])
    start = _IR_HEADER.size + 4 * heads["flag"].astype(np.int64)
    # What is not plainly one whole record with a picture is read in full, which says what is wrong with it.
    for row in np.flatnonzero((kind != _WHOLE) | (start >= length)):
        where = f"{path}: record {keys[row]}"
        own, picture = unpack(read_record(path, int(offsets[row]), where), where)
        if not picture:
            raise DataError(f"{where}: holds no image")
        labels[row] = own[0]
    return labels
