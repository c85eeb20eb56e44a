# SPDX-License-Identifier: Apache-2.0
"""Builds a verification pack (``.bin``) from pairs of picture files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedface_flwr.dataprep.pictures import Encoding, Prepared, prepare
from fedface_flwr.dataprep.staging import folders_above
from fedface_flwr.dataprep.work import chunks
from fedface_flwr.errors import DataError
from fedface_flwr.files import replacing
from fedface_flwr.protocols.pairs_csv import read_csv_pairs
from fedface_flwr.protocols.pairs_lfw import read_lfw_pairs
from fedface_flwr.protocols.pairs_list import read_list_pairs
from fedface_flwr.protocols.pairs_set import FOLDS, Pairs, text_lines
from fedface_flwr.reporting.bars import Reporter
from fedface_flwr.wording import numbered

FORMATS = ("csv", "lfw", "list")

_BATCH = 1000  # items that a pickle appends at a time, as Python's own writer does

# Opcodes of pickle protocol 3, which Python 3 reads without being told an encoding.
_PROTOCOL, _LIST, _MARK, _APPENDS, _PAIR, _STOP = b"\x80\x03", b"]", b"(", b"e", b"\x86", b"."
_SHORT_BYTES, _BYTES, _TRUE, _FALSE = b"C", b"B", b"\x88", b"\x89"


@dataclass(frozen=True)
class Packed:
    """What a pack holds: pairs, how many of them match, and the pictures' side in pixels."""

    pairs: int
    matching: int
    side: int


def read_pairs(path: Path, images: Path, kind: str = "", extension: str = "jpg") -> Pairs:
    """Read a list of pairs whose pictures lie below ``images``.

    Parameters
    ----------
    path : Path
        ``csv``: columns left, right, same and perhaps fold; ``lfw``: a pairs.txt; ``list``: lines ``0|1 LEFT RIGHT``.
    images : Path
        Folder of the pictures.
    kind : str
        One of ``FORMATS``; empty: told by the first line.
    extension : str
        Ending of the pictures' names; ``lfw`` only, whose lists have none.

    Raises
    ------
    DataError
        If the list is malformed or a picture is not there.
    """
    kind = kind or _told(path)
    if kind == "csv":
        return read_csv_pairs(path, images, None)
    if kind == "lfw":
        return read_lfw_pairs(path, images, extension, None)
    return read_list_pairs(path, images, FOLDS)


def write_pack(pairs: Pairs, dest: Path, encoding: Encoding, reporter: Reporter) -> Packed:
    """Write pairs, fold after fold and else in the given order, whole or not at all.

    The file is what ``pickle.dump((images, same))`` would write, but made a picture at a time.

    Raises
    ------
    DataError
        If ``dest`` exists, a picture is broken or of another size than those before it, or all pairs are of one kind.
    """
    if dest.exists():
        raise DataError(f"{dest}: exists already; choose another destination or remove it")
    if pairs.same.all() or not pairs.same.any():
        raise DataError(f"{dest}: {numbered(len(pairs.same), 'pair')}, all of one kind, so nothing could be verified")
    order = np.argsort(pairs.fold, kind="stable")
    pictures = np.stack([pairs.left[order], pairs.right[order]], axis=1).ravel()
    same = pairs.same[order].tolist()

    def one(index: int) -> Prepared:
        return prepare(*pairs.pictures.read(int(pictures[index])), encoding)

    sides: list[int] = []
    with folders_above(dest), replacing(dest) as temporary, temporary.open("wb") as file:
        file.write(_PROTOCOL)
        file.writelines(_pickled_list(_encoded(one, len(pictures), sides, reporter)))
        file.writelines(_pickled_list(_TRUE if value else _FALSE for value in same))
        file.write(_PAIR + _STOP)
    return Packed(len(same), sum(same), sides[0])


def _told(path: Path) -> str:
    lines = text_lines(path)
    if not lines:
        raise DataError(f"{path}: empty; expected a list of pairs")
    first = lines[0][1]
    if "," in first:
        return "csv"
    return "lfw" if all(field.isdigit() for field in first.split()) else "list"


def _encoded(one: Callable[[int], Prepared], count: int, sides: list[int], reporter: Reporter) -> Iterator[bytes]:
    """Yield each picture as a pickled byte string; all must have the side that is put into ``sides``."""
    for first, results in chunks(one, 0, count, "packing", reporter):
        for index, result in enumerate(results, first):
            if isinstance(result, DataError):
                raise result
            if not sides:
                sides.append(result.side)
            if result.side != sides[0]:
                raise DataError(
                    f"pair {index // 2}: a picture of side {result.side}, those before it {sides[0]}: give --size"
                )
            size = len(result.data)
            head = _SHORT_BYTES + bytes([size]) if size < 256 else _BYTES + struct.pack("<I", size)
            yield head + result.data


def _pickled_list(items: Iterator[bytes]) -> Iterator[bytes]:
    yield _LIST
    batch = list[bytes]()
    for item in items:
        batch.append(item)
        if len(batch) == _BATCH:
            yield _MARK + b"".join(batch) + _APPENDS
            batch.clear()
    if batch:
        yield _MARK + b"".join(batch) + _APPENDS
