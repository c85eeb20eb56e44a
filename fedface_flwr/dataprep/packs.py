# SPDX-License-Identifier: Apache-2.0
"""A verification pack as something to be looked at: its labels are the pairs', not identities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedface_flwr.data.packs import EncodedPack
from fedface_flwr.dataprep.source import Integers, file_stamp


@dataclass
class PackSource:
    """Pictures of a ``.bin``; a ``Source`` whose identities are 'differing' and 'matching' pairs."""

    pack: EncodedPack
    labels: Integers
    identities: Sequence[str] = ("differing", "matching")
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kind: str = "pack"

    @classmethod
    def open(cls, path: Path) -> PackSource:
        """Read the pack; DataError if it is damaged as a whole."""
        pack = EncodedPack.open(path)
        return cls(pack, pack.labels)

    def stamp(self) -> Any:
        """Return the file's place, size and time of change."""
        return file_stamp(self.pack.files[0])

    def key(self, index: int) -> str:
        """Return the picture's number."""
        return str(index)

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``."""
        return self.pack.read(index)
