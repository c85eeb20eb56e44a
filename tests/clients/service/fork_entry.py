# SPDX-License-Identifier: Apache-2.0
"""What the forks of a test do: say what they are, and what they were told to."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from types import FrameType

seen = 0


def run() -> int:
    """Write what this process is to the file that it is told, then do what it is told; return its exit status."""
    global seen
    seen += 1
    path, what = sys.argv[1:3]
    state = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "argv": sys.argv,
        "folder": os.getcwd(),
        "followed": os.environ.get("FEDFACE_SUPEREXEC"),
        "mark": os.environ.get("MARK"),
        "seen": seen,
        "app": sorted(name for name in sys.modules if name.split(".")[0] in ("clients", "fedface_flwr")),
        "files": len(os.listdir("/proc/self/fd")),
    }
    if what == "wait":
        signal.signal(signal.SIGTERM, lambda number, frame: _end(path, number, frame))
    with open(f"{path}.tmp", "w") as file:
        json.dump(state, file)
    os.replace(f"{path}.tmp", path)
    if what == "wait":
        while True:
            time.sleep(60)
    if what == "copy":
        print(sys.stdin.read().upper(), end="")
        print("also here", file=sys.stderr)
        return 0
    return int(what)


def _end(path: str, number: int, frame: FrameType | None) -> None:
    with open(path, "w") as file:
        json.dump({"ended": number}, file)
    sys.exit(7)
