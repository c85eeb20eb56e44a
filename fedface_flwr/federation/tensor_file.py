# SPDX-License-Identifier: Apache-2.0
"""Safetensors files that are a function of what they hold, and whose mode is that of any file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save

_LENGTH = 8  # bytes, little-endian, before the header
_ALIGNMENT = 8


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write named tensors.

    The library writes metadata in an order that differs from process to process, and into files that only their owner
    may read.

    Raises
    ------
    OSError
        If the disk does not take it.
    """
    content = save(dict(tensors))
    start = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    header = json.loads(content[_LENGTH:start])
    if metadata:
        header = {"__metadata__": dict(sorted(metadata.items())), **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH, "little") + text)
        file.write(memoryview(content)[start:])
