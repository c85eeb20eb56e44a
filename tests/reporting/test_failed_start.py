# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedface_flwr.reporting.failed_start import clear_failed_start, has_run
from fedface_flwr.reporting.run_folder import RunFolder


def failed(path: Path, *kinds: str) -> RunFolder:
    """A folder as a run leaves it that ended after events of these kinds."""
    path.mkdir(parents=True, exist_ok=True)
    events = [{"event": kind, "time": number} for number, kind in enumerate(kinds)]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (path / "config.yaml").write_text("seed: 0\n")
    (path / "run.lock").touch()
    (path / "tensorboard").mkdir()
    (path / "tensorboard" / "events.out").touch()
    return RunFolder(path)


@pytest.mark.parametrize("kinds", [(), ("error",), ("start", "validation", "warning", "error")])
@pytest.mark.parametrize("part", ["", "first"])
def test_a_run_that_ended_before_its_first_round_is_cleared_but_for_what_is_not_its_own(tmp_path, kinds, part):
    folder = failed(tmp_path, *kinds)
    if part:
        failed(tmp_path / part, *kinds)
    locks = [owner / "run.lock" for owner in ([tmp_path / part, tmp_path] if part else [tmp_path])]
    kept = [tmp_path / "flower" / "superlink.log", tmp_path / "notes.txt"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert not has_run(folder)
    clear_failed_start(folder)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept + locks)
    clear_failed_start(folder)


def test_a_round_in_a_log_or_a_damaged_log_is_a_run(tmp_path):
    assert has_run(failed(tmp_path / "one", "start", "round", "error"))
    both = failed(tmp_path / "both", "start")
    failed(tmp_path / "both" / "second", "start", "round")
    assert has_run(both)
    damaged = failed(tmp_path / "damaged", "start", "error")
    damaged.metrics.write_text("no JSON\n{}\n")
    assert has_run(damaged)


@pytest.mark.parametrize(
    "name",
    [
        "summary.json",
        "report.html",
        "checkpoint.safetensors",
        "checkpoint-celeba.safetensors",
        "state.safetensors",
        "second/state.safetensors",
        "silos/celeba/token/round-1.safetensors",
    ],
)
@pytest.mark.parametrize("kinds", [None, ("start", "error")])
def test_what_a_person_could_want_is_a_run(tmp_path, name, kinds):
    folder = RunFolder(tmp_path) if kinds is None else failed(tmp_path, *kinds)
    assert not has_run(folder)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert has_run(folder)


def test_an_empty_or_missing_folder_or_one_with_other_files_holds_no_run(tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    for folder in (RunFolder(tmp_path), RunFolder(tmp_path / "absent")):
        assert not has_run(folder)
        clear_failed_start(folder)
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert not (tmp_path / "absent").exists()
