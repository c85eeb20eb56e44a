# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from test_history import round_event, start_event, validation_event
from test_summary import figures

from fedface_flwr.reporting.progress import describe, number, percent

SILOS = ["celeba", "fiw"]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            start_event(SILOS, ["lfw"], rounds=60),
            "fedface, seed 0: 60 rounds of 10 steps, trainers celeba fiw, validators lfw",
        ),
        (start_event(["a"], [], rounds=60), "fedface, seed 0: 60 rounds of 10 steps, trainers a"),
        (
            start_event(["a"], [], rounds=1) | {"steps_per_round": 1},
            "fedface, seed 0: 1 round of 1 step, trainers a",
        ),
        (
            round_event(7, SILOS, 5.0),
            "round  7/60  loss celeba 4.00 fiw 4.00  w 0.50/0.50  2.8 s  slowest celeba 2.0 s",
        ),
        (
            round_event(12, ["a"], 5.0, loss=None) | {"weights": {}, "missing": ["b", "c"]},
            "round 12/60  loss a –  2.8 s  missing b c",
        ),
        (
            round_event(12, ["a"], 5.0) | {"weights": {}, "missing": ["b"], "rejected": ["b"]},
            "round 12/60  loss a 4.00  2.8 s  missing b  rejected b",
        ),
        (validation_event(7, SILOS, 2, 5.0), "validation 7  lfw 66.0%  best 2 of 3"),
        (
            {"event": "test", "model": "global", "pack": "lfw", **figures()},
            "test lfw (global model)  accuracy 75.0% ± 1.2%  TAR at FAR 1e-3 12.0% (uncertain)",
        ),
        (
            {"event": "test", "model": "global", "pack": "lfw", **figures(), "pairs": 999},
            "test lfw (global model)  accuracy 75.0% ± 1.2%  TAR at FAR 1e-3 not decided",
        ),
        (
            {"event": "test", "model": "global", "pack": "lfw", **figures(), "pairs": 10_000},
            "test lfw (global model)  accuracy 75.0% ± 1.2%  TAR at FAR 1e-3 12.0%",
        ),
        ({"event": "warning", "message": "silo b is late"}, "warning: silo b is late"),
        ({"event": "end", "seconds": 354.0}, "finished in 5.9 min"),
        ({"event": "something else"}, None),
    ],
)
def test_an_event_is_one_short_line(event, line):
    assert describe(event, rounds=60) == line


def test_what_is_not_known_is_a_dash():
    assert (number(None, 2), percent(None)) == ("–", "–")
    assert (number(1.005, 1), percent(0.1234, 2)) == ("1.0", "12.34%")
