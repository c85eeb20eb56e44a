# SPDX-License-Identifier: Apache-2.0
"""How the commands that run something end when somebody wants them to: with one line, and what they started ended."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from rich.console import Console

from fedface_flwr.errors import FedFaceError


class Ended(BaseException):
    """A signal asks for the end; what goes on is cleaned up on its way to the command's entry."""

    def __init__(self, number: int, note: str = "") -> None:
        super().__init__(f"ended by signal {number}{note and '; '}{note}")
        self.number, self.status = number, 128 + number


def end_by_exception() -> None:
    """Have SIGTERM and SIGHUP raise :class:`Ended` in the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup a hang-up stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


class HeardConsole(Console):
    """A console that says so when nobody reads it any more; rich ends the program without a word."""

    def on_broken_pipe(self) -> None:
        """Raise a FedFaceError."""
        leave_output()
        raise FedFaceError("nobody reads the output any more, and so the run was ended")


def leave_output() -> None:
    """Let what is still to be printed go nowhere: its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
