# SPDX-License-Identifier: Apache-2.0
"""A list file of pictures and their identities, as a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedface_flwr.dataprep.folders import read_file
from fedface_flwr.dataprep.names import Identities, Names
from fedface_flwr.dataprep.source import Integers, file_stamp
from fedface_flwr.errors import DataError


@dataclass
class ListSource:
    """Pictures named by a list's lines; a ``Source``.

    A line is ``path label`` (the label is what follows the last blank, so paths may hold blanks) or
    ``path<TAB>label``; in a ``.lst`` file, as MXNet writes it, ``number<TAB>label<TAB>path``. Empty lines and
    those that start with ``#`` are passed over.
    """

    path: Path
    root: Path
    labels: Integers
    identities: Sequence[str]
    names: Names
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kind: str = "list"

    @classmethod
    def open(cls, path: Path, root: Path | None = None) -> ListSource:
        """Read the list; pictures are below ``root``, by default the list's folder. DataError if it is empty."""
        names, identities, problems = Names(), Identities(), list[str]()
        for number, line in lines(path):
            if (entry := _entry(line, path.suffix == ".lst")) is None:
                problems.append(f"{path}: line {number}: not a path and a label")
                continue
            names.append(entry[0])
            identities.append(entry[1])
        if not len(names):
            raise DataError(f"{path}: no line of the list names a picture and its label")
        labels, ordered = identities.numbered()
        return cls(path, path.parent if root is None else root, labels, ordered, names, problems)

    def stamp(self) -> Any:
        """Return the list's place, size and time of change."""
        return [file_stamp(self.path), str(self.root.absolute())]

    def key(self, index: int) -> str:
        """Return the path as it is listed."""
        return self.names[index]

    def read(self, index: int) -> tuple[bytes, str]:
        """Return the file's content and its path."""
        return read_file(self.root / self.names[index])


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a text file's lines, with their numbers from 1, but for empty ones and comments."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            for number, line in enumerate(file, 1):
                text = line.rstrip("\r\n")
                if text.strip() and not text.startswith("#"):
                    yield number, text
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _entry(line: str, is_lst: bool) -> tuple[str, str] | None:
    """Return a line's path and identity."""
    if is_lst:
        columns = line.split("\t")
        label = _whole(columns[1]) if len(columns) >= 3 else None
        return None if label is None else (columns[-1], label)
    columns = line.split("\t") if "\t" in line else line.rsplit(None, 1)
    if len(columns) != 2 or not columns[0] or not columns[1].strip():
        return None
    return columns[0], columns[1].strip()


def _whole(text: str) -> str | None:
    """Return a label that may be written as a float, as MXNet does, as a whole number's text."""
    try:
        number = float(text)
        return str(int(number)) if number.is_integer() else None
    except ValueError:
        return None
