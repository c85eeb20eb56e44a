# SPDX-License-Identifier: Apache-2.0
"""Matrices in .npy files, mapped into memory."""

from __future__ import annotations

import tokenize
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError

# What NumPy raises on a damaged header, of which it documents the first only.
_UNREADABLE = (
    ValueError,
    EOFError,
    SyntaxError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)


def map_matrix(path: Path) -> npt.NDArray[np.floating[Any]]:
    """Map a ``.npy`` matrix of floats into memory.

    Reading it instead could have a header allocate any amount of memory; a map that is longer than the file is refused.

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
        with warnings.catch_warnings():
            # Of headers that Python 2 wrote, or damage that looks so.
            warnings.simplefilter("ignore", UserWarning)
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a .npy file of numbers ({' '.join(str(error).split())[:200]})") from error
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise DataError(f"{path}: an archive of arrays; save the matrix alone, by numpy.save")
    if loaded.ndim != 2 or loaded.dtype.kind != "f" or 0 in loaded.shape:
        raise DataError(f"{path}: {loaded.dtype} of shape {loaded.shape}, not a matrix of floats")
    return loaded
