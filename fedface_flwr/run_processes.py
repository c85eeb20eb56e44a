# SPDX-License-Identifier: Apache-2.0
"""The processes of a simulated run, known by a mark in their environment, and who ends them when all is over.

This file is also run by its path, as the keeper, and imports nothing of its package.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = "FEDFACE_RUN"
READY = b"ready"
PATIENCE = 10.0
"""Seconds that processes have to end by themselves."""


@dataclass(frozen=True)
class RunProcesses:
    """All that a run has started.

    Ray's helpers write their title over their environment; they are known by that title and the folder they run in.

    Parameters
    ----------
    token : str
        The value of the mark.
    folder : str
        The run's, in which they work.
    """

    token: str
    folder: str

    def __iter__(self) -> Iterator[int]:
        """Yield the ids of those that live."""
        mark = f"{MARK}={self.token}".encode()
        here = os.path.realpath(self.folder)
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
                titled = (entry / "cmdline").read_bytes().startswith(b"ray::")
                inside = titled and os.readlink(entry / "cwd") == here
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                # It ended while we looked, or is another user's.
                continue
            if (marked or inside) and not dead:
                yield int(entry.name)

    def end(self) -> None:
        """End them all; Ray's outlive the one that started them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + PATIENCE
            while (left := list(self)) and time.monotonic() < deadline:
                for process in left:
                    _kill(process, number)
                time.sleep(0.2)


class Keeper:
    """A process that ends a run's when its launcher has gone without doing so, as when that one was killed.

    Parameters
    ----------
    processes : RunProcesses
        Whom to end.
    sockets : Path
        A folder of theirs that is to go with them.

    Raises
    ------
    OSError
        If it does not start.
    """

    def __init__(self, processes: RunProcesses, sockets: Path) -> None:
        arguments = [processes.token, processes.folder, str(sockets)]
        # In a session of its own, where no Ctrl-C reaches it.
        self._process = subprocess.Popen(
            # By its path and with -P: what lies in the folder that a person works in is not imported for what is meant.
            [sys.executable, "-P", __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._process.stdout is None or self._process.stdout.read(len(READY)) != READY:
            raise ChildProcessError(f"the keeper of the run's processes did not start: {sys.executable} {__file__}")

    def dismiss(self) -> None:
        """Tell it that all is over."""
        self._process.communicate(b"over")


def simulated_in(run: Path) -> bool:
    """Return whether a process of any simulation works in a run's folder, as just after its launcher was killed."""
    here = os.path.realpath(run)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inside = os.readlink(folder / "cwd") == here
            if inside and f"\0{MARK}=".encode() in b"\0" + (folder / "environ").read_bytes():
                return True
        except OSError:
            # It ended while we looked, or is another user's.
            continue
    return False


def _kill(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        # It ended by itself in the meantime.
        return


def main() -> None:
    """Be the keeper: wait for the launcher's word, or for the end of the pipe, which is that of the launcher."""
    token, folder, sockets = sys.argv[1:]
    os.write(sys.stdout.fileno(), READY)
    if not sys.stdin.buffer.read():
        RunProcesses(token, folder).end()
        shutil.rmtree(sockets, ignore_errors=True)


if __name__ == "__main__":
    main()
