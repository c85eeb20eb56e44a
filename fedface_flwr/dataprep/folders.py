# SPDX-License-Identifier: Apache-2.0
"""A folder of pictures per identity, as a source."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedface_flwr.data.own_files import OWN_FILES
from fedface_flwr.dataprep.names import Names
from fedface_flwr.dataprep.source import Integers, file_stamp
from fedface_flwr.errors import DataError
from fedface_flwr.files import read_regular

PICTURES = (".jpg", ".jpeg", ".png")


@dataclass
class FolderSource:
    """Pictures at ``root/IDENTITY/PICTURE``, or deeper; a ``Source``. Names are sorted, hidden ones left out.

    What is no picture is among the faults, where ``FolderSet`` refuses the whole folder.
    """

    root: Path
    labels: Integers
    identities: Sequence[str]
    names: Names
    problems: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    kind: str = "folder"

    @classmethod
    def open(cls, root: Path) -> FolderSource:
        """List the pictures; DataError if there is none."""
        names, labels = Names(), array("q")
        identities, faults = list[str](), list[str]()
        for entry in _visible(root):
            if not entry.is_dir():
                if entry.name not in OWN_FILES:
                    faults.append(
                        f"{entry.path}: a stray file beside the identity folders; move it away, or hide it by a dot "
                        "before its name"
                    )
                continue
            before = len(names)
            for path in _files(entry.path):
                if path.lower().endswith(PICTURES):
                    names.append(os.path.relpath(path, root))
                    labels.append(len(identities))
                else:
                    faults.append(f"{path}: not a {', '.join(PICTURES)} picture; convert, hide or remove it")
            if len(names) == before:
                faults.append(f"{entry.path}: the identity has no pictures; remove the folder")
            else:
                identities.append(entry.name)
        if not identities:
            raise DataError(f"{root}: no pictures; expected one folder of {', '.join(PICTURES)} files per identity")
        return cls(root, np.frombuffer(labels, dtype=np.int64), identities, names, faults=faults)

    def stamp(self) -> Any:
        """Return the folders' times of change and a digest of the pictures' names."""
        digest = hashlib.sha256()
        for name in self.names:
            digest.update(os.fsencode(name) + b"\0")
        folders = [file_stamp(self.root / identity)[2] for identity in self.identities]
        return [str(self.root.absolute()), digest.hexdigest(), hashlib.sha256(repr(folders).encode()).hexdigest()]

    def key(self, index: int) -> str:
        """Return the picture's path below the root."""
        return self.names[index]

    def read(self, index: int) -> tuple[bytes, str]:
        """Return the file's content and its path."""
        return read_file(self.root / self.names[index])


def read_file(path: Path) -> tuple[bytes, str]:
    """Return a file's content and its path; DataError if it cannot be read."""
    try:
        return read_regular(path), str(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _visible(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder}: not a folder that can be listed ({error.strerror})") from error


def _files(folder: str) -> Iterator[str]:
    """Yield the files below a folder, in order; links to folders are not followed, so there is no way in a circle."""
    # Not by calling itself, for folders can be nested deeper than calls.
    waiting = [iter(_visible(folder))]
    while waiting:
        entry = next(waiting[-1], None)
        if entry is None:
            waiting.pop()
        elif entry.is_dir(follow_symlinks=False):
            waiting.append(iter(_visible(entry.path)))
        else:
            yield entry.path
