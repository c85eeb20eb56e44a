# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from test_summary import figures, summary_fields

from fedface_flwr.reporting.outcome import make_account, make_figures, mean_tests, merge_halves


def known(accuracy, pairs=3000):
    return figures(accuracy) | {"tar_at_far_1e-4": 0.0, "pairs": pairs}


def test_the_account_s_phases_add_up_to_its_total():
    account = make_account({"training": 90.0, "validation": 10.0, "testing": 8.0}, startup=4.0, total=120.0)
    assert account == {
        "flower_startup": 4.0,
        "training": 90.0,
        "validation": 10.0,
        "testing": 8.0,
        "other": 8.0,
        "total": 120.0,
    }


def test_pairs_become_a_whole_number_and_the_rest_stays():
    made = make_figures(known(0.75, pairs=3000.0))
    assert made == known(0.75)
    assert type(made["pairs"]) is int


def test_tests_are_averaged_pack_by_pack():
    models = [{"lfw": known(0.5), "cfp": known(0.6)}, {"lfw": known(0.75), "cfp": known(0.8)}]
    mean = mean_tests(iter(models))
    assert mean["lfw"] == pytest.approx(known(0.625))
    assert mean["cfp"]["accuracy"] == pytest.approx(0.7)


def test_halves_are_one_run_whose_figures_are_averaged_and_costs_added():
    first = summary_fields(
        ["a", "b"], tests={"lfw": known(0.5)}, weights={"a": 0.2, "b": 0.8}, loss_ema={"a": 4.0, "b": 6.0}
    )
    second = summary_fields(
        ["a", "b"], tests={"lfw": known(0.75)}, weights={"a": 0.4, "b": 0.6}, loss_ema={"a": 5.0, "b": 8.0}
    )
    merged = merge_halves([first, second])
    assert merged == first | {
        "fold_half": "both",
        "seconds": 240.0,
        "tests": {"lfw": pytest.approx(known(0.625))},
        "weights": pytest.approx({"a": 0.3, "b": 0.7}),
        "loss_ema": {"a": 4.5, "b": 7.0},
        "bytes_sent": {"a": 5000000, "b": 5000000},
        "account": {
            "flower_startup": 8.0,
            "training": 180.0,
            "validation": 20.0,
            "testing": 20.0,
            "other": 12.0,
            "total": 240.0,
        },
    }


def test_halves_of_runs_that_average_nothing_keep_each_silo_s_tests():
    halves = [
        summary_fields(
            ["a"],
            weights={},
            tests={"lfw": known(accuracy)},
            tests_by_silo={silo: {"lfw": known(accuracy + more)} for silo, more in (("a", 0.0), ("b", 0.125))},
        )
        for accuracy in (0.5, 0.75)
    ]
    merged = merge_halves(halves)
    assert merged["weights"] == {}
    assert {silo: packs["lfw"]["accuracy"] for silo, packs in merged["tests_by_silo"].items()} == {
        "a": 0.625,
        "b": 0.75,
    }


def test_halves_of_different_methods_are_refused():
    with pytest.raises(ValueError, match="different methods"):
        merge_halves([summary_fields(["a"], method="pfm"), summary_fields(["a"], method="fedavg")])
