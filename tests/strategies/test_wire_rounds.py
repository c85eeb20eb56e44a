# SPDX-License-Identifier: Apache-2.0
"""Whole runs in which differences travel: the same bits for everyone, and the same training as with whole models."""

from __future__ import annotations

import numpy as np
import pytest
from central_sgd import ONE_STEP, central_sgd
from grid import PartyGrid, make_loop, of_kind, party_of, run_loop, tiny_config

from clients import party
from clients.adapter import view
from fedface_flwr.federation.difference import WIRE_TYPES, GlobalChange, decode
from fedface_flwr.federation.layout import Kind, ModelState
from fedface_flwr.training.store import SiloStore

TRAINERS = ["alpha", "beta", "gamma"]
METHODS = ["fedavg", "fedavg_fv", "pfm", "fedface"]


@pytest.fixture(autouse=True)
def _fresh_process():
    party._party.cache_clear()


def differences(folder, strategy, dtype="bfloat16", *overrides):
    return tiny_config(folder, strategy, "wire.differences=true", f"wire.dtype={dtype}", *overrides)


def silo_of(folder, name):
    return SiloStore(folder / "silos" / name / "run" / "first")


def held_by(folder, name, version):
    held = silo_of(folder, name).load_global(version)
    assert held is not None, f"{name} does not hold {version}"
    return held


def names_of(message):
    return tuple(message.content.array_records["arrays"])


def same_bits(one: ModelState, other: ModelState) -> bool:
    return np.array_equal(one.values, other.values) and np.array_equal(one.counters, other.counters)


@pytest.mark.parametrize("dtype", WIRE_TYPES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_every_silo_holds_the_server_s_bits(tmp_path, method, dtype):
    config = differences(tmp_path, method, dtype, "training.rounds=4")
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        loop.start(grid)
    assert [event["missing"] for event in of_kind(events, "round")] == [[]] * 4
    assert [event["rejected"] for event in of_kind(events, "round")] == [[]] * 4
    assert set(loop.tests["global"]) == {"delta", "epsilon"}
    # The first round sends whole models, for nobody holds one; then only differences travel.
    kinds = [names_of(message) for message in grid.messages("train")]
    assert kinds == [("model", "counters")] * 3 + [("difference", "statistics", "counters")] * 9
    # A silo holds the model of the round before; the last change makes the server's of it.
    last = loop.download_for("alpha")
    assert isinstance(last, GlobalChange)
    for name in TRAINERS:
        held = held_by(tmp_path, name, last.base)
        momentum = last.apply(held)
        assert same_bits(held, loop.models["global"])
        assert (momentum is None) == (method in ("fedavg", "fedavg_fv"))


@pytest.mark.parametrize("method", ["fedavg", "fedface"])
def test_the_same_run_twice_and_on_two_nodes_gives_the_same_bits(tmp_path, method):
    runs = []
    for name, nodes in (("first", None), ("again", None), ("two-nodes", 2)):
        runs.append(run_loop(differences(tmp_path / name, method), nodes)[0])
    for other in runs[1:]:
        assert same_bits(other.models["global"], runs[0].models["global"])
        assert other.weights_by_name == runs[0].weights_by_name
        assert other.loss_ema == runs[0].loss_ema


@pytest.mark.parametrize("method", ["central", "solo"])
def test_methods_without_one_global_model_send_whole_ones_whatever_is_asked(tmp_path, method):
    plain, _ = run_loop(tiny_config(tmp_path / "plain", method, "data.tests=[]"))
    asked, _ = run_loop(differences(tmp_path / "asked", method, "bfloat16", "data.tests=[]"))
    for name, model in plain.models.items():
        assert same_bits(asked.models[name], model)


# BatchNorm on few images amplifies rounding from step to step; small steps keep two runs near each other.
GENTLE = ("training.batch_size=8", "optimizer.rate=0.0003", "data.tests=[]")


@pytest.mark.parametrize("method", ["fedavg", "pfm", "fedface"])
def test_float32_differences_train_as_whole_models_do(tmp_path, method):
    overrides = (*GENTLE, "training.rounds=4", "training.steps_per_round=2", "optimizer.milestones=[0.5]")
    plain, _ = run_loop(tiny_config(tmp_path / "plain", method, *overrides))
    moved, _ = run_loop(differences(tmp_path / "moved", method, "float32", *overrides))
    expected, first = plain.models["global"].values, make_loop(plain.config)[0].models["global"].values
    count = plain.layout.num_parameters
    apart, learned = moved.models["global"].values - expected, expected - first
    # Weights and running statistics; measured are parts in 100,000.
    for part in (slice(count), slice(count, None)):
        assert 0 < np.linalg.norm(apart[part]) < 1e-3 * np.linalg.norm(learned[part])
    assert moved.weights_by_name == pytest.approx(plain.weights_by_name)


def test_with_one_local_step_pfm_in_float32_differences_is_central_sgd_with_momentum(tmp_path):
    config = differences(tmp_path, "pfm", "float32", *ONE_STEP, "data.tests=[]")
    loop, _ = run_loop(config)
    trained = flat(loop.models["global"].tensors(loop.layout), loop.layout)
    expected = flat(central_sgd(config, tmp_path / "cache"), loop.layout)
    first = make_loop(config)[0].models["global"].values[: len(expected)]
    assert np.linalg.norm(trained - expected) <= 1e-5 * np.linalg.norm(expected)
    np.testing.assert_allclose(trained, expected, atol=5e-6)
    assert np.abs(expected - first).max() > 0.01


def flat(tensors, layout):
    """Return the parameters in the layout's order, in float64."""
    names = [entry.name for entry in layout.entries if entry.kind is Kind.PARAMETER]
    return np.concatenate([tensors[name].reshape(-1).astype(np.float64) for name in names])


@pytest.mark.parametrize("method", ["fedavg", "fedface"])
@pytest.mark.parametrize("lost", ["model", "process"])
def test_a_trainer_that_lost_its_copy_is_sent_the_whole_and_the_final_bits_stay(tmp_path, method, lost):
    overrides = ("training.rounds=4", "data.tests=[]")
    undisturbed, _ = run_loop(differences(tmp_path / "undisturbed", method, "bfloat16", *overrides))
    config = differences(tmp_path / "lost", method, "bfloat16", *overrides)

    def lose(loop, event):
        if event["event"] == "round" and event["round"] == 2:
            party._party.cache_clear()
            if lost == "model":
                (silo_of(tmp_path / "lost", "beta").folder / "global.safetensors").unlink()

    loop, events = make_loop(config, lose)
    with PartyGrid(config) as grid:
        loop.start(grid)
    sent = [names_of(message)[0] for message in grid.messages("train", "beta")]
    again = ["difference", "model"] if lost == "model" else ["difference"]
    assert sent == ["model", "difference", *again, "difference"]
    assert same_bits(loop.models["global"], undisturbed.models["global"])
    assert loop.weights_by_name == undisturbed.weights_by_name
    assert of_kind(events, "warning") == []
    # Its bytes are counted: the whole model and momentum beside the difference.
    third, others = of_kind(events, "round")[2]["silos"], of_kind(events, "round")[3]["silos"]
    assert (third["beta"]["bytes_down"] > others["beta"]["bytes_down"]) == (lost == "model")
    assert third["alpha"]["bytes_down"] == others["alpha"]["bytes_down"]


def test_a_trainer_that_asks_for_the_model_again_and_again_is_rejected(tmp_path):
    config = differences(tmp_path, "fedavg", "bfloat16", "federation.min_trainers=2", "data.tests=[]")

    def forget(message, reply):
        if message.metadata.message_type == "train":
            reply.content.array_records["arrays"].clear()
            metrics = reply.content.metric_records["metrics"]
            metrics.clear()
            metrics.update({"images": 0, "needs_model": 1})
        return reply

    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.after["gamma"] = forget
        loop.start(grid)
    assert [event["rejected"] for event in of_kind(events, "round")] == [["gamma"], ["gamma"]]
    assert len(grid.messages("train", "gamma")) == 4


def test_in_16_bits_a_steady_round_costs_a_third_of_weights_and_momentum(tmp_path):
    """The yardstick is Theta and M down and theta up in float32, the arrays as they travel, headers and all."""
    overrides = (*GENTLE, "model.width=24", "training.rounds=3")
    loop, events = run_loop(differences(tmp_path, "pfm", "bfloat16", *overrides))
    layout = loop.layout
    theta = 128 + 4 * layout.num_values + 128 + 8 * layout.num_counters
    yardstick = 3 * (2 * theta + 128 + 4 * layout.num_parameters)
    for event in of_kind(events, "round")[1:]:
        carried = {way: dict(kinds) for way, kinds in event["bytes"].items()}
        expected = {
            "difference": 3 * (128 + 2 * layout.num_parameters),
            "statistics": 3 * (128 + 4 * (layout.num_values - layout.num_parameters)),
            "counters": 3 * (128 + 8 * layout.num_counters),
        }
        assert carried == {"down": expected, "up": expected}
        total = sum(sum(kinds.values()) for kinds in carried.values())
        assert total <= 0.34 * yardstick
        assert sum(f["bytes_down"] + f["bytes_up"] for f in event["silos"].values()) == total


def test_one_difference_is_serialised_once_for_all_trainers(tmp_path):
    config = differences(tmp_path, "pfm", "bfloat16", "data.tests=[]")
    loop, _ = make_loop(config)
    with PartyGrid(config) as grid:
        loop.start(grid)
    second = grid.messages("train")[3:]
    assert {party_of(message) for message in second} == set(TRAINERS)
    arrays = [message.content.array_records["arrays"]["difference"] for message in second]
    assert arrays[0].data is arrays[1].data is arrays[2].data


def test_what_rounding_leaves_is_carried_so_that_16_bits_follow_float32(tmp_path):
    """The server's model and what it still owes together are the average that it was sent."""
    config = differences(tmp_path, "fedavg", "bfloat16", "training.rounds=3", "data.tests=[]")
    loop, _ = make_loop(config)
    averages, models = [], []

    def keep(trainer, result):
        averages.append(result.model.values)

    loop.on_result = keep
    loop.checkpoints.save = lambda saved: models.append((saved.models["global"].values.copy(), saved._carry.copy()))
    with PartyGrid(config) as grid:
        loop.start(grid)
    count = loop.layout.num_parameters
    owed = np.zeros(count, np.float32)
    for number, (model, carry) in enumerate(models):
        mean = np.mean(averages[3 * number : 3 * number + 3], axis=0, dtype=np.float64)[:count]
        np.testing.assert_allclose(model[:count] + carry, mean + owed, rtol=1e-5, atol=1e-6)
        assert np.abs(carry).max() > 0
        owed = carry
    sent = view(grid.messages("train")[-1].content.array_records["arrays"]["difference"])
    assert sent.dtype == np.uint16
    assert np.isfinite(decode(loop.download_for("alpha").difference)).all()
