# SPDX-License-Identifier: Apache-2.0
"""Matrices in .npy files, mapped into memory."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError

_MAGIC, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
_LONGEST_HEADER = 1 << 16
_LONGEST_SIDE = 1 << 48
_NUMBERS = re.compile(r"[<>=|]?[biufc]\d{1,2}")
# Enough for all that numpy.save writes, and nothing on which literal_eval would work long or deep.
_PLAIN = re.compile(r"[\w\s{}()\[\]'\",:.<>=|]*")


def map_matrix(path: Path) -> npt.NDArray[np.floating[Any]]:
    """Map a ``.npy`` matrix of floats into memory.

    Reading it instead could have a header allocate any amount of memory; a map that is longer than the file is refused.
    The header is read here, by numpy.lib.format's description, since NumPy's own reader raises what it does not
    document, warns, and multiplies sizes until they overflow.

    Returns
    -------
    ndarray of float, shape (n, dim)
        Read only, of the file's own precision; neither n nor dim is 0.

    Raises
    ------
    DataError
        If the file cannot be read, is no ``.npy`` file, holds anything but such a matrix, or less than its header says.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_ZIP)) == _ZIP:
                raise DataError(f"{path}: an archive of arrays; save the matrix alone, by numpy.save")
            shape, order, dtype = _header(file)
            start, size = file.tell(), path.stat().st_size
        if start + math.prod(shape) * dtype.itemsize > size:
            raise ValueError(f"its {size} bytes are too few for {dtype} of shape {shape}")
        if len(shape) != 2 or dtype.kind != "f" or 0 in shape:
            raise DataError(f"{path}: {dtype} of shape {shape}, not a matrix of floats")
        return np.memmap(path, dtype, "r", start, shape, order)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataError(f"{path}: not a .npy file of numbers ({error})") from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Return shape, order and type, the file then standing at the values; ValueError if there is no such header."""
    file.seek(0)
    start = file.read(len(_MAGIC) + 2)
    if len(start) < len(_MAGIC) + 2 or not start.startswith(_MAGIC):
        raise ValueError("it does not begin as one")
    length = int.from_bytes(file.read(2 if start[len(_MAGIC)] == 1 else 4), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header has {length} bytes")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("it ends in its header")
    fields = _literal(text.decode("latin1"))
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header has other fields than descr, fortran_order and shape")
    kind, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if not isinstance(shape, tuple) or any(type(side) is not int or not 0 <= side < _LONGEST_SIDE for side in shape):
        raise ValueError(f"its shape is {str(shape)[:80]}")
    if not isinstance(kind, str) or not _NUMBERS.fullmatch(kind) or type(fortran) is not bool:
        raise ValueError(f"its type is {str(kind)[:80]}")
    try:
        return shape, "F" if fortran else "C", np.dtype(kind)
    except TypeError as error:
        raise ValueError(f"its type is {kind}") from error


def _literal(text: str) -> Any:
    # Python 2 wrote 4L for 4.
    plain = re.sub(r"(?<=\d)L\b", "", text).strip()
    if not _PLAIN.fullmatch(plain) or re.search(r"[(\[{]\s*[(\[{]\s*[(\[{]\s*[(\[{]", plain):
        raise ValueError("its header is damaged")
    try:
        return ast.literal_eval(plain)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("its header is damaged") from error
