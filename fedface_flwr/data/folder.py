# SPDX-License-Identifier: Apache-2.0
"""Faces as a folder of pictures per identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.own_files import OWN_FILES
from fedface_flwr.errors import DataError
from fedface_flwr.files import read_regular

_PICTURES = (".jpg", ".jpeg", ".png")


@dataclass
class FolderSet:
    """Encoded pictures at ``root/identity/picture.jpg``; an ``EncodedSet``.

    Attributes
    ----------
    name : str
        The root folder's name.
    num_identities : int
        Number of identity folders.
    labels : ndarray of int64, shape (n,)
        Position of each picture's folder among the folders sorted by name.
    files : sequence of Path, length n
        The pictures, sorted by folder and name.
    """

    name: str
    num_identities: int
    labels: npt.NDArray[np.int64]
    files: Sequence[Path]

    @classmethod
    def open(cls, root: Path) -> FolderSet:
        """List the pictures below ``root`` without reading them.

        Raises
        ------
        DataError
            If there is no identity folder, one is empty, or a file that is neither hidden nor of the project's own
            commands (``OWN_FILES``) is where none belongs.
        """
        identities = [path for path in _visible(root) if path.name not in OWN_FILES or path.is_dir()]
        if not identities:
            raise DataError(f"{root}: no identities; expected one folder of pictures per identity")
        files: list[Path] = []
        labels: list[int] = []
        for label, identity in enumerate(identities):
            pictures = _pictures(identity)
            files += pictures
            labels += [label] * len(pictures)
        return cls(root.absolute().name, len(identities), np.array(labels, dtype=np.int64), files)

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``, encoded, and its path; DataError if the file cannot be read."""
        path = self.files[index]
        try:
            return read_regular(path), str(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _visible(folder: Path) -> list[Path]:
    """Return what a folder holds, hidden entries left out, sorted by name."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: not a folder that can be listed ({error.strerror})") from error


def _pictures(identity: Path) -> list[Path]:
    if not identity.is_dir():
        raise DataError(
            f"{identity}: a stray file beside the identity folders; move it away, or hide it by a dot before its name"
        )
    pictures = _visible(identity)
    if not pictures:
        raise DataError(f"{identity}: the identity has no pictures; remove the folder")
    for path in pictures:
        if path.suffix.lower() not in _PICTURES or not path.is_file():
            raise DataError(f"{path}: not a {', '.join(_PICTURES)} picture; convert, hide or remove it")
    return pictures
