# SPDX-License-Identifier: Apache-2.0
"""``flwr run .`` with the project's own defaults: Flower's local SuperLink, two nodes, no launcher of ours."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import TINY

from fedface_flwr.flower import APP
from fedface_flwr.reporting.summary import read_summary


class Flower:
    """Flower's command line with a home and a port of its own."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.home = home
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home / "flwr"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def __call__(self, *arguments: str) -> Any:
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
        )
        # Starting the local SuperLink prints a line before the answer.
        return json.loads(done.stdout[done.stdout.index("{") :])

    def stop(self) -> None:
        """End the SuperLink that the first command started, and all that it started."""
        home = f"FLWR_HOME={self.home / 'flwr'}".encode()
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline and (left := self._processes(home)):
                for process in left:
                    os.kill(process, number)
                time.sleep(0.2)

    def _processes(self, home: bytes) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if home in (entry / "environ").read_bytes().split(b"\0") and (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    command_line = Flower(tmp_path)
    yield command_line
    command_line.stop()


@pytest.mark.timeout(900)
def test_flwr_run_with_the_defaults(flower: Flower, tmp_path: Path) -> None:
    # Of a run there that ended before its first round, nothing is in the way.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"event": "error", "time": 0, "message": "no silo"}\n')
    overrides = shlex.join([*TINY, f"run.dir={tmp_path / 'run'}", "training.rounds=2"])
    run_id = flower("run", str(APP), "--run-config", f"overrides={json.dumps(overrides)}")["run-id"]
    status = ""
    while not status.startswith("finished"):
        status = flower("ls", "--run-id", run_id)["runs"][0]["status"]
    assert status == "finished:completed"
    summary = read_summary(tmp_path / "run" / "summary.json")
    assert (summary["method"], summary["rounds"], set(summary["tests"])) == ("fedface", 2, {"delta", "epsilon"})
    assert "no silo" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
