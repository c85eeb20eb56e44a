# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from functools import partial

import pytest
from grid import tiny_config

from clients.contract import (
    SCORE_FIGURES,
    TEST_FIGURES,
    read_figures,
    write_evaluate,
    write_request,
)
from clients.node import Node
from clients.party import answer
from clients.validator import ValidatorClient
from fedface_flwr.errors import ProtocolError
from fedface_flwr.evaluation.evaluator import Evaluator
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.federation.layout import Layout
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path / "run", "fedface")


@pytest.fixture
def client(config, tmp_path):
    node = Node("delta", "validator", tmp_path / "delta", cache=tmp_path / "cache")
    return ValidatorClient(config.to_json(), partial(answer, node=node))


@pytest.fixture
def model(config):
    return FlatModel(build_backbone(config.model, config.seed))


@pytest.mark.parametrize(("purpose", "names"), [("validation", SCORE_FIGURES), ("test", TEST_FIGURES)])
def test_evaluate_reports_the_figures_of_its_purpose_and_no_others(config, client, model, tmp_path, purpose, names):
    arrays, scalars = write_evaluate("delta", "first", model.layout, purpose, 1, model.state())
    figures = read_figures(client.evaluate(list(arrays.values()), scalars)[2], names)
    expected = Evaluator(config, "delta", tmp_path).evaluate(EvaluateTask(purpose, "first", model.state(), 1))
    assert {n: figures[n] for n in names} == {n: expected[n] for n in names}


def test_a_validator_never_trains(client):
    with pytest.raises(ProtocolError, match="a validator evaluates and never trains"):
        client.fit([], {})


def test_prepare_counts_the_pairs_and_refuses_another_model(client, model):
    assert client.prepare(write_request("delta", "first", model.layout)) == 20
    with pytest.raises(ProtocolError, match="both must run the same version"):
        client.prepare(write_request("delta", "first", Layout(model.layout.entries[:-1])))


def test_a_message_of_another_layout_is_refused(client, model):
    arrays, scalars = write_evaluate("delta", "first", model.layout, "test", 1, model.state())
    with pytest.raises(ProtocolError, match="the sender's model has layout 0123"):
        client.evaluate(list(arrays.values()), scalars | {"layout": "0123"})
