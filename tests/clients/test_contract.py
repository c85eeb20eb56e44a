# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from clients import contract
from clients.contract import (
    BRANCH_FIGURES,
    REQUEST,
    SCORE_FIGURES,
    TEST_FIGURES,
    half_of,
    model_arrays,
    party_of,
    read_evaluate,
    read_figures,
    read_prepare_reply,
    read_request,
    read_train,
    read_train_reply,
    write_evaluate,
    write_request,
    write_train,
    write_train_reply,
)
from fedface_flwr.errors import ProtocolError
from fedface_flwr.federation.layout import Entry, Kind, Layout, ModelState
from fedface_flwr.training.tasks import BranchResult, TrainResult, TrainTask

LAYOUT = Layout(
    (
        Entry("weight", (2, 2), Kind.PARAMETER),
        Entry("bn.running_mean", (1,), Kind.RUNNING_MEAN),
        Entry("bn.running_var", (1,), Kind.RUNNING_VARIANCE),
        Entry("bn.num_batches_tracked", (), Kind.COUNTER),
    )
)
OTHER = Layout(LAYOUT.entries[:1])
MODEL = ModelState(np.arange(6, dtype=np.float32), np.array([7], dtype=np.int64))
MOMENTUM = np.array([0.5, -1, 2, 0], dtype=np.float32)
TASK = TrainTask(round=3, rate=0.1, model=MODEL, momentum=MOMENTUM, previous=2)
RESULT = TrainResult(
    MODEL, {"alpha": BranchResult(4.5, 0.25, 5.0), "beta": BranchResult(3.5, 0.5, 4.0)}, num_images=12, seconds=1.5
)


def sent_train(task=TASK):
    arrays, scalars = write_train("alpha", "first", LAYOUT, task)
    return list(arrays.values()), scalars


def sent_reply(result=RESULT):
    arrays, images, metrics = write_train_reply(result)
    return dict(zip(("model", "counters"), arrays, strict=True)), {"images": images, **metrics}


def sent_evaluate(purpose="test"):
    return list(model_arrays(MODEL).values()), write_evaluate("delta", "second", LAYOUT, purpose)


def assert_same_model(read, written):
    np.testing.assert_array_equal(read.values, written.values)
    np.testing.assert_array_equal(read.counters, written.counters)


def test_request_comes_back():
    scalars = write_request("alpha", "second", LAYOUT)
    read_request(scalars, LAYOUT)
    assert (party_of(scalars), half_of(scalars)) == ("alpha", "second")


def test_samples_come_back():
    assert read_prepare_reply({"samples": 40}) == 40
    for wrong, complaint in ((0, "0 samples"), (4.0, "field samples is 4.0, not a finite int")):
        with pytest.raises(ProtocolError, match=complaint):
            read_prepare_reply({"samples": wrong})


@pytest.mark.parametrize("momentum", [MOMENTUM, None])
def test_train_message_comes_back(momentum):
    arrays, scalars = sent_train(replace(TASK, momentum=momentum))
    assert len(arrays) == (2 if momentum is None else 3)
    task = read_train(arrays, scalars, LAYOUT)
    assert (task.round, task.rate) == (3, 0.1)
    assert_same_model(task.model, MODEL)
    if momentum is None:
        assert task.momentum is None
    else:
        np.testing.assert_array_equal(task.momentum, momentum)


def test_train_reply_comes_back_and_holds_nothing_else():
    arrays, scalars = sent_reply()
    assert set(arrays) == {"model", "counters"}
    assert set(scalars) == {"images", "seconds"} | {f"{f}.{s}" for f in BRANCH_FIGURES for s in ("alpha", "beta")}
    read = read_train_reply(arrays, scalars, ["alpha", "beta"], LAYOUT)
    assert (read.branches, read.num_images, read.seconds) == (RESULT.branches, 12, 1.5)
    assert_same_model(read.model, MODEL)


@pytest.mark.parametrize("purpose", ["validation", "test"])
def test_evaluate_message_comes_back(purpose):
    task = read_evaluate(*sent_evaluate(purpose), LAYOUT)
    assert (task.purpose, task.half) == (purpose, "second")
    assert_same_model(task.model, MODEL)


@pytest.mark.parametrize("names", [SCORE_FIGURES, TEST_FIGURES])
def test_figures_come_back(names):
    figures = {name: index / 8 for index, name in enumerate((*names, "seconds"))}
    assert read_figures(figures, names) == figures


def test_models_of_another_layout_are_refused_in_every_message():
    train, evaluate, request = sent_train(), sent_evaluate(), write_request("alpha", "first", LAYOUT)
    for read in (
        lambda: read_train(*train, OTHER),
        lambda: read_evaluate(*evaluate, OTHER),
        lambda: read_request(request, OTHER),
    ):
        with pytest.raises(ProtocolError, match=f"layout {LAYOUT.digest}, this party's {OTHER.digest}"):
            read()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model": MODEL.values[:-1]}, r"array model is float32\[5\], not float32\[6\]"),
        ({"model": MODEL.values.astype(np.float64)}, r"array model is float64\[6\]"),
        ({"model": MODEL.values.astype(">f4")}, r"array model is >f4\[6\]"),
        ({"model": MODEL.values.reshape(2, 3)}, r"array model is float32\[2, 3\]"),
        ({"counters": np.array([7], dtype=np.int32)}, r"array counters is int32\[1\]"),
        ({"counters": np.array(7)}, r"array counters is int64\[\]"),
        ({"head": MODEL.values}, r"arrays \['model', 'counters', 'head'\] instead of"),
        ({"model": np.array([1, 2, math.nan, 4, 5, 6], dtype=np.float32)}, "not finite"),
        ({"model": np.array([1, 2, math.inf, 4, 5, 6], dtype=np.float32)}, "not finite"),
        ({"model": np.full(6, 3e38, dtype=np.float32)}, "too large to be weights"),
    ],
)
def test_a_reply_with_other_arrays_is_refused(change, complaint):
    arrays, scalars = sent_reply()
    with pytest.raises(ProtocolError, match=complaint):
        read_train_reply(arrays | change, scalars, ["alpha", "beta"], LAYOUT)


def test_a_reply_without_a_model_or_in_another_order_is_refused():
    arrays, scalars = sent_reply()
    for wrong in ({"counters": arrays["counters"]}, dict(reversed(arrays.items())), {}):
        with pytest.raises(ProtocolError, match="instead of model and counters"):
            read_train_reply(wrong, scalars, ["alpha", "beta"], LAYOUT)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"identities": 5}, r"missing \[\], fields unknown \['identities'\]"),
        ({"loss.gamma": 1.0}, r"fields unknown \['loss.gamma'\]"),
        ({"loss.alpha": math.nan}, "field loss.alpha is nan, not a finite float"),
        ({"accuracy.beta": math.inf}, "field accuracy.beta is inf"),
        ({"loss.alpha": 1}, "field loss.alpha is 1, not a finite float"),
        ({"loss.alpha": [1.0, 2.0]}, r"field loss.alpha is \[1.0, 2.0\]"),
        ({"images": 12.0}, "field images is 12.0, not a finite int"),
        ({"images": True}, "field images is True"),
        ({"images": 0}, "0 images"),
        ({"images": -3}, "-3 images"),
        ({"seconds": -1.0}, "12 images in -1.0 seconds"),
    ],
)
def test_a_reply_with_other_scalars_is_refused(change, complaint):
    arrays, scalars = sent_reply()
    with pytest.raises(ProtocolError, match=complaint):
        read_train_reply(arrays, scalars | change, ["alpha", "beta"], LAYOUT)


def test_a_reply_must_cover_exactly_the_sets_that_the_party_owns():
    arrays, scalars = sent_reply()
    with pytest.raises(ProtocolError, match=r"missing \['accuracy.gamma', 'loss.gamma', 'loss_ema.gamma'\]"):
        read_train_reply(arrays, scalars, ["alpha", "beta", "gamma"], LAYOUT)
    with pytest.raises(ProtocolError, match=r"unknown \['accuracy.beta', 'loss.beta', 'loss_ema.beta'\]"):
        read_train_reply(arrays, scalars, ["alpha"], LAYOUT)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"round": 0}, "round 0"),
        ({"previous": 3}, "round 3 after round 3"),
        ({"previous": -1}, "round 3 after round -1"),
        ({"rate": 0.0}, "at rate 0.0"),
        ({"rate": -0.1}, "at rate -0.1"),
        ({"rate": math.nan}, "field rate is nan"),
        ({"round": 1.0}, "field round is 1.0, not a finite int"),
        ({"party": 3}, "field party is 3"),
        ({"code": "import os"}, r"unknown \['code'\]"),
    ],
)
def test_a_train_message_with_other_scalars_is_refused(change, complaint):
    arrays, scalars = sent_train()
    with pytest.raises(ProtocolError, match=complaint):
        read_train(arrays, scalars | change, LAYOUT)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_train_message_with_another_number_of_arrays_is_refused(count):
    arrays, scalars = sent_train()
    with pytest.raises(ProtocolError, match=f"{count} arrays instead of model, counters and momentum"):
        read_train([*arrays, MOMENTUM][:count], scalars, LAYOUT)


def test_a_momentum_covers_the_parameters_alone():
    arrays, scalars = sent_train(replace(TASK, momentum=MODEL.values))
    with pytest.raises(ProtocolError, match=r"array momentum is float32\[6\], not float32\[4\]"):
        read_train(arrays, scalars, LAYOUT)


@pytest.mark.parametrize("name", sorted(REQUEST))
def test_no_field_of_a_request_may_be_missing(name):
    scalars = write_request("alpha", "first", LAYOUT)
    del scalars[name]
    with pytest.raises(ProtocolError, match=rf"missing \['{name}'\]"):
        read_request(scalars, LAYOUT)


def test_an_evaluate_message_is_for_validation_or_test_of_one_model():
    arrays, scalars = sent_evaluate()
    with pytest.raises(ProtocolError, match="purpose 'train' is neither"):
        read_evaluate(arrays, scalars | {"purpose": "train"}, LAYOUT)
    with pytest.raises(ProtocolError, match="half 'both' is neither first nor second"):
        read_evaluate(arrays, scalars | {"half": "both"}, LAYOUT)
    with pytest.raises(ProtocolError, match="3 arrays"):
        read_evaluate([*arrays, MOMENTUM], scalars, LAYOUT)


def test_a_validator_reports_exactly_what_was_asked():
    with pytest.raises(ProtocolError, match=r"unknown \['distances'\]"):
        read_figures({"score": 60.0, "seconds": 1.0, "distances": 0.5}, SCORE_FIGURES)
    with pytest.raises(ProtocolError, match="field score is nan"):
        read_figures({"score": math.nan, "seconds": 1.0}, SCORE_FIGURES)


@pytest.mark.parametrize("scalars", [{}, {"party": 1}])
def test_a_message_says_which_party_it_is_for(scalars):
    with pytest.raises(ProtocolError, match="does not say which party"):
        party_of(scalars)


def test_every_message_that_is_written_is_in_the_table():
    words = set(contract.__doc__.replace(",", " ").replace(";", " ").split())
    fields = {*sent_train()[1], *write_train("a", "first", LAYOUT, TASK)[0], *sent_evaluate()[1], *BRANCH_FIGURES}
    assert fields <= words
