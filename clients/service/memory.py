# SPDX-License-Identifier: Apache-2.0
"""Arrays that two processes share: written once into an anonymous file, mapped by the receiver without a copy.

The file has no name: it is gone when the last process that holds it ends, however it ends. It is sealed before it is
handed over, so that neither its size nor its bytes can change under the receiver, who would die of the one and be
fooled by the other.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ProtocolError

Array = npt.NDArray[Any]
Places = list[dict[str, Any]]

KINDS = {np.dtype(code).str: np.dtype(code) for code in "?bBhHiIlLefd"}
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
MOST_ARRAYS, MOST_AXES = 64, 8
# What vector instructions like, and more than any kind of number needs.
ALIGNMENT = 64


def write(arrays: Sequence[Array]) -> tuple[int, Places]:
    """Write arrays into a new anonymous file.

    Returns
    -------
    tuple of int and Places
        The sealed file's descriptor, which the caller closes, and what :func:`read` needs to know of each array.

    Raises
    ------
    ProtocolError
        If there are too many arrays, or one is not of plain numbers.
    """
    if len(arrays) > MOST_ARRAYS:
        raise ProtocolError(f"{len(arrays)} arrays for the silo service; it takes {MOST_ARRAYS} at most")
    for array in arrays:
        if array.dtype.str not in KINDS or array.ndim > MOST_AXES:
            raise ProtocolError(f"an array {array.dtype}{list(array.shape)} cannot be handed to the silo service")
    offsets, size = _offsets([array.nbytes for array in arrays])
    file = os.memfd_create("fedface-arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        for array, offset in zip(arrays, offsets, strict=True):
            _write_at(file, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, offset)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(file)
        raise
    places = zip(arrays, offsets, strict=True)
    return file, [{"dtype": a.dtype.str, "shape": list(a.shape), "offset": offset} for a, offset in places]


def read(file: int, places: Places) -> list[Array]:
    """Return read-only views of the arrays in a file that was received; the file may be closed afterwards.

    Raises
    ------
    ProtocolError
        If the file is not sealed, or it is not laid out as :func:`write` lays out arrays of these kinds and shapes.
    """
    kinds, shapes = _check(places)
    counts = [math.prod(shape) for shape in shapes]
    offsets, size = _offsets([count * kind.itemsize for count, kind in zip(counts, kinds, strict=True)])
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("arrays: what was received is no file in memory") from error
    if seals & SEALS != SEALS:
        raise ProtocolError("arrays: the sender can still change the file that it handed over")
    if [place["offset"] for place in places] != offsets or os.fstat(file).st_size != size:
        raise ProtocolError(f"arrays: {os.fstat(file).st_size} bytes received, which do not fit their description")
    if not size:
        return [np.empty(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    # A private mapping that is only read shares the pages as well, and kernels before 6.7 refuse a shared one.
    content = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    described = zip(shapes, kinds, counts, offsets, strict=True)
    return [np.frombuffer(content, kind, count, offset).reshape(shape) for shape, kind, count, offset in described]


def _offsets(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where arrays of these lengths in bytes begin, and where the last one's place ends."""
    offsets, end = [], 0
    for length in lengths:
        offsets.append(end)
        end = -(-(end + length) // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _write_at(file: int, content: memoryview, offset: int) -> None:
    # One call takes 2 GiB at most.
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written


def _check(places: Any) -> tuple[list[np.dtype[Any]], list[tuple[int, ...]]]:
    if not isinstance(places, list) or len(places) > MOST_ARRAYS:
        raise ProtocolError("arrays: their description is no list, or too long")
    for place in places:
        if not isinstance(place, dict) or set(place) != {"dtype", "shape", "offset"}:
            raise ProtocolError("arrays: a description is not of dtype, shape and offset")
        if not isinstance(place["dtype"], str) or place["dtype"] not in KINDS:
            raise ProtocolError(f"arrays: {place['dtype']!r} is no kind of number that may be handed over")
        shape = place["shape"]
        if not isinstance(shape, list) or len(shape) > MOST_AXES or any(type(n) is not int or n < 0 for n in shape):
            raise ProtocolError(f"arrays: {shape!r} is no shape")
    return [KINDS[place["dtype"]] for place in places], [tuple(place["shape"]) for place in places]
