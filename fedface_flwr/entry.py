# SPDX-License-Identifier: Apache-2.0
"""The commands' entries: Ctrl-C ends each with one line and status 130, from its first moment to its last.

Importing what a command needs takes seconds, so it is done here, under guard, and this module imports nothing of it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def fedface() -> int | None:
    """Run ``fedface``."""
    return _run("fedface", "fedface_flwr.launch")


def compare() -> int | None:
    """Run ``fedface-compare``."""
    return _run("fedface-compare", "fedface_flwr.compare")


def provision() -> int | None:
    """Run ``fedface-provision``."""
    return _run("fedface-provision", "fedface_flwr.provision.command")


def evaluate() -> int | None:
    """Run ``fedface-eval``."""
    return _run("fedface-eval", "fedface_flwr.protocols.command")


def data() -> int | None:
    """Run ``fedface-data``."""
    return _run("fedface-data", "fedface_flwr.dataprep.command")


def export() -> int | None:
    """Run ``fedface-export``."""
    return _run("fedface-export", "fedface_flwr.export.command")


def silo() -> int | None:
    """Run ``fedface-silo``."""
    return _run("fedface-silo", "clients.service.command")


def supernode() -> int | None:
    """Run ``fedface-supernode``."""
    return _run("fedface-supernode", "clients.supernode")


def _run(command: str, module: str) -> int | None:
    """Return what a module's ``main`` returns, or ``INTERRUPTED``."""
    said = f"{command}: interrupted\n"

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, said.encode())
        os._exit(INTERRUPTED)

    try:
        try:
            given = signal.getsignal(signal.SIGINT)
            # Nothing is begun yet, and an exception could be swallowed inside of an import, or taken for a library
            # that is not there. Where the interrupt is ignored, as under nohup, it stays so.
            if given is signal.default_int_handler:
                signal.signal(signal.SIGINT, end)
            main = importlib.import_module(module).main
            signal.signal(signal.SIGINT, given)
            status: int | None = main()
            return status
        finally:
            # All is done and said. While Python ends, an interrupt would be a trace, or the signal's raw status.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write(said)
        return INTERRUPTED
