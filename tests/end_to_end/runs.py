# SPDX-License-Identifier: Apache-2.0
"""Starting real runs on tiny models, and looking at what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fedface_flwr.reporting.metrics import Event, read_metrics
from fedface_flwr.reporting.run_folder import RunFolder

TINY = (
    "model.width=2",
    "model.input_size=16",
    "model.embedding=8",
    "training.batch_size=8",
    "training.rounds=3",
    "training.steps_per_round=2",
    "data.synthetic.identities=6",
    "data.synthetic.images_per_identity=4",
    "data.synthetic.pairs=40",
    "data.synthetic.pair_identities=20",
    "fv.pairs=20",
    "fv.every=1",
)


def start(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start ``fedface`` on a tiny synthetic federation, in a working folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    return launch(folder, *TINY, f"run.dir={folder / 'run'}", *overrides)


def launch(folder: Path, *arguments: str, module: str = "fedface_flwr.launch") -> subprocess.Popen[str]:
    """Start ``fedface``, or another command, with these arguments alone."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a run; return its exit code and what it printed on both streams."""
    try:
        out, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=60)
        raise AssertionError(f"the run took too long; it printed:\n{out}{err}") from None
    return process.returncode, out, err


def events_of(folder: Path, kind: str) -> list[Event]:
    """Return a run's events of one kind."""
    return [event for event in read_metrics(folder / "run" / "metrics.jsonl") if event["event"] == kind]


def wait_for_round(run: Path, number: int) -> None:
    """Wait until the run of a folder has saved its state and is over with a round."""
    folder, deadline = RunFolder(run), time.monotonic() + 240
    while not folder.state.exists() or not any(
        event["event"] == "round" and event["round"] >= number for event in read_metrics(folder.metrics)
    ):
        assert time.monotonic() < deadline, "the run does not come to its rounds"
        time.sleep(0.05)


def living_processes(folder: Path) -> dict[int, str]:
    """Return the ids and command lines of processes that a run left behind: those that still work in its folder."""
    left = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(str(folder)):
                left[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            # It ended while we looked, or is another user's.
            continue
    return left


def environment_of(process: int) -> dict[str, str]:
    """Return a process's environment as it was started with."""
    entries = Path(f"/proc/{process}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def children(process: int) -> list[int]:
    """Return the ids of a process's children."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found
