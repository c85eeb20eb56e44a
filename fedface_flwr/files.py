# SPDX-License-Identifier: Apache-2.0
"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from uuid import uuid4

_LONGEST_KEPT = 200  # bytes of a file's name; with what is added to it, a temporary one has less than the usual 255


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place if the block succeeds and is removed if not.

    The file's content is on the disk before it gets its name, unless it need not be ``durable``: then a power cut may
    leave it damaged, as its reader must notice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name that the file system takes must not become one that it does not.
    kept = path.name if len(os.fsencode(path.name)) <= _LONGEST_KEPT else "long"
    temporary = path.with_name(f".{kept}.{uuid4().hex}.tmp")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file for the block; the system lets go of it when the process ends, however it ends.

    Raises
    ------
    BlockingIOError
        If another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def read_regular(path: Path) -> bytes:
    """Return the content of a file whose name comes out of another file, so that it may be anything.

    Raises
    ------
    OSError
        If there is none, or it is no regular file: a pipe would wait for ever, a device has no end.
    """
    try:
        # Not to wait for the other end of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    with open(descriptor, "rb") as file:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def printable(text: str) -> str:
    """Escape what file names may hold, but neither a terminal nor a UTF-8 file of lines can."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
