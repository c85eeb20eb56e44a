# SPDX-License-Identifier: Apache-2.0
"""A fork server for Flower's ClientApp processes, so that they begin with Flower imported.

Flower starts ``flwr-clientapp`` for every message, and importing Flower takes longer than all that the silo's service
leaves to be done. A command of that name, which ``fedface-silo warm`` writes, is this file's :func:`call`: it
asks the fork server of its folder for a process that does what Flower's own command would do, and lives as long as
that one. Where there is no fork server it starts one, and becomes Flower's own command. A process so forked holds
nothing of earlier messages, for the fork server reads none, nor anything of the app, which each message may bring anew.

That is also why this file is run by its path, and imports nothing of its package: what the fork server has imported, a
fork could not import from elsewhere.

=========  =============================  ======================================================================
step       who                            bytes
=========  =============================  ======================================================================
request    caller                         length, JSON of :class:`Request`; standard files along
ready      fork server                    ``R``
go         caller                         ``G``: it has not lost its patience
forked     fork; fork server if it failed ``F``: from here on the message is the fork's alone; ``N``: the caller's own
signals    caller, at any time            the number of a signal that it got, one byte each
status     fork server                    the fork's exit status, four bytes
=========  =============================  ======================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

ENTRY = "flwr.supernode.cli:flwr_clientapp"
COMMAND = "flwr-clientapp"
# What the entry imports only when it is called, or the app imports from elsewhere.
ALSO = ("flwr.client", "numpy")
SOCKET, LOCK, LOG = "forkserver.sock", "forkserver.lock", "forkserver.log"
FOLLOWED = "FEDFACE_SUPEREXEC"
"""Environment variable by which a fork knows the SuperExec that its caller is a child of."""

READY, GO, FORKED, NOT_FORKED = b"R", b"G", b"F", b"N"
LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")
LONGEST_REQUEST = 16 << 20
# A fork server answers in milliseconds unless the machine is out of breath; a caller says all it has to say at once.
READY_WITHIN, SAYS_WITHIN = 5.0, 4.0
LOOKS_EVERY = 5
"""Seconds between two looks whether the socket is still there."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


# The caller: what Flower starts for a message. It is run without site-packages, in some hundredths of a second.


def call(folder: str, entry: str, command: str, arguments: list[str]) -> NoReturn:
    """Have a fork do what ``command`` would do with these arguments, or become that command."""
    _open_standard_files()
    connection = None
    # Only for a SuperExec that lives, and says so, is there a fork server: it is to end with that one.
    if _option(arguments, "--parent-pid") == str(os.getppid()):
        try:
            connection = _ask(folder, entry, [command, *arguments])
        except OSError as error:
            print(f"{command}: started anew, for {folder} has no fork server ({error})", file=sys.stderr, flush=True)
    if connection is None:
        os.execv(command, [command, *arguments])
    status = b""
    with contextlib.suppress(OSError):
        while len(status) < STATUS.size and (more := connection.recv(STATUS.size)):
            status += more
    if len(status) < STATUS.size:
        # The fork goes on without us: it knows by itself when its SuperExec ends.
        sys.exit(f"{command}: the fork server of {folder} has ended")
    number = STATUS.unpack(status)[0]
    if number < 0:
        if -number in PASSED_ON:
            signal.signal(-number, signal.SIG_DFL)
        os.kill(os.getpid(), -number)
    os._exit(number)


def _option(arguments: list[str], name: str) -> str | None:
    return dict(itertools.pairwise(arguments)).get(name)


def _open_standard_files() -> None:
    """Open those that are closed, or the connection would take the place of one and go along as such."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _ask(folder: str, entry: str, argv: list[str]) -> socket.socket | None:
    """Return the connection to a fork server once there is a fork, or None if there is none to be had.

    Raises
    ------
    OSError
        If none can be asked for or started.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(READY_WITHIN)
    try:
        with _Folder(folder) as opened:
            connection.connect(opened.path(SOCKET))
    except (FileNotFoundError, ConnectionRefusedError):
        _start(folder, entry)
        return None
    fields = {"argv": argv, "environment": dict(os.environ), "folder": os.getcwd(), "parent": os.getppid()}
    request = json.dumps(fields).encode()
    # A server that goes away, or is halted, is done without.
    with contextlib.suppress(ConnectionError, TimeoutError):
        socket.send_fds(connection, [LENGTH.pack(len(request))], [0, 1, 2])
        connection.sendall(request)
        if connection.recv(1) != READY:
            return None
        connection.sendall(GO)
        # It has promised, and a second process must not do the same.
        connection.settimeout(None)
        if connection.recv(1) != FORKED:
            return None
        for number in PASSED_ON:
            signal.signal(number, _pass_on(connection))
        return connection
    return None


def _pass_on(connection: socket.socket) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        try:
            connection.send(bytes([number]))
        except OSError:
            os._exit(128 + number)

    return handle


def _start(folder: str, entry: str) -> None:
    """Start a fork server as a process that is nobody's child and ends with our parent; its log says if it cannot."""
    parent = os.getppid()
    # Not the caller's files: whoever reads what it prints waits for its end.
    log = os.open(os.path.join(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    if child := os.fork():
        os.close(log)
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if not os.fork():
            for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
                os.dup2(file, number)
            os.execv(sys.executable, [sys.executable, "-P", __file__, "serve", folder, str(parent), entry])
    finally:
        os._exit(0)


# The fork server.


@dataclass(frozen=True)
class Request:
    """What a caller would be.

    Parameters
    ----------
    argv : list of str
        Its command line.
    environment : dict
        Its environment.
    folder : str
        Its working folder.
    parent : int
        The process that it is a child of.
    files : list of int
        Its standard input, output and error.
    """

    argv: list[str]
    environment: dict[str, str]
    folder: str
    parent: int
    files: list[int]


def serve(folder: str, follow: int, entry: str) -> Callable[[], int | str | None] | None:
    """Fork for every caller until the process ``follow`` ends.

    Returns
    -------
    callable or None
        In a fork: what it has to do, with everything set for that. In the fork server: None, at its end.
    """
    try:
        followed = os.pidfd_open(follow)
    except ProcessLookupError:
        return None
    lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    with _Folder(folder) as opened:
        path = opened.path(SOCKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        # Before the imports: where this fails, nothing is lost but that.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        os.chmod(path, 0o600)
        own = os.stat(path)

        def reachable() -> bool:
            with contextlib.suppress(FileNotFoundError):
                return os.path.samestat(os.stat(path), own)
            return False

        task = _import(entry)
        listener.listen(64)
        request = _ForkServer(listener, follow, followed, lock).run(reachable)
        if request is None:
            if reachable():
                os.unlink(path)
            return None
    _become(request)
    return task


class _ForkServer:
    """Callers and their forks, until it ends or is itself a fork."""

    def __init__(self, listener: socket.socket, parent: int, followed: int, lock: int) -> None:
        self._listener, self._parent, self._followed, self._lock = listener, parent, followed, lock
        self._poll = select.poll()
        # A fork's process file by its caller, and the other way round.
        self._forks: dict[int, int] = {}
        self._callers: dict[int, socket.socket] = {}
        for file in (listener.fileno(), followed):
            self._poll.register(file, select.POLLIN)

    def run(self, reachable: Callable[[], bool]) -> Request | None:
        """Return what a fork, which this process then is, shall be; None at the end."""
        while True:
            ready = [file for file, _ in self._poll.poll(LOOKS_EVERY * 1000)]
            # Without its socket, nobody asks it and nobody can start another.
            if self._followed in ready or not (ready or reachable()):
                return None
            for file in ready:
                if file in self._callers:
                    self._reap(file)
                elif file in self._forks:
                    self._hear(file)
                elif file == self._listener.fileno() and (request := self._take()) is not None:
                    return request

    def _take(self) -> Request | None:
        """Take one caller; return its request in its fork."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            print(f"a caller cannot be taken: {error}", file=sys.stderr, flush=True)
            # Out of files: others must come free first.
            select.select([], [], [], 0.1)
            return None
        connection.settimeout(SAYS_WITHIN)
        try:
            request = _receive(connection)
        except (OSError, ValueError, RecursionError):
            connection.close()
            return None
        # Another SuperExec's message would be given up with ours, which is about to end.
        if request.parent != self._parent or not _agree(connection):
            connection.close()
        elif self._fork(connection) == 0:
            return request
        for file in request.files:
            os.close(file)
        return None

    def _fork(self, connection: socket.socket) -> int:
        """Fork for a caller; return 0 in the fork, -1 if there is none."""
        try:
            # Kept free for the fork's own file, which must not fail once the fork lives.
            spare = os.dup(self._lock)
            try:
                fork = os.fork()
            finally:
                os.close(spare)
        except OSError as error:
            print(f"cannot fork: {error}", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                connection.sendall(NOT_FORKED)
            connection.close()
            return -1
        if fork:
            self._note(connection, fork)
            return fork
        self._forget()
        try:
            connection.sendall(FORKED)
        except OSError:
            # The caller was killed.
            os._exit(1)
        connection.close()
        return 0

    def _note(self, connection: socket.socket, fork: int) -> None:
        handle = os.pidfd_open(fork)
        self._callers[handle], self._forks[connection.fileno()] = connection, handle
        for file in (handle, connection.fileno()):
            self._poll.register(file, select.POLLIN)

    def _forget(self) -> None:
        """Let go, in a fork, of what is the fork server's."""
        for handle, connection in self._callers.items():
            os.close(handle)
            connection.close()
        self._listener.close()
        os.close(self._followed)
        os.close(self._lock)

    def _hear(self, caller: int) -> None:
        """Pass a caller's signals on to its fork; one that is gone was killed, and so is its fork."""
        handle = self._forks[caller]
        try:
            numbers = self._callers[handle].recv(64)
        except OSError:
            numbers = b""
        for number in numbers or bytes([signal.SIGKILL]):
            # It may have ended meanwhile.
            with contextlib.suppress(OSError, ValueError):
                signal.pidfd_send_signal(handle, number)
        if not numbers:
            # It stays open, so that its number is no other caller's, until the fork has ended.
            self._poll.unregister(caller)
            del self._forks[caller]

    def _reap(self, handle: int) -> None:
        """Tell a caller how its fork has ended."""
        connection = self._callers.pop(handle)
        if self._forks.pop(connection.fileno(), None) is not None:
            self._poll.unregister(connection)
        self._poll.unregister(handle)
        status = os.waitid(os.P_PIDFD, handle, os.WEXITED)
        os.close(handle)
        assert status is not None
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        # A caller that is gone was killed, and its fork for that.
        with contextlib.suppress(OSError):
            connection.sendall(STATUS.pack(code))
        connection.close()


def _agree(connection: socket.socket) -> bool:
    """Return whether a caller still wants the fork that it is offered: it may have lost its patience."""
    try:
        connection.sendall(READY)
        return connection.recv(1) == GO
    except OSError:
        return False


def _receive(connection: socket.socket) -> Request:
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 3, socket.MSG_CMSG_CLOEXEC)
    try:
        if len(head) != LENGTH.size or len(files) != 3 or LENGTH.unpack(head)[0] > LONGEST_REQUEST:
            raise ValueError("no request")
        content = b""
        while missing := LENGTH.unpack(head)[0] - len(content):
            if not (more := connection.recv(missing)):
                raise ValueError("cut short")
            content += more
        fields = json.loads(content)
        if not isinstance(fields, dict) or set(fields) != {"argv", "environment", "folder", "parent"}:
            raise ValueError("other fields")
        return Request(**fields, files=files)
    except BaseException:
        for file in files:
            os.close(file)
        raise


def _import(entry: str) -> Callable[[], int | str | None]:
    import gc
    import importlib

    module, _, function = entry.partition(":")
    task: Callable[[], int | str | None] = getattr(importlib.import_module(module), function)
    for name in ALSO:
        importlib.import_module(name)
    # Else the first collection of each fork would copy every page that holds an object.
    gc.collect()
    gc.freeze()
    return task


def _become(request: Request) -> None:
    """Make this process, a fork, what its caller would be."""
    for number, file in enumerate(request.files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request.environment | {FOLLOWED: str(request.parent)})
    os.chdir(request.folder)
    sys.argv = request.argv


class _Folder:
    """A folder that is open, so that sockets in it have a short path: theirs may have 107 bytes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> _Folder:
        self._file = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def path(self, name: str) -> str:
        return f"/proc/self/fd/{self._file}/{name}"


def main() -> None:
    """Be a caller or the fork server, by the command line that ``fedface-silo warm`` or :func:`_start` made."""
    role, folder = sys.argv[1:3]
    if role == "call":
        call(folder, sys.argv[3], sys.argv[4], sys.argv[5:])
    task = serve(folder, int(sys.argv[3]), sys.argv[4])
    if task is not None:
        sys.exit(task())


if __name__ == "__main__":
    main()
