# SPDX-License-Identifier: Apache-2.0
"""RecordIO sets in the exact form of the public face packs, written without mxnet.

Records are appended in any order of identities; their keys are given at the end, so that each identity's
pictures have neighbouring keys, as the range records of the format need.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.own_files import PROPERTY
from fedface_flwr.data.recordio import INDEX, RECORDS
from fedface_flwr.errors import DataError

Integers = npt.NDArray[np.int64]

LARGEST_NUMBER = 1 << 24
"""Largest key that a header can name: header and range records hold keys as float32."""

_MAGIC = struct.pack("<I", 0xCED7230A)
_LONGEST = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = 0, 1, 2, 3
_IR_HEADER = struct.Struct("<IfQQ")
_RANGE = struct.Struct("<2f")
_LABEL_AND_ID = struct.Struct("<fQ")
_LABEL_PLACE = 8 + 4  # bytes from a record's start to its picture's label: two words and the flag


def payload(image: bytes, *, label: int = 0, key: int = 0) -> bytes:
    """Return a picture's payload: flag 0, its label, its key as id, and the encoded picture."""
    return _IR_HEADER.pack(0, label, key, 0) + image


def range_payload(first: int, past_last: int, *, key: int) -> bytes:
    """Return the payload of a header or identity record: flag 2 and the two bounds of a range of keys."""
    return _IR_HEADER.pack(2, 0, key, 0) + _RANGE.pack(first, past_last)


def framed(content: bytes) -> bytes:
    """Return a payload as the file holds it: cut at each aligned magic number, each part padded to 4 bytes.

    Raises
    ------
    DataError
        If the payload has 2^29 bytes or more, whose length has no room in a record.
    """
    if len(content) > _LONGEST:
        raise DataError(f"a record of {len(content)} bytes is too long; RecordIO takes {_LONGEST} at most")
    cuts = _aligned_magic(content)
    if not cuts:
        return _part(_WHOLE, content)
    starts, ends = [0, *(cut + 4 for cut in cuts)], [*cuts, len(content)]
    kinds = [_FIRST, *[_MIDDLE] * (len(cuts) - 1), _LAST]
    return b"".join(_part(kind, content[a:b]) for kind, a, b in zip(kinds, starts, ends, strict=True))


def _aligned_magic(content: bytes) -> list[int]:
    places = []
    at = content.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            places.append(at)
        # The number does not overlap itself, but an unaligned one may hide an aligned one three bytes on.
        at = content.find(_MAGIC, at + (4 if at % 4 == 0 else 1))
    return places


def _part(kind: int, data: bytes) -> bytes:
    return _MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def header_record() -> bytes:
    """Return record 0, whose range :func:`complete` fills in; every ``train.rec`` starts with it."""
    return framed(range_payload(0, 0, key=0))


def grouped_keys(labels: Integers) -> Integers:
    """Return each picture's key, from 1: by identity, and in the given order within one."""
    keys = np.empty(len(labels), dtype=np.int64)
    keys[np.argsort(labels, kind="stable")] = np.arange(1, len(labels) + 1)
    return keys


@dataclass(frozen=True)
class Records:
    """Pictures' records as they were appended.

    Attributes
    ----------
    offsets : ndarray of int64, shape (n,)
        Place of each in the file, in bytes.
    labels, keys : ndarray of int64, shape (n,)
        What they were appended with.
    """

    offsets: Integers
    labels: Integers
    keys: Integers


def complete(folder: Path, end: int, records: Records, labels: Integers, side: int) -> None:
    """Make a set of the header record and the pictures that ``train.rec`` in ``folder`` holds.

    Labels and keys that are not those that the pictures were appended with are put into their records, the
    identities' range records appended, the header filled in and ``train.idx`` and ``property`` written; all of it is
    on the disk on return. A call that was interrupted can be made again.

    Parameters
    ----------
    folder : Path
        Holds ``train.rec``: :func:`header_record`, then :func:`framed` pictures.
    end : int
        Length of those records, in bytes; what follows is cut off.
    records : Records
        The pictures' records.
    labels : ndarray of int64, shape (n,)
        Identity of each picture; every number from 0 to the largest occurs.
    side : int
        Width and height of the pictures, in pixels.

    Raises
    ------
    DataError
        If there is no picture, or more records than float32 can number.
    """
    if not len(labels):
        raise DataError(f"{folder}: there is no picture to make a set of")
    counts = np.bincount(labels)
    past_last = len(labels) + 1 + len(counts)
    if past_last > LARGEST_NUMBER:
        raise DataError(
            f"{folder}: {len(labels)} pictures of {len(counts)} identities need keys above {LARGEST_NUMBER}, "
            "which the format's float32 header cannot tell apart; split the set"
        )
    keys = grouped_keys(labels)
    with (folder / RECORDS).open("r+b") as file:
        file.truncate(end)
        file.write(framed(range_payload(len(labels) + 1, past_last, key=0)))
        file.flush()
        for row in np.flatnonzero((labels != records.labels) | (keys != records.keys)).tolist():
            changed = _LABEL_AND_ID.pack(int(labels[row]), int(keys[row]))
            os.pwrite(file.fileno(), changed, int(records.offsets[row]) + _LABEL_PLACE)
        ranges = _write_ranges(file, counts, end)
        file.flush()
        os.fsync(file.fileno())
    _write_index(folder / INDEX, np.concatenate([[0], records.offsets[np.argsort(keys)], ranges]))
    _write_durably(folder / PROPERTY, f"{len(counts)},{side},{side}\n".encode())


def _write_ranges(file: BinaryIO, counts: npt.NDArray[np.intp], end: int) -> list[int]:
    """Append one record per identity, the range of its pictures' keys; return their places."""
    file.seek(end)
    places = []
    first = 1
    for identity, count in enumerate(counts.tolist()):
        places.append(file.tell())
        key = int(counts.sum()) + 1 + identity
        file.write(framed(range_payload(first, first + count, key=key)))
        first += count
    return places


def _write_index(path: Path, places: Integers) -> None:
    text = io.StringIO()
    for key, place in enumerate(places.tolist()):
        text.write(f"{key}\t{place}\n")
    _write_durably(path, text.getvalue().encode())


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
