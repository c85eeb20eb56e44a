# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: a small valid set of files, which of them are damaged, and what reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_mutation import Mutator

from fedface_flwr.errors import FedFaceError

# Where the writers of small valid files lie.
for folder in ("data", "dataprep", "protocols"):
    if (place := str(Path(__file__).resolve().parents[1] / folder)) not in sys.path:
        sys.path.append(place)

Tailor = Callable[[Mutator, bytes], bytes]
"""Damages a file in its format's own terms, such as an array within an archive whose checksums stay right."""

Fuzzer = Callable[..., dict[str, Any]]
"""``fuzz_worker.attempt_all``, in the process that is kept for it."""

TEXT = (b"x",)
"""Words of a text format that has none of its own."""


@dataclass(frozen=True)
class Target:
    """A reader of files.

    Attributes
    ----------
    name : str
        Decides, with a seed, the damages.
    build : callable
        Writes valid files into an empty folder, and returns those to damage, one at a time.
    read : callable
        Reads the folder and checks what comes of it. It returns or raises a FedFaceError that names a file.
    mutants : int
        How many the test suite tries.
    words : sequence of bytes
        Of a text file, see :class:`Mutator`; empty for a binary one.
    tailor : callable, optional
        Used for half of the mutants.
    seeds : sequence of bytes
        Other valid contents of the first file.
    memory : int
        Bytes that reading may take, besides what the interpreter has.
    seconds : float
        That reading one mutant may take, where most take less than a thousandth.
    """

    name: str
    build: Callable[[Path], Sequence[Path]]
    read: Callable[[Path], object]
    mutants: int
    words: Sequence[bytes] = ()
    tailor: Tailor | None = None
    seeds: Sequence[bytes] = field(default=())
    memory: int = 512 << 20
    seconds: float = 10.0


def each(actions: Sequence[Callable[[], object]]) -> None:
    """Do everything, whatever is refused, then raise the first refusal."""
    refused = []
    for action in actions:
        try:
            action()
        except FedFaceError as error:
            refused.append(error)
    if refused:
        raise refused[0]
