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
from pathlib import Path
from types import TracebackType

from fedface_flwr.config import Config
from fedface_flwr.errors import FedFaceError
from fedface_flwr.flower import PATIENCE, FlowerRun, quiet_environment
from fedface_flwr.run_processes import MARK, Keeper, RunProcesses

LOG = "superlink.log"
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
        self._processes = RunProcesses(secrets.token_hex(8), config.run.dir)

    def __enter__(self) -> Simulation:
        # Of a run that ended; its log has been named to someone.
        if self._home.exists():
            earlier = len(list(self._home.parent.glob("flower.interrupted-*")))
            self._home.rename(self._home.with_name(f"flower.interrupted-{earlier + 1}"))
        self._home.mkdir(parents=True)
        self._ray = _ray_folder(Path.cwd() / ".fedface")
        self._keeper = Keeper(self._processes, self._ray)
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
            MARK: self._processes.token,
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
        """What to tell a person who stops to follow the run: nothing, for it ends with its launcher."""
        return ""

    def _end(self) -> None:
        """End everything, though a person is impatient."""
        # A second Ctrl-C must not leave the rest behind.
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            self._end_all()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _end_all(self) -> None:
        self._processes.end()
        if hasattr(self, "_superlink"):
            self._superlink.wait(timeout=PATIENCE)
            self._log.close()
        shutil.rmtree(self._ray, ignore_errors=True)
        self._keeper.dismiss()


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
