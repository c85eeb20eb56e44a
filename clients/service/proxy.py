# SPDX-License-Identifier: Apache-2.0
"""Asks the silo's service, which is started if there is none; for the short-lived process that Flower starts.

Imports nothing heavy: what it saves is the time that torch takes to be imported.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clients.exchange import Answer, Request
from clients.node import Node
from clients.service.channel import Channel, Parcel, WrongKey
from clients.service.code import ROOT, version
from clients.service.folder import Lock, ServiceFolder
from clients.service.forkserver import FOLLOWED
from clients.service.messages import PING, Fields, StaleService, read_answer, write_request
from fedface_flwr.errors import FedFaceError

SUPERNODES = (b"flower-supernode", b"fedface-supernode")
# A service binds its socket before it imports anything slow.
STARTS_WITHIN = 60.0
LOOKS_EVERY = 0.02
# Importing torch from a cold disk keeps all of a process's threads from running for many seconds.
PATIENCE, PINGS_WITHIN = 120.0, 10.0
MOST_DEATHS, MOST_CHANGES = 2, 5


def ask(request: Request, node: Node, *, follow: int | None, options: Sequence[str] = ()) -> Answer:
    """Have the silo's service answer a request.

    Parameters
    ----------
    request : Request
        What is asked.
    node : Node
        The node that this process belongs to.
    follow : int or None
        The process with which a service that is started here shall end; see :func:`supernode_pid`.
    options : Sequence of str
        Further options of ``fedface-silo serve`` for a service that is started here.

    Returns
    -------
    Answer
        Its arrays are read-only views of memory that the service wrote.

    Raises
    ------
    FedFaceError
        The error that the service met, of its own class; or that there is no service to be had.
    """
    node = replace(node, silo_dir=node.silo_dir.absolute())
    folder = ServiceFolder(node.silo_dir)
    folder.make_private()
    deaths = 0
    for _ in range(MOST_CHANGES):
        parcel = Parcel(write_request(request, node, version(node)), request.arrays)
        with parcel, _connect_or_start(folder, node, follow, options) as channel:
            try:
                channel.send(parcel)
                # The service has them: while it computes, nobody needs a second hold on the memory.
                parcel.close()
                channel.wait()
                return read_answer(*channel.receive())
            except StaleService:
                continue
            except BlockingIOError as error:
                raise FedFaceError("the silo service stalls in the middle of a message; end it") from error
            except (EOFError, ConnectionError):
                # The silo's store makes a repeated round give the same bits, so asking again is safe.
                deaths += 1
                if deaths == MOST_DEATHS:
                    break
    if deaths < MOST_DEATHS:
        raise FedFaceError("the silo service is replaced again and again, as if two versions of the app took turns")
    raise FedFaceError(f"the silo service ended {deaths} times on one {request.kind} message; its log may say why")


def ping(folder: ServiceFolder) -> Fields | None:
    """Return what the service says of itself, or None where none listens."""
    try:
        with connect(folder, PINGS_WITHIN) as channel, Parcel(PING) as parcel:
            channel.send(parcel)
            return channel.receive()[0]
    except (FileNotFoundError, ConnectionError, EOFError):
        return None


def connect(folder: ServiceFolder, patience: float) -> Channel:
    """Return a connection on which both sides have proved that they hold the key.

    Raises
    ------
    FileNotFoundError, ConnectionError or EOFError
        If nobody listens, or who did is about to end.
    FedFaceError
        If the service does not answer or has another key.
    """
    channel = Channel(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), patience)
    try:
        with folder.socket_path() as path:
            channel.connect(path)
        channel.prove(folder.key(), first=False)
    except BaseException as error:
        channel.close()
        if isinstance(error, WrongKey):
            raise FedFaceError("the silo service has another key than its folder; end it and ask again") from error
        if isinstance(error, BlockingIOError):
            raise FedFaceError("the silo service does not answer; end its process and ask again") from error
        raise
    return channel


def supernode_pid() -> int | None:
    """Return the id of the SuperNode that this process descends from, or None.

    A SuperNode starts a SuperExec, which starts a process for each message, or has it forked. In a container it may be
    process 1.
    """
    followed = os.environ.get(FOLLOWED, "")
    process = int(followed) if followed.isdecimal() else os.getppid()
    while process > 0:
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            # The command's own name may hold spaces and brackets; what follows the last one does not.
            parent = int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            return None
        if any(word.rpartition(b"/")[2] in SUPERNODES for word in words):
            return process
        process = parent
    return None


def _connect_or_start(folder: ServiceFolder, node: Node, follow: int | None, options: Sequence[str]) -> Channel:
    deadline = time.monotonic() + STARTS_WITHIN
    started: subprocess.Popen[bytes] | None = None
    while True:
        try:
            return connect(folder, PATIENCE)
        except (FileNotFoundError, ConnectionError, EOFError):
            pass
        if started is None:
            # Whoever takes the lock starts the one service; everybody else waits for it.
            lock = Lock.take(folder)
            if lock is not None:
                started = _start(folder, node, follow, options, lock)
        elif started.poll() is not None:
            raise FedFaceError(f"the silo service could not start (exit code {started.returncode}); its log says why")
        if time.monotonic() > deadline:
            if started is not None:
                started.kill()
            raise FedFaceError(f"the silo service does not answer within {STARTS_WITHIN:g} s; its log may say why")
        time.sleep(LOOKS_EVERY)


def _start(
    folder: ServiceFolder, node: Node, follow: int | None, options: Sequence[str], lock: Lock
) -> subprocess.Popen[bytes]:
    """Start the service, which gets the lock, as a process that outlives this one and its terminal."""
    # Without -P a folder of the working directory could stand in for a package of the app.
    command = [sys.executable, "-P", "-m", "clients.service.command", "serve", "--lock", str(lock.file)]
    command += ["--silo-dir", str(node.silo_dir), "--party", node.party, "--role", node.role, f"--data={node.data}"]
    command += [f"--policy={node.policy_file}"] if node.policy_file else []
    command += ["--follow", str(follow)] if follow is not None else []
    # Flower puts an app's folder on this process's path alone, and the service must run the same code.
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    log = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [*command, *options],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock.file],
            start_new_session=True,
        )
    finally:
        os.close(log)
        lock.close()
    # So that it does not stay as a zombie where it ends before this process.
    threading.Thread(target=process.wait, daemon=True).start()
    return process
