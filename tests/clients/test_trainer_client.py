# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from grid import tiny_config

from clients.contract import read_train_reply, write_request, write_train
from clients.node import Node
from clients.party import answer
from clients.trainer import TrainerClient
from fedface_flwr.data.sources import training_sets
from fedface_flwr.errors import ProtocolError, StateError
from fedface_flwr.federation.difference import FullModel
from fedface_flwr.federation.layout import Layout
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from fedface_flwr.training.store import SiloStore
from fedface_flwr.training.tasks import TrainOrder, TrainTask
from fedface_flwr.training.trainer import Trainer


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path / "run", "pfm", "training.steps_per_round=2")


@pytest.fixture
def client(config, tmp_path):
    node = Node("alpha", "trainer", tmp_path / "store", cache=tmp_path / "cache")
    return TrainerClient(config.to_json(), partial(answer, node=node))


def sent(config, number=1, half="first", momentum=None):
    model = FlatModel(build_backbone(config.model, config.seed))
    # PFM's first momentum is zero and does not travel.
    applied = np.zeros(model.layout.num_parameters, np.float32) if momentum is None else momentum
    task = TrainTask(number, 0.1, model.state(), applied, number - 1)
    order = TrainOrder(number, 0.1, number - 1, number - 1, FullModel("", model.state(), momentum))
    arrays, scalars = write_train("alpha", half, model.layout, order)
    return model.layout, task, list(arrays.values()), scalars


def read(config, layout, answer):
    arrays, images, metrics = answer
    named = dict(zip(("model", "counters"), arrays, strict=True))
    return read_train_reply(named, {"images": images, **metrics}, config.sets_of("alpha"), layout)


def test_fit_is_what_the_trainer_does(config, client, tmp_path):
    layout, task, arrays, scalars = sent(config)
    result = read(config, layout, client.fit(arrays, scalars))
    sets = training_sets(config, "alpha", tmp_path)
    expected = Trainer(config, "alpha", sets, SiloStore(tmp_path / "other")).train(task)
    np.testing.assert_array_equal(result.model.values, expected.model.values)
    np.testing.assert_array_equal(result.model.counters, task.model.counters + config.training.steps_per_round)
    assert result.branches == expected.branches
    assert result.num_images == 6 * 4
    assert not np.array_equal(result.model.values, task.model.values)


def test_momentum_that_is_received_is_applied(config, client):
    layout, task, arrays, scalars = sent(config)
    push = np.full(layout.num_parameters, 0.01, dtype=np.float32)
    *_, with_momentum, scalars_with = sent(config, momentum=push)
    still = read(config, layout, client.fit([*arrays, np.zeros_like(push)], scalars)).model.values
    moved = read(config, layout, client.fit(with_momentum, scalars_with)).model.values
    # The first of the K steps moves each parameter by -eta beta M / K more; later gradients differ a little for it.
    expected = -task.rate * config.optimizer.momentum * 0.01
    assert np.median(moved[: len(push)] - still[: len(push)]) == pytest.approx(expected, rel=0.02)


def test_a_repeated_round_gives_the_same_bits(config, client):
    layout, _, arrays, scalars = sent(config)
    first = read(config, layout, client.fit(arrays, scalars))
    _, _, later, later_scalars = sent(config, number=2)
    client.fit(later, later_scalars)
    again = read(config, layout, client.fit(arrays, scalars))
    np.testing.assert_array_equal(first.model.values, again.model.values)
    assert first.branches == again.branches


def test_halves_have_heads_of_their_own_and_a_round_needs_the_one_before(config, client, tmp_path):
    _, _, arrays, scalars = sent(config)
    client.fit(arrays, scalars)
    _, _, arrays, scalars = sent(config, number=2, half="second")
    with pytest.raises(StateError, match="no state of round 1"):
        client.fit(arrays, scalars)
    assert sorted(
        p.relative_to(tmp_path / "store").as_posix() for p in (tmp_path / "store").rglob("*.safetensors")
    ) == ["run/first/round-000001.safetensors"]


def test_prepare_counts_the_images_and_refuses_another_model(config, client):
    layout, *_ = sent(config)
    assert client.prepare(write_request("alpha", "first", layout)) == 24
    other = Layout(layout.entries[:-1])
    with pytest.raises(ProtocolError, match="both must run the same version"):
        client.prepare(write_request("alpha", "first", other))


def test_a_message_of_another_layout_trains_nothing(config, client, tmp_path):
    _, _, arrays, scalars = sent(config)
    with pytest.raises(ProtocolError, match="the sender's model has layout 0123"):
        client.fit(arrays, scalars | {"layout": "0123"})
    with pytest.raises(ProtocolError, match=r"half \.\./\.\. is neither|half '\.\./\.\.' is neither"):
        client.fit(arrays, scalars | {"half": "../.."})
    assert not (tmp_path / "store").exists()


def test_a_trainer_never_evaluates(client):
    with pytest.raises(ProtocolError, match="a trainer trains and never evaluates"):
        client.evaluate([], {})
