# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from grid import deployed_node, tiny_config

from clients.adapter import Serialiser, read_properties, read_reply, to_records
from clients.contract import PREPARE, QUERY, write_evaluate, write_request, write_train
from fedface_flwr.client_app import app
from fedface_flwr.errors import ConfigError, ProtocolError
from fedface_flwr.federation.difference import FullModel
from fedface_flwr.federation.layout import Layout
from fedface_flwr.run_config import config_of_run
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from fedface_flwr.training.tasks import TrainOrder


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path / "run", "fedface")


@pytest.fixture
def model(config):
    return FlatModel(build_backbone(config.model, config.seed))


def context(config, node):
    run = {"config": config.to_json(), "overrides": ""}
    return Context(1, 7, {"partition-id": 0, "num-partitions": 1} | node, RecordDict(), run)


def ask(config, kind, arrays, scalars, node=None):
    message = Message(to_records(Serialiser()(arrays), scalars), 7, kind)
    return app(message, context(config, node or {}))


def train(config, model, party="alpha", node=None):
    order = TrainOrder(1, 0.1, 0, 0, FullModel("0", model.state()))
    return ask(config, "train", *write_train(party, "first", model.layout, order), node)


def evaluate(config, model, party="delta", node=None):
    return ask(config, "evaluate", *write_evaluate(party, "first", model.layout, "validation", 1, model.state()), node)


@pytest.mark.parametrize(
    ("node", "parties"),
    [
        ({"partition-id": 0, "num-partitions": 5}, ["alpha"]),
        ({"partition-id": 4, "num-partitions": 5}, ["epsilon"]),
        ({"partition-id": 0, "num-partitions": 2}, ["alpha", "gamma", "epsilon"]),
        ({"partition-id": 1, "num-partitions": 2}, ["beta", "delta"]),
        ({"partition-id": 6, "num-partitions": 7}, []),
    ],
)
def test_a_simulated_node_tells_which_parties_it_acts_for_and_as_what(config, node, parties):
    reply = ask(config, f"query.{QUERY}", {}, {}, node)
    assert read_properties(reply.content) == {party: config.roles[party] for party in parties}


@pytest.mark.parametrize(("party", "role"), [("gamma", "trainer"), ("delta", "validator"), ("delta", "trainer")])
def test_a_deployed_node_tells_what_it_was_started_as_whatever_the_run_has_it_as(config, tmp_path, party, role):
    reply = ask(config, f"query.{QUERY}", {}, {}, deployed_node(tmp_path, party, role))
    assert read_properties(reply.content) == {party: role}


def test_messages_reach_the_party_that_they_are_for(config, model):
    for party, samples in (("beta", 24), ("epsilon", 20)):
        reply = ask(config, f"query.{PREPARE}", {}, write_request(party, "first", model.layout))
        assert read_reply(reply) == ({}, {"samples": samples})
    arrays, scalars = read_reply(train(config, model, "beta"))
    assert list(arrays) == ["model", "counters"]
    assert set(scalars) == {"images", "seconds", "loss.beta", "accuracy.beta", "loss_ema.beta"}
    arrays, scalars = read_reply(evaluate(config, model))
    assert arrays == {}
    assert set(scalars) == {"score", "seconds"}


@pytest.mark.parametrize(
    ("send", "party", "node", "complaint"),
    [
        (train, "alpha", {"partition-id": 1, "num-partitions": 2}, "but this node acts for beta, delta"),
        (train, "mallory", {}, "message for 'mallory', but this node acts for alpha, beta"),
        (train, "../alpha", {}, "message for '../alpha'"),
        (train, "delta", {}, "a validator does not answer 'train'"),
        (evaluate, "alpha", {}, "a trainer does not answer 'evaluate'"),
    ],
)
def test_a_message_that_is_not_for_the_party_s_role_or_node_is_refused(config, model, send, party, node, complaint):
    with pytest.raises(ProtocolError) as caught:
        read_reply(send(config, model, party, node))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("send", "party", "own", "role", "complaint"),
    [
        (train, "alpha", "beta", "trainer", "message for 'alpha', but this node acts for beta"),
        (train, "delta", "delta", "validator", "a validator does not answer 'train'"),
        (evaluate, "alpha", "alpha", "trainer", "a trainer does not answer 'evaluate'"),
        (train, "delta", "delta", "trainer", "delta is a trainer, the run wants it as validator"),
        (train, "zeta", "zeta", "trainer", "zeta is no party of this run, which has alpha, beta, gamma, delta"),
    ],
)
def test_a_deployed_node_answers_for_its_own_party_in_its_own_role(
    config, model, tmp_path, send, party, own, role, complaint
):
    with pytest.raises(ProtocolError) as caught:
        read_reply(send(config, model, party, deployed_node(tmp_path, own, role)))
    assert complaint in str(caught.value)
    (line,) = (tmp_path / own / "privacy.jsonl").read_text().splitlines()
    assert complaint in json.loads(line)["error"]


@pytest.mark.parametrize("send", [train, evaluate])
def test_a_sender_with_another_model_is_refused(config, model, send):
    model.layout = Layout(model.layout.entries[::-1][1:][::-1])
    with pytest.raises(ProtocolError, match=f"the sender's model has layout {model.layout.digest}"):
        read_reply(send(config, model))


def test_a_failure_is_answered_by_one_line_without_the_trace(config, model, tmp_path):
    home = tmp_path / "run" / "silos" / "alpha"
    home.mkdir(parents=True)
    (home / config.run.token).write_text("where the run's folder should be")
    reply = train(config, model)
    assert reply.has_error()
    assert "\n" not in reply.error.reason
    assert "Traceback" not in reply.error.reason
    assert "cannot be written" in reply.error.reason


def test_a_silo_s_state_lies_in_its_own_folder_or_else_in_the_run_s(config, model, tmp_path):
    train(config, model, "beta")
    train(config, model, "beta", deployed_node(tmp_path / "private", "beta", "trainer"))
    kept = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("round-*.safetensors"))
    assert kept == [
        "private/beta/run/first/round-000001.safetensors",
        "run/silos/beta/run/first/round-000001.safetensors",
    ]


def test_the_node_s_parties_are_isolated_though_they_share_a_process(config, model):
    one, two = (read_reply(train(config, model, party)) for party in ("alpha", "beta"))
    again = read_reply(train(config, model, "alpha"))
    assert not np.array_equal(one[0]["model"], two[0]["model"])
    np.testing.assert_array_equal(one[0]["model"], again[0]["model"])


def test_a_run_s_configuration_comes_back_from_its_json(config):
    assert config_of_run(config.to_json(), "strategy=pfm", 5) == config


def test_a_bare_run_composes_conf_with_its_overrides():
    config = config_of_run("", "strategy=pfm seed=3 'data.silos=[one, two]'", 5)
    assert (config.strategy.name, config.seed, config.data.trainers) == ("pfm", 3, ("one", "two"))
    assert (config.run.dir, config.run.token) == ("runs/flwr-5", "flwr-5")
    assert config_of_run("", "", 6).run.dir == "runs/flwr-6"
    assert config_of_run("", "run.dir=elsewhere", 6).run.dir == "elsewhere"


@pytest.mark.parametrize(
    ("config", "overrides", "complaint"),
    [
        ("{", "", "not JSON"),
        ("{}", "", "missing"),
        ("", "seed=-1", "seed"),
        ("", "sed=1", "sed"),
        ("", "strategy=magic", "magic"),
        ("", "'seed=1", "quote it as a shell would"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config, overrides, complaint):
    with pytest.raises(ConfigError, match=complaint):
        config_of_run(config, overrides, 5)


def test_a_deployed_silo_does_not_compose_what_a_server_wrote(config, model, tmp_path, monkeypatch):
    monkeypatch.setenv("SILO_SECRET", "hunter2")
    node = deployed_node(tmp_path, "alpha", "trainer")
    run = {"config": "", "overrides": "'data.silos=[${oc.env:SILO_SECRET}]'"}
    content = to_records({}, write_request("alpha", "first", model.layout))
    reply = app(Message(content, 7, f"query.{PREPARE}"), Context(1, 7, node, RecordDict(), run))
    assert "hunter2" not in reply.error.reason
    assert "runs that fedface submits" in reply.error.reason


@pytest.mark.parametrize("number", [b"x", float("nan"), "x" * 1000])
def test_whatever_a_server_writes_into_a_field_every_reply_is_written_down(config, tmp_path, number):
    node = deployed_node(tmp_path, "alpha", "trainer")
    message = Message(RecordDict({"config": ConfigRecord({"round": number})}), 7, "train")
    assert app(message, context(config, node)).has_error()
    (line,) = (tmp_path / "alpha" / "privacy.jsonl").read_text().splitlines()
    assert json.loads(line)["round"] == 0
