# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from grid import PartyGrid, SilenceError, hurry, make_loop, of_kind, tiny_config

from clients.adapter import read_reply
from fedface_flwr.errors import ProtocolError


def power_cut(round_number):
    """Return a hook that raises when a party is asked to train this round."""

    def before(message):
        if message.content.config_records["config"].get("round") == round_number:
            raise RuntimeError("power cut")

    return before


def silent_for(kind, round_number=None):
    """Return a hook by which a party never answers messages of one type, or of one round."""

    def before(message):
        number = message.content.config_records["config"].get("round")
        if (message.metadata.message_type, number) == (kind, round_number):
            raise SilenceError

    return before


def altered(change):
    """Return a hook that lets ``change`` edit the arrays and scalars of a train reply."""

    def after(message, reply):
        if message.metadata.message_type != "train":
            return reply
        arrays, scalars = read_reply(reply)
        change(arrays, scalars)
        records = {
            "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
            "metrics": MetricRecord(scalars),
        }
        return Message(RecordDict(records), reply_to=message)

    return after


def start(config, **hooks):
    """Run a configuration with hooks by name and party; return loop, events and grid."""
    loop, events = make_loop(config)
    with PartyGrid(config) as grid:
        for name, by_party in hooks.items():
            getattr(grid, name).update(by_party)
        loop.start(grid)
    return loop, events, grid


@pytest.mark.parametrize("method", ["solo", "pfm", "fedface"])
def test_the_run_names_validators_only_where_they_move_the_weights(tmp_path, method):
    config = tiny_config(tmp_path, method)
    loop, events = make_loop(config)
    loop.summary()
    assert config.data.scorers
    assert events[0]["validators"] == (list(config.data.scorers) if method == "fedface" else [])


def test_a_trainer_that_fails_ends_the_run_naming_it_and_the_round(tmp_path):
    config = tiny_config(tmp_path, "fedavg")
    complaint = r"^round 2: 2 of 3 trainers answered, 3 are needed \(beta: .*power cut.*\)$"
    with pytest.raises(ProtocolError, match=complaint):
        start(config, before={"beta": power_cut(2)})


@pytest.mark.parametrize("method", ["fedavg", "pfm"])
def test_with_enough_others_the_round_goes_on_with_the_weights_shared_out(tmp_path, method):
    config = tiny_config(tmp_path, method, "federation.min_trainers=2", "data.tests=[]")
    answers = {}

    def keep(message, reply):
        scalars = message.content.config_records["config"]
        if scalars.get("round") == 2:
            answers[scalars["party"]] = read_reply(reply)[0]["model"]
        return reply

    hooks = dict.fromkeys(("alpha", "beta", "gamma"), keep)
    loop, events, _ = start(config, before={"beta": power_cut(2)}, after=hooks)
    one, two = of_kind(events, "round")
    assert (one["missing"], two["missing"]) == ([], ["beta"])
    assert set(two["silos"]) == {"alpha", "gamma"}
    assert two["weights"] == pytest.approx({"alpha": 0.5, "gamma": 0.5})
    assert loop.weights_by_name == pytest.approx(dict.fromkeys(("alpha", "beta", "gamma"), 1 / 3))
    expected = (answers["alpha"].astype(np.float64) + answers["gamma"]) / 2
    np.testing.assert_allclose(loop.models["global"].values, expected, rtol=1e-5, atol=1e-7)
    (warning,) = of_kind(events, "warning")
    assert warning["message"].startswith("round 2 goes on without beta: ")
    assert "power cut" in warning["message"]


def test_a_silo_that_missed_a_round_comes_back_with_the_head_of_its_last_one(tmp_path):
    config = tiny_config(tmp_path, "pfm", "federation.min_trainers=2", "training.rounds=4", "data.tests=[]")
    asked = []

    def note(message, reply):
        scalars = message.content.config_records["config"]
        if "round" in scalars:
            asked.append((scalars["round"], scalars["previous"]))
        return reply

    _, events, _ = start(config, before={"beta": power_cut(2)}, after={"beta": note})
    assert [event["missing"] for event in of_kind(events, "round")] == [[], ["beta"], [], []]
    assert [pair for pair in asked if pair[0] != 2] == [(1, 0), (3, 1), (4, 3)]


def test_a_solo_silo_that_fails_keeps_its_model(tmp_path):
    config = tiny_config(tmp_path, "solo", "federation.min_trainers=2", "data.tests=[delta]")
    loop, events, grid = start(config, before={"beta": power_cut(2)})
    assert of_kind(events, "round")[1]["missing"] == ["beta"]
    assert set(loop.tests) == {"alpha", "beta", "gamma"}
    counters = {name: set(model.counters.tolist()) for name, model in loop.models.items()}
    assert counters == {"alpha": {2}, "beta": {1}, "gamma": {2}}
    assert len(grid.messages("train", "beta")) == 1 + 1


def test_too_few_trainers_end_the_run_with_every_reason(tmp_path):
    config = tiny_config(tmp_path, "fedavg", "federation.min_trainers=2")
    complaint = r"1 of 3 trainers answered, 2 are needed \(alpha: .*power cut.*; beta: .*power cut.*\)"
    with pytest.raises(ProtocolError, match=complaint):
        start(config, before={"alpha": power_cut(1), "beta": power_cut(1)})


def after_round(action):
    """Return an observer that calls ``action`` with the loop when a round is over."""
    return lambda loop, event: action(loop) if event["event"] == "round" else None


def test_a_silent_trainer_is_missing_when_its_time_is_over(tmp_path):
    config = tiny_config(tmp_path, "fedavg")
    loop, _ = make_loop(config, after_round(hurry))
    with PartyGrid(config) as grid:
        grid.before["gamma"] = silent_for("train", 2)
        with pytest.raises(ProtocolError, match=r"^round 2: .*gamma: no answer within 0\.3 s"):
            loop.start(grid)


def test_a_trainer_whose_node_is_gone_is_missing_and_the_others_go_on(tmp_path):
    config = tiny_config(tmp_path, "fedavg", "federation.min_trainers=2")
    loop, events = make_loop(
        config, lambda loop, event: grid.refused.add("beta") if event["event"] == "round" else None
    )
    with PartyGrid(config) as grid:
        loop.start(grid)
    assert [event["missing"] for event in of_kind(events, "round")] == [[], ["beta"]]


def set_value(value):
    def change(arrays, scalars):
        arrays["model"] = arrays["model"].copy()
        arrays["model"][3] = value

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (set_value(np.nan), "values that are not finite"),
        (set_value(np.inf), "values that are not finite"),
        (lambda arrays, scalars: arrays.update(model=arrays["model"][1:]), r"array model is float32\["),
        (lambda arrays, scalars: arrays.update(head=arrays["model"]), r"arrays \['model', 'counters', 'head'\]"),
        (lambda arrays, scalars: arrays.clear(), r"arrays \[\] instead of model, counters"),
        (lambda arrays, scalars: scalars.update(identities=6), r"fields unknown \['identities'\]"),
        (lambda arrays, scalars: scalars.pop("loss.gamma"), r"fields missing \['loss.gamma'\]"),
        (lambda arrays, scalars: scalars.update({"loss.gamma": float("nan")}), "field loss.gamma is nan"),
    ],
    ids=["nan", "inf", "short", "head", "no-arrays", "extra-scalar", "missing-scalar", "nan-loss"],
)
def test_a_reply_that_breaks_the_contract_is_refused_naming_the_silo(tmp_path, change, complaint):
    config = tiny_config(tmp_path, "fedavg")
    loop, _ = make_loop(config)
    before = loop.models["global"].values.copy()
    with PartyGrid(config) as grid:
        grid.after["gamma"] = altered(change)
        with pytest.raises(ProtocolError, match=rf"round 1: 2 of 3 .*gamma: .*{complaint}"):
            loop.start(grid)
    np.testing.assert_array_equal(loop.models["global"].values, before)


def test_with_enough_others_a_poisoned_reply_leaves_no_trace(tmp_path):
    config = tiny_config(tmp_path, "pfm", "federation.min_trainers=2")
    loop, events, _ = start(config, after={"gamma": altered(set_value(np.nan))})
    assert np.isfinite(loop.models["global"].values).all()
    assert [event["missing"] for event in of_kind(events, "round")] == [["gamma"], ["gamma"]]


def test_what_is_wrong_with_the_data_of_all_parties_is_known_before_the_first_round(tmp_path):
    config = tiny_config(tmp_path, "fedface", "data=faces", f"data.root={tmp_path}")
    loop, events = make_loop(config)
    with PartyGrid(config) as grid, pytest.raises(ProtocolError) as caught:
        loop.start(grid)
    reasons = str(caught.value).split("; ")
    assert [reason.partition(":")[0] for reason in reasons] == ["age_gap", "celeba", "fiw", "lag", "lfw"]
    assert str(tmp_path / "celeba") in reasons[1]
    assert "no such folder of faces" in reasons[1]
    assert not grid.messages("train")
    assert [event["event"] for event in events] == ["start"]


def test_a_party_that_does_not_prepare_in_time_is_named(tmp_path):
    config = tiny_config(tmp_path, "fedavg", "federation.round_timeout=0.3")
    with pytest.raises(ProtocolError, match=r"beta: no answer within 0\.3 s"):
        start(config, before={"beta": silent_for("query.prepare")})


def test_a_validator_that_cannot_test_ends_the_run_naming_model_and_pack(tmp_path):
    config = tiny_config(tmp_path, "fedavg")

    def fail(message):
        if message.metadata.message_type == "evaluate":
            raise RuntimeError("power cut")

    with pytest.raises(ProtocolError, match=r"^test of global on epsilon: .*power cut"):
        start(config, before={"epsilon": fail})


def test_a_validator_that_answers_the_test_with_something_else_is_named(tmp_path):
    config = tiny_config(tmp_path, "fedavg")

    def leak(message, reply):
        if message.metadata.message_type == "evaluate":
            reply.content.metric_records["metrics"]["distances"] = [0.5, 0.25]
        return reply

    with pytest.raises(ProtocolError, match=r"^test of global on delta: .*unknown \['distances'\]"):
        start(config, after={"delta": leak})


def test_a_validator_that_is_silent_at_the_test_is_named(tmp_path):
    config = tiny_config(tmp_path, "fedavg", "training.rounds=1")
    loop, _ = make_loop(config, after_round(hurry))
    with PartyGrid(config) as grid:
        grid.before["delta"] = silent_for("evaluate")
        with pytest.raises(ProtocolError, match=r"^test of global: no answer from delta"):
            loop.start(grid)
