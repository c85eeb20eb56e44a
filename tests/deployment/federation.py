# SPDX-License-Identifier: Apache-2.0
"""A whole provisioned federation on this machine: real kits, real scripts, real processes, on free ports.

    with Deployment(folder, [Member("alpha", "trainer", data), Member("delta", "validator")]) as federation:
        federation.flwr("run", app, federation.link)     # Flower's command line on the server; returns its JSON
        federation.kill("alpha")                         # its SuperNode, by SIGKILL; its start.sh starts another
        federation.wait_connected("alpha", 2)            # has connected twice by now
        federation.stop("delta")                         # its start.sh, by SIGTERM, with all that it started
        federation.start("delta")

Parties by their names; ``server`` is the server's kit, whose processes are ``superlink``, ``superexec`` and ``door``.
Without nginx, or where the door does not matter, ``door=False`` lets the parties connect to the SuperLink's own port.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

MARK = "FEDFACE_DEPLOYMENT"
SERVER_PROCESSES = ("superlink", "superexec", "door")
# A process of Flower's takes some 5 s to start on a machine that has nothing else to do.
PATIENCE = 180.0


@dataclass(frozen=True)
class Member:
    """A party of a deployment.

    Parameters
    ----------
    name, role : str
        As in FEDERATION.yaml.
    data : Path
        Data folder; it need not be there.
    node_config : str
        More of Flower's node configuration, such as ``'delay=2.5'``.
    declares : str
        The role that the party's kit was changed to declare, if it is not the agreed one.
    """

    name: str
    role: str
    data: Path = Path("/nonexistent/data")
    node_config: str = ""
    declares: str = ""


class Deployment:
    """A federation that is up inside a ``with`` block, with all its members connected.

    Parameters
    ----------
    folder : Path
        An empty folder of its own; kits are made in ``kits`` below it.
    members : sequence of Member
        The parties.
    door : bool
        Whether parties come through nginx.
    policy : mapping
        The parties' policy, as in FEDERATION.yaml.
    """

    link = "trial"

    def __init__(
        self, folder: Path, members: Sequence[Member], *, door: bool = True, policy: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.kits, self.door = folder, folder / "kits", door
        self.members = {member.name: member for member in members}
        self.policy = dict(policy or {})
        self.port, self.control_port = free_ports(2)
        self._token = secrets.token_hex(8)
        self._scripts: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Deployment:
        try:
            self.provision()
            self.start("server")
            self.wait_for(lambda: "is open at" in self.console("server"), "the server is open")
            for name in self.members:
                self.start(name)
            for name in self.members:
                self.wait_connected(name)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs())
        self.end()

    def provision(self, members: Iterable[Member] | None = None) -> str:
        """Run ``fedface-provision`` for the members, or for others; return what it printed."""
        chosen = list(self.members.values() if members is None else members)
        description = {
            "name": self.link,
            "server": {"address": "127.0.0.1", "port": self.port, "control_port": self.control_port},
            "policy": self.policy,
            "parties": [{"name": m.name, "role": m.role, "data": str(m.data)} for m in chosen],
        }
        # JSON is YAML.
        path = self.folder / "FEDERATION.yaml"
        path.write_text(json.dumps(description))
        done = self.run_here(
            sys.executable, "-m", "fedface_flwr.provision.command", str(path), "-o", str(self.kits), check=True
        )
        for member in chosen:
            if member.declares:
                script = self.kits / member.name / "start.sh"
                script.write_text(script.read_text().replace(f"\nrole={member.role}\n", f"\nrole={member.declares}\n"))
        return done.stdout

    def start(self, name: str, kit: Path | None = None) -> None:
        """Start the server's or a party's script; a party's may lie in another folder than its own."""
        member = self.members.get(name)
        arguments = [] if self.door or name != "server" else ["--no-door"]
        extra = {"FEDFACE_NODE_CONFIG": member.node_config} if member else {}
        console = self._console(name)
        with console.open("wb") as output:
            self._scripts[name] = subprocess.Popen(
                [str((kit or self.kits / name) / "start.sh"), *arguments],
                env=self.environment | extra,
                # Where a person would be who calls the script by its path.
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, name: str) -> int:
        """End the server's or a party's script as a service manager does; return its exit code."""
        script = self._scripts.pop(name)
        script.send_signal(signal.SIGTERM)
        return script.wait(timeout=60)

    def wait_ended(self, name: str) -> int:
        """Wait until a script ends by itself; return its exit code."""
        self.wait_for(lambda: self._scripts[name].poll() is not None, f"the script of {name} has ended")
        return self._scripts.pop(name).returncode

    def process(self, name: str) -> int:
        """Return the id of a process: a party's SuperNode, or ``superlink``, ``superexec`` or ``door``."""
        kit, what = ("server", name) if name in SERVER_PROCESSES else (name, "supernode")
        return int((self.kits / kit / "run" / f"{what}.pid").read_text())

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process; its script starts another when it ends."""
        os.kill(self.process(name), number)

    def connections(self, name: str) -> int:
        """Return how often a party's SuperNodes have connected since its script was started."""
        return self.console(name).count(f"{name} is connected to federation")

    def wait_connected(self, name: str, times: int = 1) -> None:
        """Wait until a party's SuperNodes have connected that often since its script was started."""
        self.wait_for(lambda: self.connections(name) >= times, f"{name} has connected {times} times", ended=name)

    def wait_for(self, condition: Callable[[], bool], what: str, ended: str = "server") -> None:
        """Wait for a condition; fail with the federation's logs if it does not come, or a script ends meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            script = self._scripts.get(ended)
            if time.monotonic() > deadline or (script is not None and script.poll() is not None and not condition()):
                raise AssertionError(f"it did not come to pass that {what}\n{self.logs()}")
            time.sleep(0.2)

    def flwr(self, *arguments: str) -> Any:
        """Run Flower's command line on the server; return its answer, which must be of success."""
        done = self.run_here("flwr", *arguments, "--format", "json")
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
            if not answer["success"]:
                raise ValueError
        except (ValueError, KeyError):
            raise AssertionError(f"flwr {' '.join(arguments)} printed\n{done.stdout}{done.stderr}") from None
        return answer

    def nodes(self) -> dict[str, str]:
        """Return the status of every registered party's node, as Flower's command line tells it."""
        listed = {node["node-id"]: node["status"] for node in self.flwr("supernode", "list", self.link)["nodes"]}
        records = (self.kits / "server/state/nodes").iterdir()
        return {record.name: listed[record.read_text().split()[0]] for record in records}

    def run_here(self, *command: str, check: bool = False, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in the deployment's environment; ``extra`` are more variables of it."""
        return subprocess.run(
            command,
            env=self.environment | extra,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=check,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of an operator on the server, which parties' scripts share but for what they set."""
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.kits / "server/flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "no_proxy": "127.0.0.1,localhost",
            MARK: self._token,
        } | ({} if self.door else {"FEDFACE_SUPERLINK": f"127.0.0.1:{self.control_port}"})

    def console(self, name: str) -> str:
        """Return what a script has printed since its last start."""
        return self._console(name).read_text(errors="replace")

    def _console(self, name: str) -> Path:
        return self.folder / f"{name}.console"

    def logs(self) -> str:
        """Return the ends of all consoles and logs, for a person who wonders what went wrong."""
        paths = [*sorted(self.folder.glob("*.console")), *sorted(self.kits.glob("server/logs/*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def processes(self) -> dict[int, str]:
        """Return the ids and command lines of the deployment's living processes, known by a mark in their environment.

        nginx writes its title over its environment; it ends with the script, by its process id.
        """
        mark = f"{MARK}={self._token}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
                if marked and (line := (entry / "cmdline").read_bytes()):
                    found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                # It ended while we looked, or is another user's.
                continue
        return found

    def end(self) -> None:
        """End everything, the parties before the server; what is left after that is killed."""
        for name in sorted(self._scripts, key=lambda name: name == "server"):
            script = self._scripts.pop(name)
            script.terminate()
            try:
                script.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(script.pid, signal.SIGKILL)
                script.wait()
        for process in self.processes():
            try:
                handle = os.pidfd_open(process)
                try:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    # A signal is sent before it is obeyed, and the next deployment is to find none of this one.
                    select.select([handle], [], [], 60)
                finally:
                    os.close(handle)
            except ProcessLookupError:
                continue


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
