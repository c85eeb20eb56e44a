# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a RecordIO set beside its pictures: the records of identities, and the declared size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fedface_flwr.data import recordio
from fedface_flwr.data.own_files import PROPERTY
from fedface_flwr.data.recordio import INDEX, RECORDS, RecordIOSet
from fedface_flwr.errors import DataError
from fedface_flwr.wording import numbered


def identity_faults(faces: RecordIOSet) -> list[str]:
    """Compare the range records that follow the pictures of a public pack with the pictures' labels."""
    records = faces.folder / RECORDS
    keys, offsets = recordio.read_index(faces.folder / INDEX)
    header = _range(records, int(keys[0]), int(offsets[0])) if len(keys) and keys[0] == 0 else None
    if header is None or isinstance(header, str):
        return []
    first, past_last = header
    if not 1 <= first <= past_last:
        return []  # a damaged header, which is told as the set is opened
    inside = (keys >= first) & (keys < past_last)
    faults = list[str]()
    if (lacking := past_last - first - int(inside.sum())) > 0:
        gaps = np.flatnonzero(keys[inside] != np.arange(first, first + int(inside.sum())))
        key = first + (int(gaps[0]) if len(gaps) else int(inside.sum()))
        faults.append(f"{records}: record {key}: missing in {INDEX}, as are {lacking - 1} more identity records")
    pictures, labels, covered = faces.keys, faces.labels, 0
    for key, offset in zip(keys[inside].tolist(), offsets[inside].tolist(), strict=True):
        found = _range(records, key, offset)
        if isinstance(found, str) or found is None:
            faults.append(found or f"{records}: record {key}: not an identity's range")
            continue
        start, stop = np.searchsorted(pictures, found).tolist()
        covered += max(0, stop - start)
        if start >= stop or labels[start:stop].min() != labels[start:stop].max():
            faults.append(f"{records}: record {key}: the keys {found[0]} to {found[1] - 1} are not of one identity")
    if not faults and covered != len(pictures):
        faults.append(f"{records}: the identity records cover {covered} of {len(pictures)} pictures")
    return faults


def count_faults(faces: RecordIOSet, *, whole: bool) -> list[str]:
    """Compare the number of identities in ``property`` with the labels, which begin at 0.

    Unless the set is ``whole``, identities may have been lost with their pictures, so too many are no fault.
    """
    path = faces.folder / PROPERTY
    try:
        declared = recordio.read_property(path)
    except DataError:
        return []  # told as the set is opened
    needed = int(faces.labels.max()) + 1
    if declared is None or declared == needed or (declared > needed and not whole):
        return []
    return [f"{path}: declares {numbered(declared, 'identity')}, but the labels are those of {needed:,}"]


def size_faults(folder: Path, sides: Mapping[int, str]) -> Iterator[str]:
    """Yield what does not agree of the sizes of a set's pictures, and of the one in ``property``.

    Parameters
    ----------
    folder : Path
        The set.
    sides : mapping of int to str
        The sides, in pixels, that whole pictures have, in order, each with the first picture's file and record.
    """
    path = folder / PROPERTY
    if sides and path.is_file():
        side, where = next(iter(sides.items()))
        try:
            _, height, width = map(int, path.read_bytes().split(b","))
        except ValueError:
            height = width = side  # reported already, as the set was opened
        if (height, width) != (side, side):
            yield f"{path}: declares {width}x{height}, but {where} is {side}x{side}"
    if len(sides) > 1:
        yield "pictures differ in size: " + ", ".join(f"{side}x{side} as {where}" for side, where in sides.items())


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
