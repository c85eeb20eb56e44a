# SPDX-License-Identifier: Apache-2.0
"""Faults of single parties: the run goes on with the others, says who failed, and takes them back."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from flwr.app import Array
from grid import PartyGrid, SilenceError, deployed_node, hurry, make_loop, of_kind, run_loop, tiny_config

from clients import party
from clients.adapter import read_reply
from fedface_flwr.errors import ProtocolError

TRAINERS = ["alpha", "beta", "gamma"]
WIRES = {
    "weights": (),
    "differences": ("wire.differences=true", "wire.dtype=bfloat16"),
}
# Honest updates of so few steps on so few images differ more than tenfold on some processors.
LIMIT = "federation.max_update_ratio=100"
TWO_ARE_ENOUGH = ("federation.min_trainers=2", "training.rounds=4", "data.tests=[]", LIMIT)


@pytest.fixture(autouse=True)
def _fresh_process():
    party._party.cache_clear()


@pytest.fixture(params=WIRES)
def wire(request):
    return WIRES[request.param]


def round_of(message):
    return message.content.config_records["config"].get("round")


def in_round(number, act):
    """Return a hook that acts on a party's reply in one round."""

    def after(message, reply):
        return act(reply) if round_of(message) == number else reply

    return after


def set_array(name, change):
    """Return an act that replaces one array of a reply; a name is of a whole model or of a difference."""

    def act(reply):
        arrays = reply.content.array_records["arrays"]
        own = name if name in arrays else "difference"
        arrays[own] = Array(change(read_reply(reply)[0][own].copy()))
        return reply

    return act


def not_a_number(array):
    array[3] = {"f": np.nan, "u": 0x7FC0}[array.dtype.kind]
    return array


def huge(array):
    # 2^14 times as much, in bfloat16 by its exponent's bits.
    return array + (array & 0x7FFF > 0).astype(array.dtype) * (14 << 7) if array.dtype.kind == "u" else array * 2**14


BAD = {
    "nan": (set_array("model", not_a_number), "not finite"),
    "shape": (set_array("model", lambda array: array[1:]), r"array (model|difference) is"),
    "type": (set_array("model", lambda array: array.astype(np.int32)), r"array (model|difference) is int32"),
    "outlier": (set_array("model", huge), r"its update, of norm .*, is over 100 times the others'"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_is_rejected_named_and_counted_and_the_silo_s_next_one_is_taken(tmp_path, wire, bad):
    act, complaint = BAD[bad]
    config = tiny_config(tmp_path, "pfm", *wire, *TWO_ARE_ENOUGH)
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.after["beta"] = in_round(2, act)
        loop.start(grid)
    rounds = of_kind(events, "round")
    assert [event["rejected"] for event in rounds] == [[], ["beta"], [], []]
    assert [event["missing"] for event in rounds] == [[], ["beta"], [], []]
    assert loop.rejected == {"beta": 1}
    (warning,) = of_kind(events, "warning")
    assert warning["message"].startswith("round 2 goes on without beta: ")
    assert re.search(complaint, warning["message"])
    assert rounds[1]["weights"] == pytest.approx({"alpha": 0.5, "gamma": 0.5})
    assert np.isfinite(loop.models["global"].values).all()


def undisturbed_but_without(folder, wire, silent, method="pfm"):
    """Return the loop of a run whose only fault is that a trainer's reply is missing in these rounds, by name."""
    config = tiny_config(folder, method, *wire, *TWO_ARE_ENOUGH)

    def cut(message):
        if round_of(message) in silent.get(message.content.config_records["config"]["party"], ()):
            raise RuntimeError("power cut")

    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.before = dict.fromkeys(TRAINERS, cut)
        loop.start(grid)
    party._party.cache_clear()
    return loop, events


def assert_same_run(one, other):
    for name, array in one.saved_arrays().items():
        np.testing.assert_array_equal(array, other.saved_arrays()[name], err_msg=name)
    assert one.weights_by_name == other.weights_by_name
    assert one.last_round == other.last_round
    assert one.loss_ema == other.loss_ema


@pytest.mark.parametrize("method", ["pfm", "fedface"])
@pytest.mark.parametrize("bad", ["nan", "shape", "outlier"])
def test_after_a_bad_reply_the_model_is_that_of_a_run_without_it(tmp_path, wire, bad, method):
    expected, _ = undisturbed_but_without(tmp_path / "expected", wire, {"beta": [2]}, method)
    config = tiny_config(tmp_path / "run", method, *wire, *TWO_ARE_ENOUGH)
    loop, _ = make_loop(config)
    with PartyGrid(config) as grid:
        grid.after["beta"] = in_round(2, BAD[bad][0])
        loop.start(grid)
    assert_same_run(loop, expected)


def test_a_silent_trainer_is_left_out_its_late_reply_ignored_and_its_next_one_used(tmp_path, wire):
    expected, _ = undisturbed_but_without(tmp_path / "expected", wire, {"gamma": [2]})
    config = tiny_config(tmp_path / "run", "pfm", *wire, *TWO_ARE_ENOUGH)
    late = threading.Event()
    waiting = []

    def observe(loop, event):
        if event["event"] == "round":
            # Only the round that somebody is silent in may be short.
            hurry(loop, 1.5 if event["round"] == 1 else 60)
            if event["round"] == 2:
                late.set()

    def hold(message, reply):
        if round_of(message) == 2:
            waiting.append(reply)
            assert late.wait(60)
        return reply

    loop, events = make_loop(config, observe)
    with PartyGrid(config) as grid:
        grid.after["gamma"] = hold
        loop.start(grid)
    assert len(waiting) == 1
    rounds = of_kind(events, "round")
    assert [event["missing"] for event in rounds] == [[], ["gamma"], [], []]
    assert [event["rejected"] for event in rounds] == [[]] * 4
    assert rounds[1]["weights"] == pytest.approx({"alpha": 0.5, "beta": 0.5})
    assert "gamma: no answer within 1.5 s" in of_kind(events, "warning")[0]["message"]
    assert_same_run(loop, expected)


def test_a_trainer_that_goes_and_comes_back_on_another_node_catches_up(tmp_path, wire):
    expected, _ = undisturbed_but_without(tmp_path / "expected", wire, {"beta": [2, 3]})
    config = tiny_config(tmp_path / "run", "pfm", *wire, *TWO_ARE_ENOUGH)
    away = []

    def observe(loop, event):
        if event["event"] == "round" and event["round"] == 1:
            away.append(grid.disconnect(1001))
        if event["event"] == "round" and event["round"] == 3:
            party._party.cache_clear()
            assert grid.connect(away[0]) == 1005

    loop, events = make_loop(config, observe)
    with PartyGrid(config) as grid:
        loop.start(grid)
    assert [event["missing"] for event in of_kind(events, "round")] == [[], ["beta"], ["beta"], []]
    assert all("beta: it is not connected" in event["message"] for event in of_kind(events, "warning"))
    assert [message.metadata.dst_node_id for message in grid.messages("train", "beta")] == [1001, 1005]
    assert_same_run(loop, expected)


def test_two_updates_cannot_be_told_apart_and_no_limit_is_no_limit(tmp_path):
    for folder, overrides in (
        ("two", ("data.silos=[alpha,beta]", LIMIT)),
        ("free", ("federation.max_update_ratio=0", "training.rounds=1")),
    ):
        config = tiny_config(tmp_path / folder, "fedavg", "data.tests=[]", *overrides)
        loop, events = make_loop(config)
        with PartyGrid(config) as grid:
            grid.after["beta"] = in_round(1, set_array("model", lambda array: array * 100))
            loop.start(grid)
        assert of_kind(events, "round")[0]["rejected"] == []


def test_too_many_bad_replies_end_the_run_with_every_reason(tmp_path):
    config = tiny_config(tmp_path, "fedavg", *TWO_ARE_ENOUGH)
    loop, _ = make_loop(config)
    with PartyGrid(config) as grid:
        grid.after = {name: in_round(1, BAD["nan"][0]) for name in ("alpha", "beta")}
        complaint = r"1 of 3 trainers answered, 2 are needed \(alpha: .*not finite.*; beta: .*not finite"
        with pytest.raises(ProtocolError, match=complaint):
            loop.start(grid)
    assert loop.rejected == {"alpha": 1, "beta": 1}


# Validators.


def purpose_of(message):
    return message.content.config_records["config"].get("purpose")


def nonsense(value):
    def after(message, reply):
        if purpose_of(message) == "validation":
            reply.content.metric_records["metrics"]["score"] = value
        return reply

    return after


def without_score(message, reply):
    if purpose_of(message) == "validation":
        del reply.content.metric_records["metrics"]["score"]
    return reply


@pytest.mark.parametrize(
    "after",
    [nonsense(float("nan")), nonsense(float("inf")), nonsense([60.0, 61.0]), nonsense(60), without_score],
    ids=["nan", "inf", "list", "int", "none"],
)
def test_a_validator_that_answers_nonsense_is_left_out(tmp_path, after):
    config = tiny_config(tmp_path, "fedface", "data.tests=[]")
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        grid.after["delta"] = after
        loop.start(grid)
    assert [set(event["scores"]) for event in of_kind(events, "validation")] == [{"epsilon"}] * 2
    assert [event["message"].partition(": ")[0] for event in of_kind(events, "warning")] == [
        "validation 1 goes on without delta",
        "validation 2 goes on without delta",
    ]


def test_a_validator_that_dies_in_mid_validation_is_left_out_and_taken_again_when_it_is_back(tmp_path):
    config = tiny_config(tmp_path, "fedface", "training.rounds=3", "data.tests=[]")
    asked = []

    def die(message):
        if purpose_of(message) != "validation":
            return
        asked.append(message)
        # It scored a candidate, and is gone with the next.
        if len(asked) == 2:
            away.append(grid.disconnect(1003))
            raise SilenceError

    away = []

    def observe(loop, event):
        if event["event"] == "round":
            hurry(loop, 1.5 if event["round"] == 1 else 60)
        if event["event"] == "validation" and event["validation"] == 2:
            grid.connect(away[0])

    loop, events = make_loop(config, observe)
    with PartyGrid(config) as grid:
        grid.before["delta"] = die
        loop.start(grid)
    assert [set(event["scores"]) for event in of_kind(events, "validation")] == [
        {"epsilon"},
        {"epsilon"},
        {"delta", "epsilon"},
    ]
    reasons = [event["message"] for event in of_kind(events, "warning")]
    assert "delta: no score within 1.5 s" in reasons[0]
    assert "delta: it is not connected" in reasons[1]


# Who may take part.


def deployment(config, folder, **roles):
    """Return a grid of SuperNodes, each in its own role unless ``roles`` says another."""
    given = config.roles | roles
    nodes = [deployed_node(folder / "silos-apart", name, role) for name, role in given.items()]
    return PartyGrid(config, node_configs=nodes)


DEPLOYED = ("data.synthetic.pairs=200", "fv.pairs=100", "data.tests=[]")


def test_a_deployment_gives_the_bits_of_the_simulation(tmp_path, wire):
    expected, _ = run_loop(tiny_config(tmp_path / "expected", "pfm", *wire, *DEPLOYED))
    config = tiny_config(tmp_path / "run", "pfm", *wire, *DEPLOYED)
    loop, _ = make_loop(config)
    with deployment(config, tmp_path) as grid:
        grid.names = {1000 + number: name for number, name in enumerate(config.roles)}
        loop.start(grid)
    assert_same_run(loop, expected)
    # Nothing of the silos lies in the run's folder.
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_a_node_that_is_registered_as_another_ends_the_run_before_it_starts(tmp_path):
    config = tiny_config(tmp_path / "run", "fedface", *DEPLOYED)
    loop, events = make_loop(config)
    with deployment(config, tmp_path) as grid:
        grid.names = {1000: "beta"}
        with pytest.raises(ProtocolError, match="node 1000 is registered as beta and says that it acts for alpha"):
            loop.start(grid)
    assert events == []


@pytest.mark.parametrize(("name", "role"), [("delta", "trainer"), ("alpha", "validator")])
def test_a_party_in_another_role_than_the_run_s_ends_the_run_before_it_starts(tmp_path, name, role):
    config = tiny_config(tmp_path / "run", "fedface", *DEPLOYED)
    loop, events = make_loop(config)
    complaint = f"says that {name} is a {role}, the run has it as"
    with deployment(config, tmp_path, **{name: role}) as grid, pytest.raises(ProtocolError, match=complaint):
        loop.start(grid)
    assert events == []
