# SPDX-License-Identifier: Apache-2.0
"""A silo's service behind a real SuperNode, whose every message is a new process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from service_processes import COMMAND, HERE, eventually, log_of, service_of

from clients.node import Node
from fedface_flwr.simulation import _free_port

PROJECT = """
[project]
name = "probe"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "fedface"
[tool.flwr.app.components]
serverapp = "probe:server"
clientapp = "probe:client"
"""

# What it does for a message is what fedface does: find the SuperNode, ask the service, answer.
PROBE = """
import json
import os
import time

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    for number in range(3):
        message = Message(RecordDict({"n": MetricRecord({"number": number})}), nodes[0], "query.ask")
        grid.send_and_receive([message])


@client.query("ask")
def ask(message: Message, context: Context) -> Message:
    from clients.exchange import Request
    from clients.node import deployed
    from clients.service.proxy import ask, supernode_pid

    node = deployed(context.node_config)
    begin = time.perf_counter()
    request = Request("train", "{}", [], {"do": "echo"})
    answer = ask(request, node, follow=supernode_pid(), options=("--answer", "service_answers:answer"))
    seconds = time.perf_counter() - begin
    result = {"service": answer.scalars["pid"], "supernode": supernode_pid() or 0, "own": os.getpid()}
    with open(f"/proc/{os.getppid()}/cmdline") as parent:
        result["forked"] = "forkserver.py" in parent.read()
    with (node.silo_dir / "results").open("a") as file:
        print(json.dumps({**result, "seconds": seconds}), file=file)
    return Message(RecordDict(), reply_to=message)
"""


@contextmanager
def flower(folder: Path, *command: str, path: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A part of Flower, ended with all that it started."""
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "PATH": os.pathsep.join([*path, str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), str(HERE)]),
        "FLWR_HOME": str(folder / "home"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    with (folder / f"{command[0]}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # The session is the process's own, and so is everything in it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def install_warm(folder: Path) -> str:
    done = subprocess.run([*COMMAND, "warm", str(folder)], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def results_of(node: Node) -> list[dict[str, float]]:
    results = node.silo_dir / "results"
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.timeout(180)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_messages_share_one_service_which_ends_with_their_supernode(node: Node, tmp_path: Path, warm: bool) -> None:
    app, home = tmp_path / "app", tmp_path / "home"
    app.mkdir()
    home.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "probe.py").write_text(PROBE)
    link, runtime = _free_port(), _free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "it"\n[superlink.it]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    path = [str(Path(install_warm(tmp_path / "bin")).parent)] if warm else []
    own = f'party="alpha" role="trainer" silo-dir="{node.silo_dir}"'
    with ExitStack() as running:
        running.enter_context(
            flower(tmp_path, "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(link))
        )
        eventually(lambda: listens(link), 60)
        name = "fedface-supernode" if warm else "flower-supernode"
        command = [name, "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(runtime)]
        supernode = running.enter_context(flower(tmp_path, *command, "--node-config", own, path=path))
        submit = running.enter_context(flower(tmp_path, "flwr", "run", str(app), "it"))
        assert submit.wait(60) == 0, (tmp_path / "flwr.log").read_text()
        eventually(lambda: len(results_of(node)) == 3, 120)
        results = results_of(node)
        service = service_of(node)
        assert {result["supernode"] for result in results} == {supernode.pid}
        assert {result["service"] for result in results} == {service}
        print("seconds of each message", [result["seconds"] for result in results])
        assert len({result["own"] for result in results}) == 3
        # The first message finds no fork server, and starts it.
        assert [result["forked"] for result in results] in ([[False, True, True]] if warm else [[False] * 3])
        supernode.kill()
        eventually(lambda: service_of(node) is None)
    assert "the process that it follows is gone" in log_of(node)
