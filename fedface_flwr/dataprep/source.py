# SPDX-License-Identifier: Apache-2.0
"""Faces to be looked at, converted or split, whichever format they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SourceOptions:
    """What the command line says about a source.

    Attributes
    ----------
    format : str
        One of ``FORMATS``; empty: told by the path and what is there.
    root : Path or None
        Folder that a list's paths, or an index's shards, are relative to; None: the list's own.
    image, label : str
        Name of the parquet column or the Example's feature; empty: the usual ones are tried.
    """

    format: str = ""
    root: Path | None = None
    image: str = ""
    label: str = ""


class Source(Protocol):
    """Encoded pictures with identities, opened without reading a picture.

    Attributes
    ----------
    kind : str
        Format, one of ``FORMATS``.
    labels : ndarray of int64, shape (n,)
        Identity of each picture, from 0.
    identities : sequence of str
        Name of each identity, by label.
    problems : list of str
        Records that cannot be pictures, found on opening; each text names file and record. They are not
        among the n.
    faults : list of str
        What else is wrong with the set and costs no picture; each text names the file and says what to do.
    """

    kind: str
    labels: Integers
    identities: Sequence[str]
    problems: list[str]
    faults: list[str]

    def stamp(self) -> Any:
        """Return, in JSON's types, what changes when the source does."""
        ...

    def key(self, index: int) -> str:
        """Return what names picture ``index`` wherever it stands in the source."""
        ...

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``, encoded, and the text that names file and record; DataError if damaged."""
        ...


def file_stamp(path: Path) -> list[Any]:
    """Return a file's or folder's path, size and time of change."""
    stat = path.stat()
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]


def count_identities(source: Source) -> int:
    """Return how many identities have a picture."""
    return len(np.unique(source.labels))
