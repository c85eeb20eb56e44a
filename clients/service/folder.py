# SPDX-License-Identifier: Apache-2.0
"""The silo's private folder, as far as its service is concerned: socket, key, lock and log.

A Unix socket's path may have only 107 bytes and silo folders lie deep, so the socket is reached through the opened
folder, as ``/proc/self/fd/N/service.sock``.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedface_flwr.errors import FedFaceError

SOCKET, KEY, LOCK, LOG = "service.sock", "service.key", "service.lock", "service.log"
KEY_BYTES = 32


@dataclass(frozen=True)
class ServiceFolder:
    """The folder in which one silo's service is reached.

    Parameters
    ----------
    path : Path
        The silo's private folder; absolute, since processes with other working folders meet in it.
    """

    path: Path

    @property
    def log(self) -> Path:
        """The service's log."""
        return self.path / LOG

    def make_private(self) -> None:
        """Create the folder if it is missing, and close it to everyone but its owner.

        Raises
        ------
        FedFaceError
            If it cannot be had, or belongs to somebody else.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
                self.path.chmod(0o700)
        except OSError as error:
            raise FedFaceError(f"{self.path}: cannot be the silo's private folder ({error.strerror})") from error
        if found.st_uid != os.geteuid():
            raise FedFaceError(f"{self.path}: belongs to another user; a silo's folder is its own user's alone")

    def make_key(self) -> bytes:
        """Return the key, which is made the first time."""
        if not (self.path / KEY).exists():
            temporary = self.path / f".{KEY}.{secrets.token_hex(8)}.tmp"
            try:
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(secrets.token_bytes(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                # Unlike a rename, a link never takes the place of a key that somebody else has made meanwhile.
                os.link(temporary, self.path / KEY)
            except FileExistsError:
                pass
            except OSError as error:
                raise FedFaceError(f"{self.path / KEY}: cannot be written ({error.strerror})") from error
            finally:
                temporary.unlink(missing_ok=True)
        return self.key()

    def key(self) -> bytes:
        """Return the key.

        Raises
        ------
        FedFaceError
            If it cannot be read, is damaged, or may be read by others.
        """
        path = self.path / KEY
        try:
            content, found = path.read_bytes(), path.stat()
        except OSError as error:
            raise FedFaceError(f"{path}: cannot be read ({error.strerror})") from error
        if len(content) != KEY_BYTES:
            raise FedFaceError(f"{path}: is no key of {KEY_BYTES} bytes; stop the silo's service and remove the file")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise FedFaceError(f"{path}: others may read it; stop the silo's service and remove the file")
        return content

    @contextmanager
    def socket_path(self) -> Iterator[str]:
        """Yield a short path of the socket, which holds while the block runs."""
        folder = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{SOCKET}"
        finally:
            os.close(folder)

    def remove_socket(self) -> None:
        """Remove the socket; only who holds the lock may do so."""
        (self.path / SOCKET).unlink(missing_ok=True)

    def listen(self) -> socket.socket:
        """Return the listening socket; only who holds the lock may do so."""
        self.remove_socket()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self.socket_path() as path:
                listener.bind(path)
                os.chmod(path, 0o600)
            listener.listen(64)
            listener.setblocking(True)
        except BaseException:
            listener.close()
            raise
        return listener


class Lock:
    """The right to be the folder's one service: a lock that the kernel frees when its last holder is gone.

    It belongs to the open file and not to the process, so that whoever starts a service can take it first and hand it
    over: no moment is left for a second one.
    """

    def __init__(self, folder: ServiceFolder, file: int) -> None:
        self._folder, self.file = folder, file

    @classmethod
    def take(cls, folder: ServiceFolder) -> Lock | None:
        """Take the lock if it is free."""
        lock = cls(folder, os.open(folder.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            fcntl.flock(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        # Until the service says who it is, nobody is named rather than the one before.
        os.ftruncate(lock.file, 0)
        return lock

    @classmethod
    def adopt(cls, folder: ServiceFolder, file: int) -> Lock | None:
        """Take over a lock that the process which started this one holds."""
        try:
            os.set_inheritable(file, False)
            own = os.path.samestat(os.fstat(file), os.stat(folder.path / LOCK))
            if own:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        return cls(folder, file) if own else None

    def sign(self) -> None:
        """Write down that this process is the holder."""
        os.pwrite(self.file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let go of it; it stays taken while another process holds it too."""
        os.close(self.file)


def holder(folder: ServiceFolder) -> int | None:
    """Return the id of the process that is the folder's service: 0 if it has not said yet, None if there is none."""
    try:
        with (folder.path / LOCK).open("rb") as file:
            try:
                # A shared lock, so that two who look do not see one another.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                return int(file.read() or b"0")
    except FileNotFoundError:
        return None
