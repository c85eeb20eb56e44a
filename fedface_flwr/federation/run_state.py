# SPDX-License-Identifier: Apache-2.0
"""The one place that knows the file from which an interrupted run goes on: the server's arrays and values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedface_flwr.errors import StateError
from fedface_flwr.files import replacing

FORMAT = "fedface-run-2"

# Besides its own errors safetensors lets out NumPy's, about types such as float8 that NumPy has not.
UNREADABLE = (SafetensorError, OSError, AttributeError, TypeError)

Arrays = dict[str, npt.NDArray[Any]]


def save_state(path: Path, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> None:
    """Write a run's state, whole or not at all.

    Parameters
    ----------
    path : Path
        Ends in ``.safetensors``.
    arrays : mapping of str to ndarray
        Contiguous arrays.
    values : mapping
        What JSON can hold; numbers come back to the bit.

    Raises
    ------
    StateError
        If the disk does not take it; what was there stays.
    """
    try:
        with replacing(path) as temporary:
            text = json.dumps(values)
            save_file(dict(arrays), temporary, {"format": FORMAT, "values": text, "digest": digest_of(arrays, text)})
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path}: cannot be written ({error}); free some space and resume the run") from error


def load_state(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read a run's state.

    Raises
    ------
    StateError
        If the file is not there, damaged or of another kind.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        text = metadata["values"]
        values = json.loads(text)
    except (*UNREADABLE, KeyError, ValueError, RecursionError) as error:
        raise StateError(f"{path}: not a readable state of a run ({error}); start the run anew") from error
    if metadata.get("format") != FORMAT:
        raise StateError(f"{path}: its format is {metadata.get('format')!r}, not {FORMAT!r}")
    if metadata.get("digest") != digest_of(arrays, text):
        raise StateError(f"{path}: is damaged, its content has another digest than was written; start the run anew")
    if not isinstance(values, dict):
        raise StateError(f"{path}: is damaged, its values are {type(values).__name__}; start the run anew")
    return arrays, values


def digest_of(arrays: Mapping[str, npt.NDArray[Any]], text: str = "") -> str:
    """Return a digest of named arrays, types and shapes among it, and of what is said beside them."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        # As bytes, for NumPy has types, such as bfloat16, that are no buffers.
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
