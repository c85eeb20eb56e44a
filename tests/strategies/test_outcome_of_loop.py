# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from grid import of_kind, run_loop, tiny_config

from fedface_flwr.reporting.summary import read_summary, write_summary
from strategies.outcome import summarise


@pytest.mark.parametrize("method", ["central", "solo", "fedface"])
def test_a_finished_loop_s_summary_holds_its_figures(tmp_path, method):
    config = tiny_config(tmp_path, method, "training.rounds=1", "seed=7")
    loop, events = run_loop(config)
    summary = summarise(loop, launched=100.0, ready=104.0, ended=160.0)
    write_summary(tmp_path / "summary.json", summary)
    assert read_summary(tmp_path / "summary.json") == summary
    assert (summary["method"], summary["seed"], summary["rounds"], summary["steps_per_round"]) == (method, 7, 1, 1)
    assert (summary["seconds"], summary["fold_half"]) == (60.0, "first")
    (event,) = of_kind(events, "round")
    assert summary["loss_ema"] == {name: figures["loss_ema"] for name, figures in event["silos"].items()}
    assert summary["bytes_sent"] == {name: figures["bytes_up"] for name, figures in event["silos"].items()}
    averaging = method not in ("central", "solo")
    assert set(summary["weights"]) == (set(config.trainers) if averaging else set())
    assert ("tests_by_silo" in summary) == (method == "solo")
    account = summary["account"]
    assert (account["flower_startup"], account["total"]) == (4.0, 60.0)
    assert sum(account.values()) == pytest.approx(120.0)


def test_solo_s_figures_are_the_mean_over_its_models(tmp_path):
    loop, events = run_loop(tiny_config(tmp_path, "solo", "training.rounds=1"))
    summary = summarise(loop, launched=0.0, ready=1.0, ended=2.0)
    for pack, figures in summary["tests"].items():
        by_silo = [event for event in of_kind(events, "test") if event["pack"] == pack]
        assert figures["accuracy"] == pytest.approx(sum(event["accuracy"] for event in by_silo) / 3)
        assert figures["pairs"] == 10
        assert {silo: packs[pack]["auc"] for silo, packs in summary["tests_by_silo"].items()} == {
            event["model"]: event["auc"] for event in by_silo
        }
