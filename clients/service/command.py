# SPDX-License-Identifier: Apache-2.0
"""``fedface-silo``: runs a silo's service, says whether one runs, ends it, and lets ClientApps start warm."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import select
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from clients.node import deployed
from clients.service import forkserver
from clients.service.folder import Lock, ServiceFolder, holder
from clients.service.forkserver import COMMAND, ENTRY
from clients.service.host import Answerer, Host, log
from clients.service.proxy import ping
from fedface_flwr.errors import FedFaceError
from fedface_flwr.files import replacing

ANSWER = "clients.party:answer"
IDLE = 1800.0
# How long an ending process may take, and how long one may take to say who it is.
ENDS_WITHIN, SAYS_WITHIN = 30.0, 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except FedFaceError as error:
        print(f"fedface-silo: {error}", file=sys.stderr)
        return 1
    return 0


def serve(options: argparse.Namespace) -> None:
    """Be the silo's service until there is a reason to end."""
    # Whatever a silo's service writes is the silo's alone.
    os.umask(0o077)
    folder = _folder(options)
    folder.make_private()
    configuration = {"party": options.party, "role": options.role, "silo-dir": str(folder.path)}
    policy = {"policy": str(options.policy)} if options.policy else {}
    node = deployed({**configuration, **policy, "data": options.data})
    assert node is not None
    lock = _lock(folder, options.lock)
    lock.sign()
    _log_to(folder)
    try:
        Host(folder, node, partial(_load, options.answer), options.idle).serve(options.follow)
    except FedFaceError as error:
        log.error("%s", error)
        raise


def status(options: argparse.Namespace) -> None:
    """Print what the service does."""
    folder = _folder(options)
    state = ping(folder)
    if state is None:
        raise FedFaceError(f"{folder.path}: no service runs here")
    doing = "computes" if state["busy"] else "waits"
    print(f"process {state['pid']} serves {state['party']} ({state['role']}) and {doing}")


def stop(options: argparse.Namespace) -> None:
    """End the service, even one that does not answer; the next message starts another."""
    folder = _folder(options)
    process = _holder(folder)
    if process is None:
        print(f"{folder.path}: no service runs here")
        return
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    # A service that cannot even be terminated loses nothing by being killed: the silo's store is always whole.
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal.pidfd_send_signal(handle, number)
        if poll.poll(ENDS_WITHIN * 1000):
            print(f"process {process} has ended")
            return
    raise FedFaceError(f"process {process} does not end, not even when killed")


def warm(options: argparse.Namespace) -> None:
    """Write a flwr-clientapp into DIR: with DIR first on its PATH, a SuperNode's ClientApps have Flower imported."""
    folder = options.dir.resolve()
    if os.pathsep in str(folder):
        raise FedFaceError(f"{folder}: a folder on PATH cannot have {os.pathsep!r} in its name")
    ServiceFolder(folder).make_private()
    beside = Path(sys.executable).with_name(COMMAND)
    others = [entry for entry in os.get_exec_path() if Path(entry).resolve() != folder]
    command = str(beside) if beside.exists() else shutil.which(COMMAND, path=os.pathsep.join(others))
    if command is None:
        raise FedFaceError(f"{COMMAND} is neither beside {sys.executable} nor on PATH; is Flower installed?")
    try:
        path = install(folder, command)
        # As bytes: a path is any.
        sys.stdout.buffer.write(os.fsencode(path) + b"\n")
    except OSError as error:
        raise FedFaceError(f"{folder / COMMAND}: cannot be written ({error.strerror})") from error


def install(folder: Path, command: str, entry: str = ENTRY) -> Path:
    """Write the command that is to be first on PATH, and return its path.

    Parameters
    ----------
    folder : Path
        A private folder, absolute, in which it and the fork server's socket, lock and log lie.
    command : str
        Flower's own command, absolute.
    entry : str
        What that command runs, as ``module:function``.
    """
    script = os.path.abspath(forkserver.__file__)
    words = [sys.executable, "-I", "-S", script, "call", str(folder), entry, command]
    path = folder / COMMAND
    with replacing(path, durable=False) as temporary:
        temporary.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'))
        temporary.chmod(0o700)
    return path


def _holder(folder: ServiceFolder) -> int | None:
    deadline = time.monotonic() + SAYS_WITHIN
    while (process := holder(folder)) == 0:
        if time.monotonic() > deadline:
            raise FedFaceError(f"{folder.path}: a service is starting but does not say which process it is")
        time.sleep(0.02)
    return process


def _lock(folder: ServiceFolder, handed_over: int | None) -> Lock:
    lock = Lock.take(folder) if handed_over is None else Lock.adopt(folder, handed_over)
    if lock is None:
        process = _holder(folder)
        raise FedFaceError(f"{folder.path}: process {process} is this silo's service; a silo has one")
    return lock


def _log_to(folder: ServiceFolder) -> None:
    """Log to the folder's log, and to whoever started the service by hand."""
    handlers: list[logging.Handler] = [logging.FileHandler(folder.log)]
    if not os.path.samestat(os.fstat(2), folder.log.stat()):
        handlers.append(logging.StreamHandler())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, handlers=handlers)


def _load(path: str) -> Answerer:
    module, _, function = path.partition(":")
    try:
        answer: Answerer = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise FedFaceError(f"--answer {path}: no such function ({error})") from error
    return answer


def _folder(options: argparse.Namespace) -> ServiceFolder:
    return ServiceFolder(options.silo_dir.absolute())


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedface-silo", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for function in (serve, status, stop):
        command = commands.add_parser(function.__name__, help=function.__doc__, description=function.__doc__)
        command.set_defaults(run=function)
        command.add_argument("--silo-dir", type=Path, required=True, metavar="DIR", help="the silo's private folder")
        if function is serve:
            _add_serve(command)
    command = commands.add_parser("warm", help=warm.__doc__, description=warm.__doc__)
    command.set_defaults(run=warm)
    command.add_argument("dir", type=Path, metavar="DIR", help="a private folder, which is created")
    return parser


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--party", required=True, metavar="NAME", help="the party's name in the run's configuration")
    command.add_argument("--role", required=True, choices=("trainer", "validator"))
    command.add_argument("--data", default="", metavar="PATH", help="where its images or pairs lie")
    command.add_argument("--policy", default="", metavar="FILE", help="what it lets itself be asked (policy.toml)")
    command.add_argument(
        "--idle",
        type=_seconds,
        default=IDLE,
        metavar="SECONDS",
        help="end after so long without a message (%(default)g)",
    )
    command.add_argument(
        "--follow", type=int, metavar="PID", help="end when this process ends, as the silo's SuperNode"
    )
    command.add_argument("--answer", default=ANSWER, help=argparse.SUPPRESS)
    command.add_argument("--lock", type=int, help=argparse.SUPPRESS)


if __name__ == "__main__":
    sys.exit(main())
