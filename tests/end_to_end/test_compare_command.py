# SPDX-License-Identifier: Apache-2.0
"""``fedface-compare``, as a person runs it, and what it makes of the values that overrides list."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from runs import TINY, children, finish, launch, living_processes, wait_for_round

from fedface_flwr.compare import expand
from fedface_flwr.errors import ConfigError
from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.summary import read_summary

OPTIONS = (*TINY, "strategy=fedavg", "data.tests=[]")


def compare(folder: Path, *arguments: str):
    return launch(folder, "--out", str(folder / "out"), *OPTIONS, *arguments, module="fedface_flwr.compare")


def rounds_of(folder: Path) -> list[int]:
    return [event["round"] for event in read_metrics(folder / "metrics.jsonl") if event["event"] == "round"]


@pytest.mark.timeout(900)
def test_an_interrupted_comparison_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("seed=0,1", "training.rounds=30")
    process = compare(tmp_path, *arguments)
    wait_for_round(out / "seed=0", 2)
    process.terminate()
    code, _, err = finish(process)
    assert (code, err) == (143, "fedface-compare: ended by signal 15\n")
    assert living_processes(tmp_path) == {}
    assert not (out / "seed=1").exists()
    assert 2 <= len(rounds_of(out / "seed=0")) < 30

    code, printed, err = finish(compare(tmp_path, *arguments))
    assert code == 0, printed + err
    assert "[seed=0] resumed after round" in printed
    for name in ("seed=0", "seed=1"):
        assert rounds_of(out / name) == list(range(1, 31))
    assert sorted(path.name for path in out.iterdir()) == ["comparison.html", "results.md", "seed=0", "seed=1"]

    code, printed, err = finish(compare(tmp_path, *arguments))
    assert code == 0, printed + err
    assert "round" not in printed.partition("report:")[0].replace("rounds", "")
    code, _, err = finish(compare(tmp_path, "seed=0,1", "training.rounds=31"))
    assert code == 1
    assert "seed=0: holds a run of other overrides" in err


@pytest.mark.timeout(900)
def test_each_run_that_fails_is_named_with_its_reason_and_the_others_are_kept(tmp_path: Path) -> None:
    process = compare(tmp_path, "seed=0,1,-1", "training.rounds=2")
    deadline = time.monotonic() + 120
    while not (child := children(process.pid)):
        assert time.monotonic() < deadline
    os.kill(child[0], signal.SIGKILL)
    code, printed, err = finish(process)
    assert code == 1, printed
    killed, refused = "seed=0: ended by signal 9", "seed=-1: fedface: seed=-1: must be in [0, 2**32)"
    assert err == f"fedface-compare: {killed}; {refused}\n"
    assert read_summary(tmp_path / "out" / "seed=1" / "summary.json")["rounds"] == 2
    # What never began is begun anew.
    code, printed, err = finish(compare(tmp_path, "seed=0,1", "training.rounds=2"))
    assert code == 0, printed + err
    assert rounds_of(tmp_path / "out" / "seed=0") == [1, 2]


def test_a_run_is_named_by_what_tells_it_from_the_others(tmp_path: Path) -> None:
    jobs = expand(["model=ir18_small", "seed=range(2)", "strategy=pfm,fedface"], tmp_path)
    assert [(job.name, job.overrides) for job in jobs] == [
        (f"seed={seed},strategy={method}", ("model=ir18_small", f"seed={seed}", f"strategy={method}"))
        for seed in (0, 1)
        for method in ("pfm", "fedface")
    ]
    assert [job.name for job in expand(["seed=3"], tmp_path)] == ["run"]


@pytest.mark.parametrize(
    ("override", "complaint"), [("seed=1,1", "list each value once"), ("seed=[", "no viable alternative at input")]
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, override: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        expand([override], tmp_path)
