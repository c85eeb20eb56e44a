# SPDX-License-Identifier: Apache-2.0
"""What a resumed run takes back of its event logs."""

from __future__ import annotations

import json
from pathlib import Path

from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.server_app import _take_back


def write(folder: Path, *halves: str) -> RunFolder:
    folder.mkdir(exist_ok=True)
    events = [{"event": "round", "time": i, "round": i, "half": half} for i, half in enumerate(halves)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return RunFolder(folder)


def test_a_second_half_that_was_never_saved_takes_back_nothing_of_the_first(tmp_path):
    common = write(tmp_path / "run", "first", "first", "second")
    first, second = write(tmp_path / "run" / "first", "first", "first"), write(tmp_path / "run" / "second", "second")
    first.summary.write_text("{}")
    assert _take_back(common, first) == _take_back(common, second) == {}
    assert [event["half"] for event in read_metrics(common.metrics)] == ["first", "first"]
    assert [event["half"] for event in read_metrics(first.metrics)] == ["first", "first"]
    assert read_metrics(second.metrics) == []
    assert [json.loads(line)["half"] for line in (tmp_path / "run/metrics.lost.jsonl").open()] == ["second"]


def test_a_half_that_has_not_begun_takes_back_nothing(tmp_path):
    common = write(tmp_path / "run", "first")
    assert _take_back(common, RunFolder(tmp_path / "run" / "second")) == {}
    assert len(read_metrics(common.metrics)) == 1
    assert sorted(path.name for path in common.path.iterdir()) == ["metrics.jsonl"]
