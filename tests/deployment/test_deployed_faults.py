# SPDX-License-Identifier: Apache-2.0
"""Runs on a real federation under faults: processes killed, halted and denied their disk.

After every fault the final model is that of an undisturbed run with the same set of replies, to the bit.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from faces import write_faces
from federation import Deployment
from submitted import (
    Submitted,
    assert_same_bits,
    client_app,
    members_of,
    missing_rounds,
    server_app,
    stopped,
    undisturbed,
)

from clients.service.folder import ServiceFolder, holder

LONG = ("training.steps_per_round=60",)
"""Rounds in which a fault can fall."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_faces(tmp_path_factory.mktemp("faces"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Path]) -> Iterator[Deployment]:
    door = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is not None
    with Deployment(tmp_path_factory.mktemp("federation"), members_of(data), door=door) as up:
        yield up


def service_of(federation: Deployment, party: str) -> int:
    process = holder(ServiceFolder(federation.kits / party / "state"))
    assert process
    return process


@pytest.mark.timeout(900)
def test_a_run_is_that_of_one_process_and_sends_differences(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    with Submitted(federation, tmp_path / "run") as run:
        printed = run.finish()
    assert "round 4/4" in printed
    assert "report:" in printed
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))
    assert [set(event["bytes"]["down"]) for event in run.events("round")] == [
        {"model", "counters"},
        *[{"difference", "statistics", "counters"}] * 3,
    ]
    assert all("model" not in event["bytes"]["up"] for event in run.events("round"))


@pytest.mark.timeout(900)
def test_killed_processes_are_missed_and_come_back(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    """A trainer's ClientApp and another's SuperNode in mid-round, then a validator's SuperNode as it is to score."""
    # Long enough to find a process among all and end it.
    steps = "training.steps_per_round=150"
    options = (steps, "federation.min_trainers=1", "training.rounds=7", "fv.every=1")
    with Submitted(federation, tmp_path / "run", *options) as run:
        times = {name: federation.connections(name) for name in ("gamma", "delta")}
        run.wait_busy("alpha", after=1)
        os.kill(client_app(federation, "alpha"), signal.SIGKILL)
        run.wait_busy("gamma", after=2)
        federation.kill("gamma")
        run.wait_round(3)
        federation.kill("delta")
        for name, before in times.items():
            federation.wait_connected(name, before + 1)
        run.finish()
    missed = missing_rounds(run)
    assert set(missed) == {"alpha", "gamma"}
    assert missed["alpha"][0] == 2
    assert missed["gamma"][0] == 3
    assert max(missed["alpha"][-1], missed["gamma"][-1]) < 7, "they did not come back"
    assert all(sum(event["weights"].values()) == pytest.approx(1) for event in run.events("round"))
    # The validator may be back before its question is given up: then it still answers.
    assert all("epsilon" in event["scores"] for event in run.events("validation"))
    assert set(run.events("validation")[-1]["scores"]) == {"delta", "epsilon"}
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


@pytest.mark.timeout(900)
def test_a_service_may_die_be_slow_and_find_no_disk(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    """Its death changes nothing; the late reply is ignored and the next one used; what it could not keep is named."""
    options = (*LONG, "federation.min_trainers=2", "federation.round_timeout=30", "training.rounds=8")
    with Submitted(federation, tmp_path / "run", *options) as run:
        run.wait_busy("alpha", after=1)
        before = service_of(federation, "alpha")
        os.kill(before, signal.SIGKILL)
        run.wait_busy("beta", after=2)
        assert service_of(federation, "alpha") != before
        with stopped(service_of(federation, "beta")):
            run.wait_round(3)
        run.wait_busy("gamma", after=4)
        service = service_of(federation, "gamma")
        limits = resource.prlimit(service, resource.RLIMIT_FSIZE, (256, resource.RLIM_INFINITY))
        run.wait_round(5)
        resource.prlimit(service, resource.RLIMIT_FSIZE, limits)
        run.finish()
    missed = missing_rounds(run)
    assert set(missed) == {"beta", "gamma"}
    assert missed["beta"][0] == 3
    assert missed["gamma"][0] == 5
    assert max(missed["beta"][-1], missed["gamma"][-1]) < 8, "they did not come back"
    warnings = " ".join(event["message"] for event in run.events("warning"))
    assert "gamma: StateError; the silo's own log has the reason under" in warnings
    assert str(federation.kits) not in warnings
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


@pytest.mark.timeout(900)
def test_a_serverapp_that_ends_is_resumed_by_one_command(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with Submitted(federation, folder, *LONG, "training.rounds=5") as run:
        run.wait_round(1)
        full = (4096, resource.RLIM_INFINITY)
        resource.prlimit(server_app(folder, federation), resource.RLIMIT_FSIZE, full)
        printed = run.finish(expected=1)
    assert "cannot be written" in printed
    assert "free some space and resume the run" in printed
    with Submitted(federation, folder, f"resume={folder}") as run:
        run.wait_round(3)
        os.kill(server_app(folder, federation), signal.SIGKILL)
        assert "the run is finished:failed" in run.finish(expected=1)
    with Submitted(federation, folder, f"resume={folder}") as run:
        assert "resumed after round" in run.finish()
    assert [event["round"] for event in run.events("round")] == [1, 2, 3, 4, 5]
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


@pytest.mark.timeout(900)
def test_two_runs_at_once_on_the_same_silos_outlive_the_superlink(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    """Last of this module's: the parties must find the new SuperLink first."""
    runs = [
        Submitted(federation, tmp_path / "one", *LONG, "seed=1"),
        Submitted(federation, tmp_path / "two", *LONG, "seed=2", "strategy=pfm"),
    ]
    with runs[0], runs[1]:
        for run in runs:
            run.wait_round(1)
        federation.kill("superlink")
        for run in runs:
            run.wait_ended()
    for run in runs:
        if not (run.folder / "summary.json").exists():
            with Submitted(federation, run.folder, f"resume={run.folder}") as again:
                again.finish()
        assert [event["round"] for event in run.events("round")] == [1, 2, 3, 4]
        assert_same_bits(run.model(), undisturbed(tmp_path / f"again-{run.folder.name}", run, data))
