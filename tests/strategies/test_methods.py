# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from grid import PartyGrid, make_loop, of_kind, run_loop, tiny_config

from clients.adapter import read_reply, view
from clients.contract import TEST_FIGURES
from strategies import STRATEGIES

SETS = {"alpha", "beta", "gamma"}


def arrays_of(message):
    return {name: view(array) for name, array in message.content.array_records["arrays"].items()}


def keep_models(grid, parties):
    """Return, by party, the list in which the models that it answers with gather."""
    kept = {party: [] for party in parties}

    def keep(message, reply):
        if message.metadata.message_type == "train":
            kept[message.content.config_records["config"]["party"]].append(read_reply(reply)[0]["model"])
        return reply

    grid.after = dict.fromkeys(parties, keep)
    return kept


@pytest.mark.parametrize("method", STRATEGIES)
def test_every_method_runs_to_its_test(tmp_path, method):
    config = tiny_config(tmp_path, method)
    loop, events = run_loop(config)
    kinds = [event["event"] for event in events]
    validations = 2 if method in ("fedavg_fv", "fedface") else 0
    models = 3 if method == "solo" else 1
    assert (kinds[0], kinds.count("round"), kinds.count("validation")) == ("start", 2, validations)
    assert kinds.count("test") == 2 * models
    assert len(kinds) == 3 + validations + 2 * models
    assert events[0]["trainers"] == (["central"] if method == "central" else ["alpha", "beta", "gamma"])
    for event in of_kind(events, "round"):
        assert set(event["silos"]) == SETS
        assert event["missing"] == []
        assert set(event["seconds"]) == {"training", "aggregation", "other"}
        assert min(event["seconds"].values()) >= 0
    for packs in loop.tests.values():
        assert set(packs) == {"delta", "epsilon"}
        assert all(set(figures) == set(TEST_FIGURES) for figures in packs.values())
    assert set(loop.loss_ema) == SETS
    assert loop.seconds["training"] > 0
    assert loop.seconds["testing"] > 0
    assert (loop.seconds["validation"] > 0) == bool(validations)


def test_rates_are_the_schedule_s(tmp_path):
    config = tiny_config(tmp_path, "fedavg", "training.rounds=4", "optimizer.milestones=[0.5]", "data.tests=[]")
    _, events = run_loop(config)
    assert [event["rate"] for event in of_kind(events, "round")] == pytest.approx([0.1, 0.1, 0.01, 0.01])


def test_fedavg_averages_what_the_silos_answer_and_sends_no_momentum(tmp_path):
    config = tiny_config(tmp_path, "fedavg")
    loop, _ = make_loop(config)
    with PartyGrid(config) as grid:
        answers = keep_models(grid, SETS)
        loop.start(grid)
    second = grid.messages("train")[3:]
    for number, models in enumerate((arrays_of(second[0])["model"], loop.models["global"].values)):
        expected = np.mean([answers[party][number] for party in sorted(SETS)], axis=0, dtype=np.float64)
        np.testing.assert_allclose(models, expected, rtol=1e-5, atol=1e-7)
    assert all(set(arrays_of(message)) == {"model", "counters"} for message in grid.messages("train"))
    # Each silo counted one batch a round.
    assert set(loop.models["global"].counters.tolist()) == {2}
    assert loop.weights_by_name == pytest.approx(dict.fromkeys(SETS, 1 / 3))


def test_fedavg_weighs_by_samples_when_asked_even_if_the_first_round_lacks_a_silo(tmp_path):
    config = tiny_config(tmp_path, "fedavg", "strategy.weights=samples", "federation.min_trainers=2")
    loop, events = make_loop(config)

    def fail_first(message):
        if message.content.config_records["config"].get("round") == 1:
            raise RuntimeError("power cut")

    def own_more(message, reply):
        if message.metadata.message_type == "query.prepare":
            reply.content.metric_records["metrics"]["samples"] = 72
        return reply

    with PartyGrid(config) as grid:
        grid.before["gamma"] = fail_first
        grid.after["alpha"] = own_more
        loop.start(grid)
    # 72, 24 and 24 images.
    assert loop.weights_by_name == pytest.approx({"alpha": 0.6, "beta": 0.2, "gamma": 0.2})
    assert of_kind(events, "round")[0]["weights"] == pytest.approx({"alpha": 0.75, "beta": 0.25})


def test_pfm_s_momentum_is_the_step_of_the_averaged_model_over_the_rate(tmp_path):
    config = tiny_config(tmp_path, "pfm", "training.rounds=3", "optimizer.milestones=[0.5]")
    history = []

    def observe(loop, event):
        if event["event"] in ("start", "round"):
            history.append((loop.models["global"].values.copy(), loop.momentum.copy(), event.get("rate")))

    loop, _ = make_loop(config, observe)
    with PartyGrid(config) as grid:
        loop.start(grid)
    parameters = loop.layout.num_parameters
    assert [rate for *_, rate in history] == pytest.approx([None, 0.1, 0.1, 0.01])
    assert not history[0][1].any()
    for (before, _, _), (after, momentum, rate) in pairwise(history):
        expected = (before[:parameters].astype(np.float64) - after[:parameters]) / rate
        np.testing.assert_allclose(momentum, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        assert np.abs(momentum).max() > 0
    # Every silo got the model and the momentum of the round before.
    for number, message in enumerate(grid.messages("train")):
        sent = arrays_of(message)
        np.testing.assert_array_equal(sent["model"], history[number // 3][0])
        np.testing.assert_array_equal(sent["momentum"], history[number // 3][1])


def test_solo_models_start_alike_and_never_mix(tmp_path):
    config = tiny_config(tmp_path, "solo")
    loop, events = make_loop(config)
    first = loop.models["alpha"].values.copy()
    with PartyGrid(config) as grid:
        answers = keep_models(grid, SETS)
        loop.start(grid)
        for party in SETS:
            one, two = grid.messages("train", party)
            np.testing.assert_array_equal(arrays_of(one)["model"], first)
            np.testing.assert_array_equal(arrays_of(two)["model"], answers[party][0])
            np.testing.assert_array_equal(loop.models[party].values, answers[party][1])
    assert len({loop.models[party].values.tobytes() for party in SETS}) == 3
    assert {(event["model"], event["pack"]) for event in of_kind(events, "test")} == {
        (model, pack) for model in SETS for pack in ("delta", "epsilon")
    }
    assert set(loop.tests) == SETS
    assert loop.weights_by_name == {}


def test_central_has_one_trainer_for_all_sets_and_sends_nothing_across_a_border(tmp_path):
    config = tiny_config(tmp_path, "central")
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        loop.start(grid)
    assert [m.content.config_records["config"]["party"] for m in grid.messages("train")] == ["central", "central"]
    assert loop.bytes_sent == dict.fromkeys(SETS, 0)
    for event in of_kind(events, "round"):
        assert all(figures["bytes_up"] == figures["bytes_down"] == 0 for figures in event["silos"].values())
        assert event["weights"] == {}


def test_bytes_are_those_of_the_arrays(tmp_path):
    loop, events = run_loop(tiny_config(tmp_path, "pfm", "data.tests=[]"))
    # A .npy header takes 128 bytes.
    model = 128 + 4 * loop.layout.num_values + 128 + 8 * loop.layout.num_counters
    momentum = 128 + 4 * loop.layout.num_parameters
    for event in of_kind(events, "round"):
        assert all(f["bytes_up"] == model and f["bytes_down"] == model + momentum for f in event["silos"].values())
    assert loop.bytes_sent == dict.fromkeys(SETS, 2 * model)


@pytest.mark.parametrize("method", ["fedface", "central"])
def test_the_same_run_twice_and_on_two_nodes_gives_the_same_bits(tmp_path, method):
    runs = [
        run_loop(tiny_config(tmp_path / name, method), nodes)[0]
        for name, nodes in (("first", None), ("again", None), ("two-nodes", 2))
    ]
    first = runs[0].models["global"]
    for other in runs[1:]:
        np.testing.assert_array_equal(other.models["global"].values, first.values)
        assert other.weights_by_name == runs[0].weights_by_name
        assert other.loss_ema == runs[0].loss_ema
    assert run_loop(tiny_config(tmp_path / "other", method, "seed=1"))[0].loss_ema != runs[0].loss_ema
