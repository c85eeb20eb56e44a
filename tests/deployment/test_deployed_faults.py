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


@pytest.mark.parametrize("victim", ["SuperNode", "ClientApp"])
def test_a_silo_whose_process_is_killed_in_mid_round_is_missed_and_comes_back(
    federation: Deployment, data: dict[str, Path], tmp_path: Path, victim: str
) -> None:
    rounds = 8 if victim == "SuperNode" else 4
    with Submitted(
        federation, tmp_path / "run", *LONG, "federation.min_trainers=2", f"training.rounds={rounds}"
    ) as run:
        times = federation.connections("gamma")
        run.wait_busy("gamma", after=1)
        if victim == "SuperNode":
            federation.kill("gamma")
        else:
            os.kill(client_app(federation, "gamma"), signal.SIGKILL)
        run.wait_round(2)
        if victim == "SuperNode":
            federation.wait_connected("gamma", times + 1)
        run.finish()
    missed = missing_rounds(run)
    assert set(missed) == {"gamma"}
    assert 2 in missed["gamma"]
    assert missed["gamma"][-1] < rounds, "gamma did not come back"
    second = next(event for event in run.events("round") if event["round"] == 2)
    assert sum(second["weights"].values()) == pytest.approx(1)
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


def test_a_service_killed_in_mid_round_changes_nothing(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    with Submitted(federation, tmp_path / "run", *LONG) as run:
        run.wait_busy("alpha", after=1)
        before = service_of(federation, "alpha")
        os.kill(before, signal.SIGKILL)
        run.finish()
        assert service_of(federation, "alpha") != before
    assert missing_rounds(run) == {}
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


def test_a_slow_silo_is_left_out_its_late_reply_ignored_and_its_next_one_used(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    options = (*LONG, "federation.min_trainers=2", "federation.round_timeout=30", "training.rounds=5")
    with Submitted(federation, tmp_path / "run", *options) as run:
        run.wait_busy("beta", after=1)
        with stopped(service_of(federation, "beta")):
            run.wait_round(2)
        run.finish()
    missed = missing_rounds(run)
    assert set(missed) == {"beta"}
    assert missed["beta"][0] == 2
    assert missed["beta"][-1] < 5, "beta did not come back"
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


def test_validation_goes_on_without_a_validator_that_dies(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    with Submitted(federation, tmp_path / "run", "training.rounds=5", "fv.every=1") as run:
        times = federation.connections("delta")
        run.wait_round(2)
        federation.kill("delta")
        run.wait_round(4)
        federation.wait_connected("delta", times + 1)
        run.finish()
    scored = [set(event["scores"]) for event in run.events("validation")]
    assert scored[0] == {"delta", "epsilon"}
    assert {"epsilon"} in scored
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


def test_a_silo_that_cannot_write_says_so_and_comes_back(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    with Submitted(federation, tmp_path / "run", *LONG, "federation.min_trainers=2", "training.rounds=5") as run:
        run.wait_busy("alpha", after=1)
        service = service_of(federation, "alpha")
        limits = resource.prlimit(service, resource.RLIMIT_FSIZE, (256, resource.RLIM_INFINITY))
        run.wait_round(3)
        resource.prlimit(service, resource.RLIMIT_FSIZE, limits)
        run.finish()
    missed = missing_rounds(run)
    assert set(missed) == {"alpha"}
    assert missed["alpha"][-1] < 5, "alpha did not come back"
    warnings = " ".join(event["message"] for event in run.events("warning"))
    assert "alpha: StateError; the silo's own log has the reason under" in warnings
    assert str(federation.kits) not in warnings
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))


@pytest.mark.parametrize("fault", ["killed", "disk"])
def test_a_serverapp_that_ends_is_resumed_by_one_command(
    federation: Deployment, data: dict[str, Path], tmp_path: Path, fault: str
) -> None:
    folder = tmp_path / "run"
    with Submitted(federation, folder, *LONG, "training.rounds=5") as run:
        run.wait_round(2)
        process = server_app(folder, federation)
        if fault == "killed":
            os.kill(process, signal.SIGKILL)
        else:
            resource.prlimit(process, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        printed = run.finish(expected=1)
    if fault == "disk":
        assert "cannot be written" in printed
        assert "free some space and resume the run" in printed
    with Submitted(federation, folder, f"resume={folder}") as again:
        assert "resumed after round" in again.finish()
    assert [event["round"] for event in again.events("round")] == [1, 2, 3, 4, 5]
    assert_same_bits(again.model(), undisturbed(tmp_path / "again", again, data))


def test_two_runs_at_once_on_the_same_silos_do_not_touch_each_other(
    federation: Deployment, data: dict[str, Path], tmp_path: Path
) -> None:
    with (
        Submitted(federation, tmp_path / "one", "seed=1") as one,
        Submitted(federation, tmp_path / "two", "seed=2", "strategy=pfm") as two,
    ):
        one.finish()
        two.finish()
    for run in (one, two):
        assert_same_bits(run.model(), undisturbed(tmp_path / f"again-{run.folder.name}", run, data))


def test_a_run_outlives_its_superlink(federation: Deployment, data: dict[str, Path], tmp_path: Path) -> None:
    """Last of this module's: the parties must find the new SuperLink first."""
    folder = tmp_path / "run"
    with Submitted(federation, folder, *LONG, "training.rounds=5") as run:
        run.wait_round(1)
        federation.kill("superlink")
        run._process.wait(timeout=300)
    if not (folder / "summary.json").exists():
        with Submitted(federation, folder, f"resume={folder}") as run:
            run.finish()
    assert [event["round"] for event in run.events("round")] == [1, 2, 3, 4, 5]
    assert_same_bits(run.model(), undisturbed(tmp_path / "again", run, data))
