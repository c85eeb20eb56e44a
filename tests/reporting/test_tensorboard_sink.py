# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_history import round_event, run_events
from test_summary import figures

from fedface_flwr.reporting.tensorboard_sink import TensorBoardSink


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_every_event_lands_under_its_tag_and_step(tmp_path):
    test = {"event": "test", "model": "global", "pack": "lfw", "seconds": 1.0, **figures(0.75)}
    with TensorBoardSink(tmp_path) as sink:
        for event in run_events(["a", "b"], rounds=2, per_round=2):
            sink.write(event)
        sink.write(test)
        sink.write(test | {"model": "a", "accuracy": 0.5})
    written = scalars(tmp_path)
    by_round = {
        f"{kind}/{silo}": [(1, value), (2, value)]
        for kind, value in (("loss", 4.0), ("loss_ema", 5.0), ("accuracy", 0.25), ("weights", 0.5))
        for silo in "ab"
    }
    assert written == by_round | {
        "validation/lfw/best": [(step, 66.0) for step in (1, 2, 3, 4)],
        "validation/lfw/mean": [(step, 63.0) for step in (1, 2, 3, 4)],
        "test/lfw/accuracy": [(2, 0.75)],
        "test/lfw/accuracy/a": [(2, 0.5)],
    }


def test_figures_that_are_not_known_are_not_written(tmp_path):
    with TensorBoardSink(tmp_path) as sink:
        sink.write(round_event(1, ["a"], 5.0, loss=None))
        sink.write({"event": "warning", "message": "m", "time": 1.0})
    written = scalars(tmp_path)
    assert "loss/a" not in written
    assert written["accuracy/a"] == [(1, pytest.approx(0.25))]
