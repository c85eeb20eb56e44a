# SPDX-License-Identifier: Apache-2.0
"""The fork server of ClientApps: real processes that ask it, are forked, and die."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service_processes import HERE, eventually

from clients.service.command import install
from clients.service.forkserver import COMMAND, LENGTH, SOCKET

COLD = '#!/bin/sh\necho cold >>"$0.calls"\nexit 9\n'


class ShortPath:
    """A short path of a folder, while a block runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        self._file = os.open(self._folder, os.O_PATH)
        return f"/proc/self/fd/{self._file}"

    def __exit__(self, *error: object) -> None:
        os.close(self._file)


class Site:
    """A folder with the command that asks a fork server, and the command that it stands in for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ("deep" * 30) / "bin"
        self.folder.mkdir(parents=True, mode=0o700)
        self.cold = folder / "cold"
        self.cold.write_text(COLD)
        self.cold.chmod(0o700)
        self.command = install(self.folder, str(self.cold), "fork_entry:run")
        self.results = folder / "results"
        self.results.mkdir()
        self._count = 0
        self.started: list[subprocess.Popen[str]] = []

    def start(self, what: str, *before: str, **environment: str) -> tuple[subprocess.Popen[str], Path]:
        """Start a caller; return it, and where its fork will say what it is."""
        self._count += 1
        result = self.results / str(self._count)
        process = subprocess.Popen(
            [*before, self.command, str(result), what, "--parent-pid", str(os.getpid())],
            env={**os.environ, "PYTHONPATH": str(HERE), **environment},
            cwd=self.results,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process, result

    def call(self, what: str, text: str = "", **environment: str) -> tuple[int, dict[str, Any] | None, str]:
        """Call to the end; return exit status, what the fork said it is (None: there was none), and the output."""
        process, result = self.start(what, **environment)
        out, err = process.communicate(text, timeout=60)
        return process.returncode, read(result), out + err

    def called_twice(self, files: str = "", then: str = ":") -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Have a shell call until there is a fork server that follows it, and again; return it and the fork's state."""
        program = f'"$0" "$@" --parent-pid $$; read line; "$0" "$@" --parent-pid $$ {files}; {then}'
        shell, result = self.start("0", "sh", "-c", program)
        eventually(self.listens)
        assert shell.stdin is not None
        shell.stdin.write("go on\n")
        shell.stdin.flush()
        eventually(result.exists)
        state = read(result)
        assert state is not None
        return shell, state

    def warm(self) -> int:
        """Have a fork server up; return its process."""
        assert self.call("0")[0] == 9
        eventually(self.listens)
        return self.server()

    def listens(self) -> bool:
        """Return whether a fork server takes connections."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, ShortPath(self.folder) as folder:
            return probe.connect_ex(f"{folder}/{SOCKET}") == 0

    def server(self) -> int:
        """Return the fork server's process."""
        _, state, _ = self.call("0")
        assert state is not None, "no fork server answers"
        return int(state["parent"])

    def cold_calls(self) -> int:
        """Return how often the command itself was run."""
        calls = self.cold.with_name("cold.calls")
        return len(calls.read_text().splitlines()) if calls.exists() else 0


def read(result: Path) -> dict[str, Any] | None:
    return json.loads(result.read_text()) if result.exists() else None


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for server in servers_of(site):
        os.kill(server, signal.SIGKILL)
    for process in site.started:
        process.kill()
        # A fork that outlived the two would hold the pipes.
        process.communicate(timeout=30)


def servers_of(site: Site) -> list[int]:
    """Return all processes, fork server or fork, that belong to a site."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in line and os.fsencode(site.folder) in line and alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def test_the_first_call_is_the_command_itself_and_the_next_are_forks(site: Site) -> None:
    server = site.warm()
    assert site.cold_calls() == 1
    states = [site.call(str(status), MARK=f"mark {status}") for status in (0, 3, 255)]
    assert [status for status, _, _ in states] == [0, 3, 255]
    for status, state, _ in states:
        assert state is not None
        assert state["argv"][0] == str(site.cold)
        assert state["folder"] == str(site.results)
        assert state["mark"] == f"mark {status}"
        assert state["parent"] == server
        assert state["followed"] == str(os.getpid())
        assert state["seen"] == 1, "a fork holds what another one did"
        assert state["app"] == [], "the fork server has imported the app, so that a fork could not import another"
    assert len({state["pid"] for _, state, _ in states if state}) == 3
    assert site.cold_calls() == 1


def test_a_fork_has_the_callers_files_and_no_others(site: Site) -> None:
    site.warm()
    waiting, result = site.start("wait")
    eventually(result.exists)
    _, first, output = site.call("copy", "a text\n")
    assert output == "A TEXT\nalso here\n"
    _, alone, _ = site.call("0")
    first_wait = read(result)
    assert first
    assert alone
    assert first_wait
    # Standard files, and the one that lists them: neither the server's nor other callers'.
    assert first["files"] == alone["files"] == first_wait["files"] == 4
    waiting.kill()


def test_a_callers_signals_reach_its_fork(site: Site) -> None:
    site.warm()
    caller, result = site.start("wait")
    eventually(result.exists)
    caller.terminate()
    assert caller.wait(30) == 7
    assert read(result) == {"ended": signal.SIGTERM}


def test_a_killed_callers_fork_is_killed(site: Site) -> None:
    site.warm()
    (caller, result), (other, untouched) = site.start("wait"), site.start("wait")
    eventually(lambda: result.exists() and untouched.exists())
    fork, neighbour = read(result), read(untouched)
    assert fork
    assert neighbour
    caller.kill()
    eventually(lambda: not alive(fork["pid"]))
    assert alive(neighbour["pid"])
    other.kill()


def test_a_caller_ends_as_its_fork_did(site: Site) -> None:
    site.warm()
    caller, result = site.start("wait")
    eventually(result.exists)
    state = read(result)
    assert state
    os.kill(state["pid"], signal.SIGKILL)
    assert caller.wait(30) == -signal.SIGKILL


def test_after_the_fork_servers_death_the_command_itself_is_run_and_another_server_starts(site: Site) -> None:
    server = site.warm()
    caller, result = site.start("wait")
    eventually(result.exists)
    fork = read(result)
    assert fork
    os.kill(server, signal.SIGKILL)
    assert caller.wait(30) == 1
    assert alive(fork["pid"]), "a fork has begun to answer its message"
    os.kill(fork["pid"], signal.SIGKILL)
    assert "the fork server of" in caller.communicate(timeout=30)[1]
    assert site.warm() != server
    assert site.cold_calls() == 2


def test_a_fork_server_ends_with_the_process_it_follows(site: Site) -> None:
    parent, state = site.called_twice(then="cat")
    assert state["followed"] == str(parent.pid)
    assert site.call("0")[:2] == (9, None), "forked for the child of another process than it follows"
    server = state["parent"]
    assert alive(server)
    parent.kill()
    eventually(lambda: not alive(server))
    assert not (site.folder / SOCKET).exists()


def test_a_halted_fork_server_is_not_waited_for_and_does_nothing_twice(site: Site) -> None:
    server = site.warm()
    os.kill(server, signal.SIGSTOP)
    try:
        caller, result = site.start("0")
        assert caller.wait(30) == 9
    finally:
        os.kill(server, signal.SIGCONT)
    assert site.cold_calls() == 2
    assert site.server() == server
    assert not result.exists(), "the fork server has forked for a caller that gave it up"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0",
        LENGTH.pack(10),
        LENGTH.pack(2**32 - 1),
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(2) + b"{}",
        LENGTH.pack(2) + b"\xff\xff",
    ],
)
def test_nonsense_ends_a_connection_and_nothing_else(site: Site, said: bytes) -> None:
    server = site.warm()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with ShortPath(site.folder) as folder:
            connection.connect(f"{folder}/{SOCKET}")
        if said:
            socket.send_fds(connection, [said], [0, 1, 2])
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(30)
        assert connection.recv(1) == b""
    assert site.server() == server


def test_many_first_callers_start_one_fork_server(site: Site) -> None:
    callers = [site.start("0")[0] for _ in range(6)]
    for caller in callers:
        caller.communicate(timeout=60)
        assert caller.returncode in (0, 9)
    eventually(lambda: site.listens() and len(servers_of(site)) == 1)
    assert site.server() == servers_of(site)[0]


def test_a_stale_socket_is_replaced(site: Site) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left, ShortPath(site.folder) as path:
        left.bind(f"{path}/{SOCKET}")
    assert site.warm()


def test_who_is_no_superexecs_child_gets_the_command_itself_and_no_fork_server(site: Site) -> None:
    for arguments in ([], ["--parent-pid", "1"], ["--parent-pid", str(os.getppid())], ["--parent-pid"]):
        done = subprocess.run([site.command, "result", "0", *arguments], cwd=site.results, timeout=60)
        assert done.returncode == 9
    assert servers_of(site) == []
    assert not (site.folder / SOCKET).exists()


@pytest.mark.parametrize("left", [0, 1, 4])
def test_a_fork_server_out_of_files_is_done_without_and_goes_on(site: Site, left: int) -> None:
    """None for the connection, none for the caller's files, none for the fork's own."""
    server = site.warm()
    files = len(os.listdir(f"/proc/{server}/fd"))
    before = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (files + left, before[1]))
    try:
        caller, result = site.start("0")
        assert caller.wait(60) == 9
    finally:
        resource.prlimit(server, resource.RLIMIT_NOFILE, before)
    assert site.server() == server
    assert not result.exists()


def test_a_fork_server_whose_socket_was_removed_makes_room_for_another(site: Site) -> None:
    server = site.warm()
    (site.folder / SOCKET).unlink()
    eventually(lambda: not alive(server))
    assert site.warm() != server


def test_a_caller_without_a_working_folder_becomes_the_command_itself(site: Site) -> None:
    site.warm()
    program = 'mkdir gone; cd gone; rmdir ../gone; "$0" "$@" --parent-pid $$; exit $?'
    caller, result = site.start("0", "sh", "-c", program)
    assert caller.wait(60) == 9
    assert not result.exists()


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_callers_connection_is_never_taken_for_one_of_its_files(site: Site, closed: str) -> None:
    _, state = site.called_twice(files=closed)
    assert state["files"] == 4


def test_the_command_is_installed_by_fedface_silo(tmp_path: Path) -> None:
    folder = tmp_path / "it's a bin"
    command = [sys.executable, "-m", "clients.service.command", "warm", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    path = folder / COMMAND
    assert done.stdout == f"{path}\n"
    assert folder.stat().st_mode & 0o077 == 0
    # Flower's own command answers, since no fork server is up: it misses the token that a SuperExec would give it.
    answer = subprocess.run([path, "--insecure"], capture_output=True, text=True, timeout=60)
    assert "--token" in answer.stderr
    assert answer.returncode == 2


def test_a_folder_may_have_any_name_that_can_stand_on_path(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clients.service.command", "warm"]
    strange = tmp_path / os.fsdecode(b"\xff")
    done = subprocess.run([*command, strange], capture_output=True, timeout=60, check=True)
    assert done.stdout == os.fsencode(strange / COMMAND) + b"\n"
    assert os.listdir(strange) == [COMMAND]
    split = subprocess.run([*command, tmp_path / "a:b"], capture_output=True, text=True, timeout=60)
    assert split.returncode == 1
    assert "cannot have ':' in its name" in split.stderr


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "clients.service.command", "warm", str(tmp_path / "file" / "bin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr
