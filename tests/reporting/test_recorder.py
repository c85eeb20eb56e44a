# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest
from test_history import run_events
from test_tensorboard_sink import scalars

from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.recorder import Recorder
from fedface_flwr.reporting.run_folder import RunFolder


def without_time(events):
    return [{key: value for key, value in event.items() if key != "time"} for event in events]


def test_events_reach_the_log_and_tensorboard(tmp_path):
    folder = RunFolder(tmp_path / "run")
    events = run_events(["a", "b"], rounds=2, per_round=1)
    with Recorder(folder) as recorder:
        for event in events:
            recorder.emit(event)
        # The log can be followed while the run goes on.
        assert without_time(read_metrics(folder.metrics)) == without_time(events)
    written = scalars(folder.tensorboard)
    assert [step for step, _ in written["loss/a"]] == [1, 2]
    assert [step for step, _ in written["validation/lfw/best"]] == [1, 2]


def test_two_threads_may_emit_at_once(tmp_path):
    folder = RunFolder(tmp_path)
    (_, one, *_) = run_events(["a"], rounds=1, per_round=0)

    def emit_many(recorder, first):
        for number in range(first, first + 100):
            recorder.emit({**one, "round": number})

    with Recorder(folder) as recorder:
        threads = [threading.Thread(target=emit_many, args=(recorder, first)) for first in (1, 101)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(event["round"] for event in read_metrics(folder.metrics)) == list(range(1, 201))
    assert len(scalars(folder.tensorboard)["loss/a"]) == 200


def test_what_was_emitted_before_a_failure_stays(tmp_path):
    folder = RunFolder(tmp_path)

    def fail():
        with Recorder(folder) as recorder:
            recorder.emit({"event": "warning", "message": "m"})
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert without_time(read_metrics(folder.metrics)) == [{"event": "warning", "message": "m"}]
