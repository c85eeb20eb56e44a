# SPDX-License-Identifier: Apache-2.0
"""Runs on a deployed federation, and the same runs undisturbed, in one process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from faces import RUN, TRAINERS, VALIDATORS
from federation import PATIENCE, Deployment, Member
from flwr.app import Message
from grid import PartyGrid, party_of
from omegaconf import OmegaConf
from safetensors.numpy import load_file

from clients.adapter import scalars_of
from clients.service.folder import ServiceFolder
from clients.service.proxy import ping
from fedface_flwr.config import Config, from_container
from fedface_flwr.reporting.metrics import Event, read_metrics
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies import STRATEGIES


def members_of(data: Mapping[str, Path]) -> list[Member]:
    """Return the members of the tests' federation."""
    roles = dict.fromkeys(TRAINERS, "trainer") | dict.fromkeys(VALIDATORS, "validator")
    return [Member(name, role, data[name]) for name, role in roles.items()]


class Submitted:
    """``fedface federation=deploy`` on a deployment, in the background.

    Parameters
    ----------
    federation : Deployment
        Which must be up.
    folder : Path
        The run's.
    overrides : str
        Added to :data:`faces.RUN`; ``resume=FOLDER`` alone goes on with a run.
    """

    def __init__(self, federation: Deployment, folder: Path, *overrides: str) -> None:
        self.federation, self.folder = federation, folder
        own = overrides if overrides[:1] == (f"resume={folder}",) else (*RUN, f"run.dir={folder}", *overrides)
        launch = ("federation=deploy", f"superlink={federation.link}") if own is not overrides else ()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedface_flwr.launch", *launch, *own],
            env=federation.environment,
            cwd=federation.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.communicate(timeout=PATIENCE)

    def finish(self, expected: int = 0) -> str:
        """Wait for the run's end and return what was printed; the exit code must be the expected one."""
        printed, _ = self._process.communicate(timeout=PATIENCE + 120)
        assert self._process.returncode == expected, f"{printed}\n{self.federation.logs()}"
        return printed

    def wait_ended(self) -> str:
        """Wait until the command ends, however it does, and return what it printed."""
        return self._process.communicate(timeout=2 * PATIENCE + 120)[0]

    def events(self, kind: str) -> list[Event]:
        """Return the run's events of one kind until now."""
        path = self.folder / "metrics.jsonl"
        return [event for event in read_metrics(path) if event["event"] == kind] if path.exists() else []

    def wait_round(self, number: int) -> None:
        """Wait until a round is over."""
        self._wait(lambda: any(e["round"] == number for e in self.events("round")), f"round {number} is over")

    def wait_busy(self, party: str, after: int) -> None:
        """Wait until a party's service computes, once round ``after`` is over."""
        self.wait_round(after)
        service = ServiceFolder(self.federation.kits / party / "state")

        def busy() -> bool:
            state = ping(service)
            return state is not None and bool(state["busy"])

        self._wait(busy, f"{party} computes", pause=0.01)

    def _wait(self, condition: Callable[[], bool], what: str, pause: float = 0.1) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                printed = self._process.communicate(timeout=5)[0] if self._process.poll() is not None else ""
                raise AssertionError(f"it did not come to pass that {what}\n{printed}\n{self.federation.logs()}")
            time.sleep(pause)

    def model(self) -> dict[str, np.ndarray]:
        """Return the final model's tensors."""
        return load_file(self.folder / "checkpoint.safetensors")


def undisturbed(folder: Path, run: Submitted, data: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Run a deployed run's configuration again in this process, with the same set of replies; return its tensors.

    A trainer that a round missed answers that round by an error; a validator that a validation round missed likewise.
    """
    saved = OmegaConf.to_container(OmegaConf.load(run.folder / "config.yaml"))
    assert isinstance(saved, dict)
    config = from_container(saved)
    missing = {(e["round"], name) for e in run.events("round") for name in e["missing"]}
    scored = {e["validation"]: set(e["scores"]) for e in run.events("validation")}
    model = FlatModel(build_backbone(config.model, config.seed))
    loop = STRATEGIES[config.strategy.name](config, "first", model.layout, model.state(), lambda event: None)

    def refuse(message: Message) -> None:
        scalars, party, kind = scalars_of(message), party_of(message), message.metadata.message_type
        validates = kind == "evaluate" and scalars["purpose"] == "validation"
        if (kind == "train" and (scalars["round"], party) in missing) or (
            validates and party not in scored.get(scalars["number"], set())
        ):
            raise ConnectionError("as in the run that was disturbed")

    with PartyGrid(config, node_configs=list(_nodes(config, folder, data))) as grid:
        grid.before = dict.fromkeys(config.parties, refuse)
        loop.start(grid)
    return loop.models["global"].tensors(loop.layout)


def _nodes(config: Config, folder: Path, data: Mapping[str, Path]) -> Iterator[dict[str, Any]]:
    for name, role in config.roles.items():
        own = {"party": name, "role": role, "silo-dir": str(folder / name), "data": str(data[name])}
        yield {**own, "service": False}


def assert_same_bits(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> None:
    """Compare two models' tensors."""
    assert sorted(first) == sorted(second)
    for name, tensor in first.items():
        np.testing.assert_array_equal(tensor, second[name], err_msg=name)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Halt a process for the block."""
    import os

    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def server_app(folder: Path, federation: Deployment) -> int:
    """Return the id of the process that runs a run's ServerApp: the one that holds the run folder's lock."""
    lock = (folder / "run.lock").stat()
    for process in federation.processes():
        try:
            held = [entry.stat() for entry in Path(f"/proc/{process}/fd").iterdir()]
        except OSError:
            continue
        if any((entry.st_dev, entry.st_ino) == (lock.st_dev, lock.st_ino) for entry in held):
            return process
    raise AssertionError(f"no process holds {folder / 'run.lock'}")


def client_app(federation: Deployment, party: str) -> int:
    """Return the id of the ClientApp's process that a party's SuperNode has running."""
    ancestor = federation.process(party)
    for process in federation.processes():
        try:
            title = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"flwr-clientapp" in title and ancestor in _ancestors(process):
                return process
        except OSError:
            # It ended while we looked.
            continue
    raise AssertionError(f"no ClientApp runs for {party}")


def _ancestors(process: int) -> Iterator[int]:
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        yield process


def missing_rounds(run: Submitted) -> dict[str, Sequence[int]]:
    """Return the rounds that each party missed."""
    found: dict[str, list[int]] = {}
    for event in run.events("round"):
        for name in event["missing"]:
            found.setdefault(name, []).append(event["round"])
    return found
