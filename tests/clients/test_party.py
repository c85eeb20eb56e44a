# SPDX-License-Identifier: Apache-2.0
"""A party's answers where differences travel, and what a validator with a policy answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from grid import tiny_config

from clients import party
from clients.contract import (
    needs_model,
    read_train_reply,
    write_evaluate,
    write_request,
    write_train,
)
from clients.exchange import Request
from clients.node import Node
from clients.policy import SiloPolicy
from fedface_flwr.data.sources import training_sets
from fedface_flwr.errors import ProtocolError, TrainingError
from fedface_flwr.evaluation.evaluator import Evaluator
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.federation.difference import FullModel, GlobalChange, decode, encode, momentum_of
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from fedface_flwr.training.store import SiloStore
from fedface_flwr.training.tasks import TrainOrder, TrainTask
from fedface_flwr.training.trainer import Trainer

RATE = 0.1
DTYPES = ["float32", "bfloat16", "float16"]
# By the rounding of each type to nearest: half a unit in the last place.
ROUNDING = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}


@pytest.fixture(autouse=True)
def _fresh_process():
    party._party.cache_clear()


def differences(folder, dtype="float32", strategy="pfm"):
    return tiny_config(folder / "run", strategy, "wire.differences=true", f"wire.dtype={dtype}", "training.rounds=3")


def first_model(config):
    return FlatModel(build_backbone(config.model, config.seed))


def plain_trainer(config, folder):
    """The trainer that the party has inside, with a store of its own."""
    return Trainer(config, "alpha", training_sets(config, "alpha", folder), SiloStore(folder / "plain"))


def node(folder):
    return Node("alpha", "trainer", folder / "alpha", cache=folder / "cache")


def train(config, folder, number, download):
    layout = first_model(config).layout
    order = TrainOrder(number, RATE, number - 1, number - 1, download)
    arrays, scalars = write_train("alpha", "first", layout, order)
    return party.answer(Request("train", config.to_json(), list(arrays.values()), scalars), node(folder))


def read(config, answer, start):
    named = dict(zip(("difference", "statistics", "counters"), answer.arrays, strict=True))
    layout = first_model(config).layout
    return read_train_reply(named, answer.scalars, ["alpha"], layout, start, config.wire.dtype)


def step_of(config, seed):
    count = first_model(config).layout.num_parameters
    return encode(np.random.default_rng(seed).normal(size=count).astype(np.float32) / 100, config.wire.dtype)


def moved(model, step):
    values = model.values.copy()
    values[: len(step.values)] += decode(step)
    return ModelState(values, model.counters)


def change(number, step, model, count):
    return GlobalChange(f"v{number}", f"v{number - 1}", step, model.values[count:], model.counters, RATE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_reply_by_difference_is_the_trainer_s_own_result(tmp_path, dtype):
    config = differences(tmp_path, dtype)
    layout, model = first_model(config).layout, first_model(config).state()
    trainer = plain_trainer(config, tmp_path)
    momentum, count = np.zeros(layout.num_parameters, np.float32), layout.num_parameters
    download = FullModel("v0", model)
    for number in (1, 2, 3):
        got = read(config, train(config, tmp_path, number, download), model)
        own = trainer.train(TrainTask(number, RATE, model, momentum, number - 1))
        exact, sent = own.model.values, got.model.values
        # Differences in float32 lose only what the model's own last bit does in the subtraction.
        update = np.abs(exact[:count] - model.values[:count])
        tolerance = ROUNDING[dtype] * update + 2.0**-14 * ROUNDING[dtype] * update.max()
        last_bit = np.spacing(np.maximum(np.abs(exact[:count]), np.abs(model.values[:count])))
        assert (np.abs(sent[:count] - exact[:count]) <= tolerance + last_bit).all()
        np.testing.assert_array_equal(sent[count:], exact[count:])
        np.testing.assert_array_equal(got.model.counters, own.model.counters)
        assert (got.branches, got.num_images) == (own.branches, own.num_images)
        step = step_of(config, number)
        model, momentum = moved(model, step), momentum_of(decode(step), RATE)
        download = change(number, step, model, count)


def test_in_float32_the_reply_is_bit_exact_where_subtraction_is(tmp_path):
    config = differences(tmp_path)
    model = first_model(config).state()
    count = first_model(config).layout.num_parameters
    got = read(config, train(config, tmp_path, 1, FullModel("v0", model)), model).model.values[:count]
    zero = np.zeros(count, np.float32)
    exact = plain_trainer(config, tmp_path).train(TrainTask(1, RATE, model, zero, 0)).model.values[:count]
    start = model.values[:count]
    # Sterbenz: the difference of two numbers within a factor two of each other has no rounding.
    near = (exact * start > 0) & (np.abs(exact) <= 2 * np.abs(start)) & (np.abs(start) <= 2 * np.abs(exact))
    assert near.mean() > 0.2
    np.testing.assert_array_equal(got[near], exact[near])


def test_a_trainer_without_the_base_asks_for_the_model_trains_nothing_and_then_goes_on(tmp_path):
    config = differences(tmp_path, "bfloat16")
    model, count = first_model(config).state(), first_model(config).layout.num_parameters
    train(config, tmp_path, 1, FullModel("v0", model))
    step = step_of(config, 1)
    now = moved(model, step)
    sent = change(1, step, now, count)
    undisturbed = train(config, tmp_path, 2, sent)
    store = tmp_path / "alpha" / config.run.token / "first"
    (store / "global.safetensors").unlink()
    (store / "round-000002.safetensors").unlink()
    party._party.cache_clear()
    answer = train(config, tmp_path, 2, sent)
    assert needs_model({}, answer.scalars)
    assert answer.arrays == []
    assert not (store / "round-000002.safetensors").exists()
    whole = FullModel("v1", now, momentum_of(decode(step), RATE))
    recovered = train(config, tmp_path, 2, whole)
    for one, other in zip(undisturbed.arrays, recovered.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    # And holds it from then on.
    step = step_of(config, 2)
    assert len(train(config, tmp_path, 3, change(2, step, moved(now, step), count)).arrays) == 3


def test_a_service_that_died_goes_on_with_the_same_bits(tmp_path):
    config = differences(tmp_path, "bfloat16")
    model, count = first_model(config).state(), first_model(config).layout.num_parameters
    answers = []
    for died in (False, True):
        folder = tmp_path / str(died)
        train(config, folder, 1, FullModel("v0", model))
        now = model
        for number in (1, 2):
            if died:
                party._party.cache_clear()
            step = step_of(config, number)
            now = moved(now, step)
            answers.append(train(config, folder, number + 1, change(number, step, now, count)))
    for one, other in zip(answers[:2], answers[2:], strict=True):
        for mine, yours in zip(one.arrays, other.arrays, strict=True):
            np.testing.assert_array_equal(mine, yours)


def test_whole_models_and_differences_are_refused_in_the_run_of_the_other(tmp_path):
    config = tiny_config(tmp_path / "run", "pfm")
    model, count = first_model(config).state(), first_model(config).layout.num_parameters
    with pytest.raises(ProtocolError, match=r"a difference in a run that sends whole models"):
        train(config, tmp_path, 1, change(1, step_of(config, 1), model, count))


def test_a_round_after_the_run_s_last_is_refused(tmp_path):
    config = differences(tmp_path)
    with pytest.raises(ProtocolError, match="round 4 of a run of 3"):
        train(config, tmp_path, 4, FullModel("v0", first_model(config).state()))


def test_a_model_that_diverged_is_told_as_such(tmp_path):
    config = tiny_config(
        tmp_path / "run", "pfm", "wire.differences=true", "optimizer.rate=1e30", "training.steps_per_round=4"
    )
    layout = first_model(config).layout
    order = TrainOrder(1, 1e30, 0, 0, FullModel("v0", first_model(config).state()))
    arrays, scalars = write_train("alpha", "first", layout, order)
    with pytest.raises(TrainingError, match=r"no longer finite.* lower optimizer\.rate"):
        party.answer(Request("train", config.to_json(), list(arrays.values()), scalars), node(tmp_path))


# A validator with a policy.


def validator(folder, **bounds):
    return Node("delta", "validator", folder / "delta", cache=folder / "cache", policy=SiloPolicy(**bounds))


def evaluate(config, own, purpose, number, seed=0):
    model = FlatModel(build_backbone(config.model, seed))
    arrays, scalars = write_evaluate("delta", "first", model.layout, purpose, number, model.state())
    request = Request("evaluate", config.to_json(), list(arrays.values()), scalars)
    return party.answer(request, own).scalars


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path / "run", "fedface", "data.synthetic.pairs=200", "fv.pairs=0")


@pytest.mark.parametrize("purpose", ["validation", "test"])
def test_figures_are_rounded_to_what_was_agreed(tmp_path, config, purpose):
    resolution = 0.7
    given = evaluate(config, validator(tmp_path, score_resolution=resolution), purpose, 1)
    state = FlatModel(build_backbone(config.model, 0)).state()
    exact = Evaluator(config, "delta", tmp_path).evaluate(EvaluateTask(purpose, "first", state, 1))
    assert set(given) == set(exact)
    for name in set(exact) - {"seconds", "pairs"}:
        unit = resolution if name == "score" else resolution / 100
        assert abs(given[name] - exact[name]) <= unit / 2 + 1e-12
        assert given[name] / unit == pytest.approx(round(given[name] / unit), abs=1e-9)
    assert given.get("pairs") == exact.get("pairs")


def test_the_ledger_is_the_run_s_and_outlives_the_process(tmp_path, config):
    own = validator(tmp_path, max_candidates=3)
    given = [evaluate(config, own, "validation", 1, seed) for seed in (0, 1, 2)]
    party._party.cache_clear()
    with pytest.raises(ProtocolError, match="3 models were agreed to"):
        evaluate(config, own, "validation", 1, 3)
    assert [evaluate(config, own, "validation", 1, seed) for seed in (0, 1, 2)] == given
    answers = json.loads((tmp_path / "delta" / config.run.token / "answers.json").read_text())
    assert {group: len(known) for group, known in answers.items()} == {"first validation 1": 3}


def test_a_pack_of_few_pairs_is_not_scored_at_all(tmp_path, config):
    for kind in ("prepare", "evaluate"):
        scalars = write_request("delta", "first", first_model(config).layout)
        with pytest.raises(ProtocolError, match="no score over fewer than 201 pairs"):
            party.answer(Request(kind, config.to_json(), [], scalars), validator(tmp_path, min_pairs=201))


def test_each_role_answers_its_own_kind(tmp_path, config):
    scalars = write_request("delta", "first", first_model(config).layout)
    with pytest.raises(ProtocolError, match="a validator evaluates and never trains"):
        party.answer(Request("train", config.to_json(), [], scalars), validator(tmp_path))
    with pytest.raises(ProtocolError, match="a trainer trains and never evaluates"):
        party.answer(Request("evaluate", config.to_json(), [], scalars), node(tmp_path))
