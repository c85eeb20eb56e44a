# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedface_flwr.errors import DataError
from fedface_flwr.reporting.history import History, thinned

Event = dict[str, Any]


def start_event(silos: list[str], validators: list[str], **fields: Any) -> Event:
    names = {"trainers": silos, "validators": validators}
    return {
        "event": "start",
        "method": "fedface",
        "seed": 0,
        "rounds": 2,
        "steps_per_round": 10,
        "time": 1.0,
        **names,
    } | fields


def round_event(number: int, silos: list[str], time: float, loss: float | None = 4.0, rate: float = 0.1) -> Event:
    figures = {
        "loss": loss,
        "accuracy": 0.25,
        "loss_ema": 5.0,
        "seconds": 2.0,
        "bytes_down": 300_000,
        "bytes_up": 100,
    }
    return {
        "event": "round",
        "round": number,
        "rate": rate,
        "silos": dict.fromkeys(silos, figures),
        "weights": {silo: 1 / len(silos) for silo in silos},
        "seconds": {"training": 2.0, "aggregation": 0.5, "other": 0.25},
        "missing": [],
        "time": time,
    }


def validation_event(number: int, silos: list[str], training_round: int, time: float, seconds: float = 0.5) -> Event:
    equal = 1 / len(silos)
    return {
        "event": "validation",
        "validation": number,
        "round": max(training_round - 1, 1),
        "training_round": training_round,
        "candidates": [[equal] * len(silos)] * 3,
        "scores": {"lfw": [60.0, 66.0, 63.0]},
        "normalised": {"lfw": [0.0, 1.0, 0.5]},
        "best": 1,
        "weights": dict.fromkeys(silos, equal),
        "seconds": seconds,
        "bytes_down": 10,
        "bytes_up": 1,
        "time": time,
    }


def run_events(silos: list[str], rounds: int = 4, per_round: int = 3, **start: Any) -> list[Event]:
    """Rounds of 4 s, the first after 1 s; `per_round` validation rounds evenly inside each."""
    events = [start_event(silos, ["lfw"] if per_round else [], rounds=rounds, **start)]
    for number in range(1, rounds + 1):
        began = 1.0 + 4 * (number - 1)
        for count in range(per_round):
            validation = len([event for event in events if event["event"] == "validation"]) + 1
            time = began + 4 * (count + 1) / (per_round + 1)
            events.append(validation_event(validation, silos, number, time))
        events.append(round_event(number, silos, began + 4))
    return events


def test_series_have_a_gap_where_a_silo_was_missing_or_diverged():
    events = [
        start_event(["a", "b"], []),
        round_event(1, ["a", "b"], 5.0),
        round_event(2, ["a"], 9.0),
        round_event(3, ["a", "b"], 13.0, loss=None),
    ]
    history = History(events)
    np.testing.assert_array_equal(history.round_numbers(), [1, 2, 3])
    np.testing.assert_array_equal(history.silo_series("b", "loss"), [4.0, np.nan, np.nan])
    np.testing.assert_array_equal(history.silo_series("a", "accuracy"), [0.25, 0.25, 0.25])
    np.testing.assert_array_equal(history.weight_series("b"), [0.5, np.nan, 0.5])
    assert history.bytes_of("b", "up") == 200
    assert history.bytes_of("a", "down") == 900_000


def test_validation_rounds_stand_where_they_ended_between_training_rounds():
    # Round 1 runs from 1 s to 5 s, round 2 from 5 s to 15 s.
    events = [
        start_event(["a"], ["lfw"]),
        validation_event(1, ["a"], 1, 2.0),
        round_event(1, ["a"], 5.0),
        validation_event(2, ["a"], 2, 10.0),
        round_event(2, ["a"], 15.0),
        validation_event(3, ["a"], 2, 17.0),
    ]
    history = History(events)
    np.testing.assert_allclose(history.validation_positions(), [0.25, 1.5, 2.0])
    np.testing.assert_array_equal(history.best_scores("lfw"), [66.0, 66.0, 66.0])
    np.testing.assert_array_equal(history.updated_weights("a"), [1.0, 1.0, 1.0])


def test_a_validator_that_did_not_answer_leaves_a_gap():
    silent = validation_event(2, ["a"], 1, 3.0) | {"scores": {"age_gap": [1.0, 2.0, 3.0]}}
    events = [
        start_event(["a"], ["lfw"]),
        validation_event(1, ["a"], 1, 2.0),
        silent,
        round_event(1, ["a"], 5.0),
    ]
    np.testing.assert_array_equal(History(events).best_scores("lfw"), [66.0, np.nan])


def test_of_rounds_repeated_after_a_resumption_the_last_count():
    events = [
        start_event(["a"], []),
        round_event(1, ["a"], 5.0),
        round_event(2, ["a"], 9.0, loss=9.0),
        start_event(["a"], [], time=9.0),
        round_event(2, ["a"], 14.0, loss=3.0),
    ]
    np.testing.assert_array_equal(History(events).silo_series("a", "loss"), [4.0, 3.0])


def test_pace_counts_rounds_without_validation_and_those_that_began_earlier():
    events = [
        start_event(["a"], ["lfw"]),
        round_event(1, ["a"], 5.0),
        validation_event(1, ["a"], 2, 5.25, seconds=0.5),  # began at 4.75 s, in round 1
        validation_event(2, ["a"], 2, 6.0),
        validation_event(3, ["a"], 2, 7.0),
        round_event(2, ["a"], 11.0),
        validation_event(4, ["a"], 3, 12.0),
        round_event(3, ["a"], 15.0),
        round_event(4, ["a"], 19.0),
    ]
    pace = History(events).pace()
    assert pace is not None
    assert (pace.total, pace.maximum, pace.busiest, pace.begun_inside) == (4, 3, 2, 2)
    assert pace.median == 0.5  # of 0, 3, 1, 0
    assert pace.seconds == 6.0


def test_a_run_without_validation_has_no_pace():
    assert History(run_events(["a"], per_round=0)).pace() is None


@pytest.mark.parametrize(("events", "lacking"), [([], "'start'"), ([start_event(["a"], [])], "no training round")])
def test_a_log_without_a_run_is_refused(events, lacking):
    with pytest.raises(DataError, match=lacking):
        History(events)


@given(length=st.integers(0, 5000), limit=st.integers(2, 400))
def test_thinning_keeps_order_the_last_point_and_the_limit(length, limit):
    x = np.arange(length, dtype=np.float64)
    kept_x, kept_y = thinned(x, 2 * x, limit)
    assert len(kept_x) <= limit
    assert len(kept_x) >= min(length, limit // 2)
    np.testing.assert_array_equal(kept_y, 2 * kept_x)
    if length:
        assert kept_x[-1] == length - 1
        assert len(set(np.diff(kept_x))) <= 1
