# SPDX-License-Identifier: Apache-2.0
"""How a silo's service comes to life and ends: by hand, with the process that it follows, of idleness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from service_processes import COMMAND, HERE, OPTIONS, call, eventually, log_of, run, service_of, start_caller

from clients.node import Node
from clients.service.proxy import supernode_pid
from fedface_flwr.errors import FedFaceError


@contextmanager
def someone_else() -> Iterator[subprocess.Popen[bytes]]:
    """A process that can be followed."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def served(node: Node, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A service that was started by hand."""
    command = [*COMMAND, "serve", "--silo-dir", str(node.silo_dir), "--party", "alpha", "--role", "trainer"]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    process = subprocess.Popen([*command, *OPTIONS, *options], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: run("status", silo=node.silo_dir).returncode == 0 or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


def test_it_is_used_when_it_was_started_by_hand_and_status_and_stop_know_it(node: Node) -> None:
    with served(node) as service:
        assert call(node, do="echo").scalars["pid"] == service.pid
        status = run("status", silo=node.silo_dir)
        assert status.stdout == f"process {service.pid} serves alpha (trainer) and waits\n"
        assert run("stop", silo=node.silo_dir).stdout == f"process {service.pid} has ended\n"
        assert service.wait(timeout=30) == 0
    assert not (node.silo_dir / "service.sock").exists()
    status, stop = run("status", silo=node.silo_dir), run("stop", silo=node.silo_dir)
    assert (status.returncode, status.stderr) == (1, f"fedface-silo: {node.silo_dir}: no service runs here\n")
    assert (stop.returncode, stop.stdout) == (0, f"{node.silo_dir}: no service runs here\n")


def test_status_says_that_it_computes(node: Node) -> None:
    with served(node) as service:
        caller = start_caller(node, do="wait", name="one")
        eventually(lambda: (node.silo_dir / "begun-one").exists())
        assert (
            run("status", silo=node.silo_dir).stdout == f"process {service.pid} serves alpha (trainer) and computes\n"
        )
        (node.silo_dir / "go").touch()
        assert caller.communicate(timeout=60)[1] == ""
        assert caller.returncode == 0


def test_a_second_one_says_who_the_first_is(node: Node) -> None:
    with served(node) as first, served(node) as second:
        assert second.wait(timeout=30) == 1
        assert second.communicate()[1] == (
            f"fedface-silo: {node.silo_dir}: process {first.pid} is this silo's service; a silo has one\n"
        )
        assert call(node, do="echo").scalars["pid"] == first.pid


def test_a_socket_that_a_killed_one_left_is_no_obstacle(node: Node) -> None:
    with served(node) as first:
        first.kill()
        first.wait()
        assert (node.silo_dir / "service.sock").exists()
        with served(node) as second:
            assert call(node, do="echo").scalars["pid"] == second.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_a_signal(node: Node, number: signal.Signals) -> None:
    with served(node) as service:
        call(node, do="echo")
        service.send_signal(number)
        assert service.wait(timeout=30) == 0
    assert f"ends: signal {number.name}" in log_of(node)
    assert not (node.silo_dir / "service.sock").exists()


def test_one_that_does_not_react_is_killed_by_stop(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(node) as service:
        call(node, do="echo")
        service.send_signal(signal.SIGSTOP)
        # What it takes thirty seconds to find out on the command line.
        code = "import sys; from clients.service import command; command.ENDS_WITHIN = 0.5; command.main(sys.argv[1:])"
        subprocess.run([sys.executable, "-c", code, "stop", "--silo-dir", str(node.silo_dir)], timeout=60, check=True)
        assert service.wait(timeout=30) == -signal.SIGKILL


def test_it_ends_after_an_idle_time_and_the_next_message_starts_another(node: Node) -> None:
    with served(node, "--idle", "0.5") as service:
        call(node, do="echo")
        assert service.wait(timeout=30) == 0
    assert "ends: no message for 0.5 s" in log_of(node)
    assert call(node, do="echo").scalars["pid"] != service.pid


def test_it_ends_with_the_process_that_it_follows_while_it_waits(node: Node) -> None:
    with someone_else() as followed:
        call(node, follow=followed.pid, do="echo")
        assert service_of(node)
        followed.kill()
        # Before anybody has asked what became of it: it need not have been buried.
        eventually(lambda: service_of(node) is None, 10)
    assert "the process that it follows is gone" in log_of(node)


def test_it_ends_with_the_process_that_it_follows_while_it_computes(node: Node) -> None:
    with someone_else() as followed:
        call(node, follow=followed.pid, do="echo")
        caller = start_caller(node, follow=followed.pid, do="wait", name="one")
        eventually(lambda: (node.silo_dir / "begun-one").exists())
        followed.kill()
        followed.wait()
        eventually(lambda: service_of(node) is None, 10)
        # Its caller finds nobody to follow, so that no service is left without an owner.
        assert "could not start" in caller.communicate(timeout=60)[1]
    assert not (node.silo_dir / "done-one").exists()
    assert "gone, in the middle of a message" in log_of(node)
    with pytest.raises(FedFaceError, match="could not start"):
        call(node, follow=followed.pid, do="echo")


def test_it_outlives_who_started_it(node: Node) -> None:
    caller = start_caller(node, do="echo")
    out, err = caller.communicate(timeout=60)
    assert (caller.returncode, err) == (0, "")
    assert f'"pid": {service_of(node)}' in out
    assert os.getsid(service_of(node) or 0) == service_of(node)
    assert call(node, do="echo").scalars["pid"] == service_of(node)


def test_the_silos_folder_may_lie_deep(node: Node) -> None:
    deep = replace(node, silo_dir=node.silo_dir / "/".join(["a folder with a name of some length"] * 20))
    assert len(str(deep.silo_dir)) > 600
    try:
        assert call(deep, do="echo").scalars["pid"] == service_of(deep)
        assert run("status", silo=deep.silo_dir).returncode == 0
    finally:
        assert run("stop", silo=deep.silo_dir).returncode == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--role", "trainer", "--party", "../x"], "party='../x'"),
        (["--role", "trainer", "--party", "alpha", "--follow", "4194304"], "process 4194304"),
        (["--role", "trainer", "--party", "alpha", "--answer", "clients.party:nothing"], "no such function"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(node: Node, options: list[str], reason: str) -> None:
    done = run("serve", *options, silo=node.silo_dir)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("fedface-silo: ")
    assert reason in last
    assert "Traceback" not in done.stderr
    assert service_of(node) is None


def test_a_folder_that_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("serve", "--party", "alpha", "--role", "trainer", silo=tmp_path / "file" / "silo")
    assert done.returncode == 1
    assert "cannot be the silo's private folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_asking_imports_nothing_heavy() -> None:
    code = "import sys, clients.service.proxy; print([n for n in ('torch', 'flwr', 'sklearn') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_supernode_is_found_among_the_ancestors_and_nowhere_else(tmp_path: Path) -> None:
    assert supernode_pid() is None
    (tmp_path / "ask.py").write_text("from clients.service.proxy import supernode_pid\nprint(supernode_pid())\n")
    # As Flower does it: the SuperNode starts a SuperExec, which starts a process for the message.
    program = "import os, subprocess, sys\nprint(os.getpid(), flush=True)\n"
    program += f"subprocess.run(['sh', '-c', {sys.executable!r} ' ask.py flower-supernode.txt; true'])\n"
    (tmp_path / "flower-supernode").write_text(program)
    command = [sys.executable, "flower-supernode", "--superlink", "nowhere"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    supernode, found = done.stdout.split()
    assert supernode == found
