# SPDX-License-Identifier: Apache-2.0
"""The ``fedface`` command, as a person runs it: real processes, real Flower."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from runs import events_of, finish, launch, living_processes, start
from safetensors.numpy import load_file

from fedface_flwr.files import locked
from fedface_flwr.reporting.summary import read_summary


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of one seed in sync mode, at the same time on one machine."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    processes = [start(folder, "fv.mode=sync", "seed=3") for folder in folders]
    for process in processes:
        code, out, err = finish(process)
        assert code == 0, out + err
    return folders


@pytest.mark.timeout(900)
def test_two_runs_of_one_seed_at_once_end_in_the_same_bits(twins: list[Path]) -> None:
    one, two = (load_file(folder / "run" / "checkpoint.safetensors") for folder in twins)
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_a_run_leaves_its_folder_and_nothing_else(twins: list[Path]) -> None:
    run = twins[0] / "run"
    expected = {"config.yaml", "summary.json", "metrics.jsonl", "checkpoint.safetensors", "report.html", "plots"}
    assert expected | {"tensorboard", "silos"} == {path.name for path in run.iterdir()}
    assert {path.name for path in (run / "plots").iterdir()} == {"loss.png", "accuracy.png", "weights.png"}
    assert list((run / "tensorboard").iterdir())
    assert living_processes(twins[0]) == {}
    assert {path.name for path in twins[0].iterdir()} == {"run", ".fedface"}
    assert not list((twins[0] / ".fedface").glob("ray-*"))


def test_the_summary_holds_what_others_rely_on(twins: list[Path]) -> None:
    summary = read_summary(twins[0] / "run" / "summary.json")
    assert (summary["method"], summary["seed"], summary["rounds"], summary["steps_per_round"]) == ("fedface", 3, 3, 2)
    assert set(summary["loss_ema"]) == set(summary["bytes_sent"]) == {"alpha", "beta", "gamma"}
    assert set(summary["tests"]) == {"delta", "epsilon"}
    assert all(figures["pairs"] == 20 and 0 <= figures["accuracy"] <= 1 for figures in summary["tests"].values())
    assert sum(summary["weights"].values()) == pytest.approx(1)
    account = summary["account"]
    assert sum(v for k, v in account.items() if k != "total") == pytest.approx(account["total"])
    sent = sum(event["silos"]["alpha"]["bytes_up"] for event in events_of(twins[0], "round"))
    assert summary["bytes_sent"]["alpha"] == sent > 0


def test_no_head_and_no_image_is_in_what_the_server_kept(twins: list[Path]) -> None:
    names = load_file(twins[0] / "run" / "checkpoint.safetensors")
    assert not any("head" in name for name in names)
    heads = list((twins[0] / "run" / "silos").rglob("round-*.safetensors"))
    assert {path.parents[2].name for path in heads} == {"alpha", "beta", "gamma"}
    assert all("alpha.head" in load_file(path) for path in heads if path.parents[2].name == "alpha")


@pytest.mark.timeout(900)
def test_async_validation_rounds_finish_while_a_training_round_runs(tmp_path: Path) -> None:
    process = start(tmp_path, "fv.mode=async", "training.rounds=2", "training.steps_per_round=400", "fv.pairs=10")
    code, out, err = finish(process)
    assert code == 0, out + err
    finished = Counter(event["training_round"] for event in events_of(tmp_path, "validation"))
    # The second round's validation works on the first one's models; each of them ends before the round does.
    assert finished[2] >= 2
    last_round = events_of(tmp_path, "round")[-1]
    during = [e for e in events_of(tmp_path, "validation") if e["time"] <= last_round["time"]]
    assert len(during) >= 2
    assert all(event["round"] == 1 for event in during)


@pytest.mark.timeout(900)
def test_a_failing_run_says_why_on_its_last_line_and_leaves_no_process(tmp_path: Path) -> None:
    for name in ("celeba", "fiw", "lag", "lfw.bin", "age_gap.bin"):
        (tmp_path / "faces" / name).mkdir(parents=True)
    (tmp_path / "faces" / "celeba").rmdir()
    (tmp_path / "faces" / "celeba").write_text("no folder")
    code, _, err = finish(start(tmp_path, "data=faces", f"data.root={tmp_path / 'faces'}"))
    assert code == 1
    assert "faces/celeba: no such folder of faces" in err.strip().splitlines()[-1]
    assert living_processes(tmp_path) == {}
    log = (tmp_path / "run" / "flower" / "superlink.log").read_bytes()
    # There is nothing to go on from, so the folder is free.
    code, out, err = finish(start(tmp_path, "training.rounds=1"))
    assert code == 0, out + err
    assert events_of(tmp_path, "error") == []
    assert len(events_of(tmp_path, "round")) == 1
    assert (tmp_path / "run" / "flower.interrupted-1" / "superlink.log").read_bytes() == log


@pytest.mark.timeout(900)
def test_a_run_interrupted_as_it_starts_does_not_keep_its_folder(tmp_path: Path) -> None:
    process = start(tmp_path, "training.rounds=1")
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "flower" / "superlink.log").exists():
        assert time.monotonic() < deadline, "Flower does not start"
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert (code, err.splitlines()[-1]) == (130, "fedface: interrupted")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    code, _, err = finish(launch(tmp_path, f"resume={tmp_path / 'run'}"))
    assert code == 1
    assert "never began has nothing to go on from: give its own command again" in err.splitlines()[-1]
    code, out, err = finish(start(tmp_path, "training.rounds=1"))
    assert code == 0, out + err


def test_a_folder_whose_run_still_starts_is_not_taken(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "flower").mkdir(parents=True)
    with locked(run / "run.lock"):
        code, _, err = finish(start(tmp_path))
    assert code == 1
    assert "its run goes on in another process" in err.splitlines()[-1]
    # As of a simulation whose launcher alone was killed.
    waits = [sys.executable, "-c", "input()"]
    environment = os.environ | {"FEDFACE_RUN": "1"}
    with subprocess.Popen(waits, cwd=run, env=environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as left:
        code, _, err = finish(start(tmp_path))
        left.communicate(b"\n")
    assert code == 1
    assert "processes of its run still work in it" in err.splitlines()[-1]
    assert sorted(path.name for path in run.iterdir()) == ["flower", "run.lock"]


def test_a_refused_command_makes_no_folder(tmp_path: Path) -> None:
    for arguments in (["training.rounds=0"], ["seed=often", "run.dir=new/deep/run"]):
        code, _, err = finish(launch(tmp_path, *arguments))
        assert code == 1, err
        assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(900)
def test_a_sweep_tries_every_run_and_says_of_each_that_fails_why(tmp_path: Path) -> None:
    options = ("strategy=fedavg", "data.tests=[]", "training.rounds=1", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    process = start(tmp_path, "head.margin=9,0.2,7", *options, "--multirun")
    code, out, err = finish(process)
    assert code == 1, out + err
    first, second, last = err.splitlines()
    assert first.startswith("fedface: 0-fedavg-seed0 (")
    assert first.endswith("): head.margin=9.0: must be in [0, pi)")
    assert "head.margin=7" in second
    assert last == "fedface: 2 runs of the sweep failed: 0-fedavg-seed0, 2-fedavg-seed0"
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()) == ["1-fedavg-seed0"]
    assert read_summary(tmp_path / "sweep" / "1-fedavg-seed0" / "summary.json")["rounds"] == 1


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("strategy=nonsense", "strategy/nonsense"),
        ("training.rounds=0", "training.rounds=0: must be at least 1"),
        ("trainig.rounds=1", "trainig"),
        ("data=null", "must be a string"),
        ("run=null", "run.dir: must name a folder"),
        ("resume={a:1}", "resume={'a': 1}: must name a folder"),
        ("data=faces", "data.root"),
        (
            "data.root=nowhere data=faces data.validators=[lfw.bin]",
            "nowhere: there is no celeba, no fiw, no lag, no lfw.bin",
        ),
        ("fv.mode=often", "fv.mode='often': must be one of async, sync"),
    ],
)
def test_a_wrong_option_ends_before_flower_starts(tmp_path: Path, override: str, reason: str) -> None:
    code, _, err = finish(start(tmp_path, *override.split()))
    assert code == 1
    assert err.startswith("fedface: ")
    assert err.count("\n") == 1
    assert reason in err


def test_a_folder_that_holds_a_run_is_not_written_over(twins: list[Path]) -> None:
    before = (twins[1] / "run" / "summary.json").read_bytes()
    code, _, err = finish(start(twins[1]))
    assert code == 1
    assert "already holds a run" in err.strip().splitlines()[-1]
    assert (twins[1] / "run" / "summary.json").read_bytes() == before
