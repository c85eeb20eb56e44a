# SPDX-License-Identifier: Apache-2.0
"""Readers with faults, which must be found."""

from __future__ import annotations

import ctypes
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz_target import Target

from fedface_flwr.errors import DataError


def _file(root: Path) -> Sequence[Path]:
    (root / "file").write_bytes(bytes(64))
    return [root / "file"]


def _if_damaged(fault: Callable[[bytes], object]) -> Callable[[Path], None]:
    def read(root: Path) -> None:
        content = (root / "file").read_bytes()
        if content != bytes(64):
            fault(content)

    return read


def _swallowed(content: bytes) -> None:
    try:
        bytearray(1 << 40)
    except MemoryError as error:
        raise DataError("file: damaged") from error


def _nameless(content: bytes) -> None:
    raise DataError("something is wrong")


_FAULTS: dict[str, Callable[[bytes], object]] = {
    "crash": lambda content: {}[content],
    "warning": lambda content: warnings.warn("odd", RuntimeWarning, stacklevel=1),
    "hang": lambda content: time.sleep(60),
    "memory": lambda content: bytearray(2 << 30),
    "swallowed": _swallowed,
    "nameless": _nameless,
    "executes": lambda content: os.system("true"),
    "segfault": lambda content: ctypes.string_at(8),
}

TARGETS = tuple(
    Target(f"faulty-{name}", _file, _if_damaged(fault), 4, seconds=0.2 if name == "hang" else 10.0)
    for name, fault in _FAULTS.items()
)
