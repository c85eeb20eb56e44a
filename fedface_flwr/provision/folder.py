# SPDX-License-Identifier: Apache-2.0
"""The folder of kits: private to its owner, changed by one run at a time, and only where something differs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedface_flwr.errors import StateError
from fedface_flwr.files import replacing

PRIVATE_FILE, PRIVATE_SCRIPT, PRIVATE_FOLDER = 0o600, 0o700, 0o700


class KitFolder:
    """A folder in which files are written whole, private, and only when they change.

    Parameters
    ----------
    root : Path
        The folder; it is made if it is not there.

    Attributes
    ----------
    changes : list of str
        Every file that was written or removed, with what was done.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changes: list[str] = []

    @contextmanager
    def locked(self) -> Iterator[KitFolder]:
        """Hold the folder for one run.

        Raises
        ------
        StateError
            If another run holds it, or it cannot be written.
        """
        try:
            self._make(self.root)
            with (self.root / ".lock").open("a") as lock:
                os.chmod(lock.fileno(), PRIVATE_FILE)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield self
        except BlockingIOError as error:
            raise StateError(f"{self.root}: another fedface-provision works there; wait until it has ended") from error
        except OSError as error:
            raise StateError(f"{error.filename or self.root}: {error.strerror}; the kits are incomplete") from error

    def write(self, path: str, text: str) -> None:
        """Write a text file, unless it holds that text already; scripts may be run."""
        target = self.root / path
        mode = PRIVATE_SCRIPT if target.suffix == ".sh" else PRIVATE_FILE
        content = text.encode()
        if target.is_file() and target.read_bytes() == content:
            target.chmod(mode)
            return
        verb = "changed" if target.exists() else "new"
        self._make(target.parent)
        with replacing(target) as temporary:
            # Private before it holds anything.
            temporary.touch(mode)
            temporary.write_bytes(content)
            temporary.chmod(mode)
        self.changes.append(f"{verb}: {path}")

    def holds(self, path: str) -> bool:
        """Return whether a file is there; one that is kept is made private, should somebody have opened it up."""
        target = self.root / path
        if target.is_file():
            target.chmod(PRIVATE_FILE)
        return target.is_file()

    def note(self, line: str) -> None:
        """Add to the changes what a person should know of them."""
        self.changes.append(line)

    def remove(self, path: str) -> None:
        """Remove a file."""
        (self.root / path).unlink()
        self.changes.append(f"removed: {path}")

    def _make(self, folder: Path) -> None:
        """Make a folder, and those above it up to the root, private."""
        if folder != self.root and self.root in folder.parents:
            self._make(folder.parent)
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        folder.chmod(PRIVATE_FOLDER)
