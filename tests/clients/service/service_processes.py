# SPDX-License-Identifier: Apache-2.0
"""Silo services and their callers as processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from clients.exchange import Answer, Request
from clients.node import Node
from clients.service.folder import ServiceFolder, holder
from clients.service.proxy import ask

HERE = Path(__file__).resolve().parent
OPTIONS = ("--answer", "service_answers:answer")
COMMAND = [sys.executable, "-m", "clients.service.command"]
CALLERS: list[subprocess.Popen[str]] = []
CALLER = (
    "import json, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
    "from clients.node import deployed; from service_processes import call;"
    "node = deployed({'party': 'alpha', 'role': 'trainer', 'silo-dir': sys.argv[2]});"
    "print(json.dumps(call(node, follow=int(sys.argv[3]) or None, **json.loads(sys.argv[4])).scalars))"
)


def call(node: Node, follow: int | None = None, **scalars: int | float | str) -> Answer:
    """Ask the silo's service from this process."""
    return ask(Request("train", "{}", [], scalars), node, follow=follow, options=OPTIONS)


def start_caller(node: Node, follow: int = 0, **scalars: int | float | str) -> subprocess.Popen[str]:
    """Ask it from a new process, which prints the answer's scalars."""
    command = [sys.executable, "-c", CALLER, str(HERE), str(node.silo_dir), str(follow), json.dumps(scalars)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    CALLERS.append(process)
    return process


def end_callers() -> None:
    """End the callers that a failed test has left."""
    for process in CALLERS:
        process.kill()
        process.wait()
    CALLERS.clear()


def run(*arguments: str, silo: Path) -> subprocess.CompletedProcess[str]:
    """Run ``fedface-silo``."""
    command = [*COMMAND, *arguments, "--silo-dir", str(silo)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def service_of(node: Node) -> int | None:
    """Return the id of the process that is the silo's service."""
    return holder(ServiceFolder(node.silo_dir))


def log_of(node: Node) -> str:
    """Return the service's log."""
    return ServiceFolder(node.silo_dir).log.read_text()


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
