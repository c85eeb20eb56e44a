# SPDX-License-Identifier: Apache-2.0
"""A SuperLink of a run's own, and everything that it starts, from its first process to its last."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from fedface_flwr.config import Config
from fedface_flwr.errors import FedFaceError
from fedface_flwr.flower import PATIENCE, FlowerRun, quiet_environment

LOG = "superlink.log"
MARK = "FEDFACE_RUN"
# A Unix socket's path may have 107 bytes; Ray appends some 70 to its folder's.
LONGEST_RAY_PATH = 36


class Simulation:
    """Flower's simulation for one run, in a SuperLink on a free port with a home of its own.

    Two runs at once share nothing, and no process or file outside the run's folder stays when the context ends.

    Parameters
    ----------
    config : Config
        The run's configuration, with absolute paths.

    Raises
    ------
    FedFaceError
        If Flower cannot be started, or the run ends without having succeeded.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._home = Path(config.run.dir) / "flower"
        self._token = secrets.token_hex(8)

    def __enter__(self) -> Simulation:
        # Of a run that ended; its log has been named to someone.
        if self._home.exists():
            earlier = len(list(self._home.parent.glob("flower.interrupted-*")))
            self._home.rename(self._home.with_name(f"flower.interrupted-{earlier + 1}"))
        self._home.mkdir(parents=True)
        self._ray = _ray_folder(Path.cwd() / ".fedface")
        self._environment = self._make_environment()
        self._flower = FlowerRun(self._config, "run", self._environment, f"see {self._home / LOG}")
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if error is None:
            shutil.rmtree(self._home, ignore_errors=True)

    def _make_environment(self) -> dict[str, str]:
        """Keep Flower, Ray and their tools to the run's folder, quiet, and off the network."""
        return {
            **{name: value for name, value in quiet_environment().items() if name != "RAY_ADDRESS"},
            "FLWR_HOME": str(self._home),
            "RAY_TMPDIR": str(self._ray),
            "RAY_USAGE_STATS_ENABLED": "0",
            "MPLCONFIGDIR": str(self._home / "matplotlib"),
            # Everything here talks over the loopback interface, which no proxy reaches.
            "no_proxy": "127.0.0.1,localhost",
            "NO_PROXY": "127.0.0.1,localhost",
            MARK: self._token,
        }

    def _start(self) -> None:
        port = _free_port()
        self._log = (self._home / LOG).open("wb")
        command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
        self._superlink = subprocess.Popen(
            command,
            env=self._environment,
            cwd=self._config.run.dir,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        (self._home / "config.toml").write_text(
            f'[superlink]\ndefault = "run"\n\n[superlink.run]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        deadline = time.monotonic() + PATIENCE
        while not _healthy(port):
            if self._superlink.poll() is not None or time.monotonic() > deadline:
                raise FedFaceError(f"Flower's SuperLink did not start; see {self._log.name}")
            time.sleep(0.1)

    def submit(self) -> None:
        """Hand the run to the SuperLink."""
        actors = self._config.federation.actors or len(self._config.parties)
        resources = {
            "num-supernodes": len(self._config.parties),
            "client-resources-num-cpus": 1,
            "client-resources-num-gpus": self._config.federation.gpus,
            "init-args-num-cpus": actors,
            "init-args-log-to-driver": "false",
        }
        federation = " ".join(f"{key}={value}" for key, value in resources.items())
        self._flower.submit(self._home, federation)

    def check(self) -> bool:
        """Return whether the run has succeeded; False means that it goes on.

        Raises
        ------
        FedFaceError
            If it has failed, with Flower's reason.
        """
        if self._superlink.poll() is not None:
            raise FedFaceError(f"Flower's SuperLink ended; see {self._log.name}")
        return self._flower.check()

    def wait(self) -> None:
        """Wait until Flower has closed a run that reported its end."""
        self._flower.wait()

    @property
    def left_behind(self) -> str:
        """What to tell a person who stops to follow the run: it ends with its launcher."""
        return "interrupted"

    def _end(self) -> None:
        """End the SuperLink, then whatever of this run is left: Ray's processes outlive the one that started them."""
        # A second Ctrl-C must not leave the rest behind.
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            self._end_all()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _end_all(self) -> None:
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            deadline = time.monotonic() + patience
            while (left := list(self._processes())) and time.monotonic() < deadline:
                for process in left:
                    _kill(process, number)
                time.sleep(0.2)
        if hasattr(self, "_superlink"):
            self._superlink.wait(timeout=PATIENCE)
            self._log.close()
        shutil.rmtree(self._ray, ignore_errors=True)

    def _processes(self) -> Iterator[int]:
        """Yield the ids of this run's living processes, which carry its mark in their environment.

        Ray's helpers write their title over their environment; they are known by that title and the folder they run in.
        """
        mark = f"{MARK}={self._token}".encode()
        here = os.path.realpath(self._config.run.dir)
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = mark in (folder / "environ").read_bytes().split(b"\0")
                titled = (folder / "cmdline").read_bytes().startswith(b"ray::")
                inside = titled and os.readlink(folder / "cwd") == here
                dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                # It ended while we looked, or is another user's.
                continue
            if (marked or inside) and not dead:
                yield int(folder.name)


def simulated_in(run: Path) -> bool:
    """Return whether a process of any simulation works in a run's folder, as when its launcher alone was killed."""
    here = os.path.realpath(run)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inside = os.readlink(folder / "cwd") == here
            if inside and f"\0{MARK}=".encode() in b"\0" + (folder / "environ").read_bytes():
                return True
        except OSError:
            # It ended while we looked, or is another user's.
            continue
    return False


def _kill(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        # It ended by itself in the meantime.
        return


def _healthy(port: int) -> bool:
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://127.0.0.1:{port}/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ray_folder(base: Path) -> Path:
    """Return a new folder for Ray's sockets: inside the project if its path is short enough, else a temporary one."""
    base.mkdir(parents=True, exist_ok=True)
    inside = Path(tempfile.mkdtemp(prefix="ray-", dir=base))
    if len(os.fsencode(inside)) <= LONGEST_RAY_PATH:
        return inside
    inside.rmdir()
    short = len(os.fsencode(tempfile.gettempdir())) < LONGEST_RAY_PATH - len("/fedface-12345678")
    return Path(tempfile.mkdtemp(prefix="fedface-", dir=None if short else "/tmp"))
