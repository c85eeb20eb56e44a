# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from clients import contract
from clients.contract import (
    BRANCH_FIGURES,
    NEEDS_MODEL,
    REQUEST,
    SCORE_FIGURES,
    TEST_FIGURES,
    half_of,
    needs_model,
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
from fedface_flwr.federation.difference import WIRE_TYPES, AnchoredModel, FullModel, GlobalChange, decode, encode
from fedface_flwr.federation.layout import Entry, Kind, Layout, ModelState
from fedface_flwr.training.tasks import BranchResult, TrainOrder, TrainResult

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
TASK = TrainOrder(round=3, rate=0.1, previous=2, oldest=1, download=FullModel("2-ab", MODEL, MOMENTUM))
STEP = np.array([0.5, -1, 2**-20, 0], dtype=np.float32)
STATISTICS = np.array([0.25, 0.75], dtype=np.float32)
RESULT = TrainResult(
    MODEL, {"alpha": BranchResult(4.5, 0.25, 5.0), "beta": BranchResult(3.5, 0.5, 4.0)}, num_images=12, seconds=1.5
)


def sent_train(task=TASK):
    arrays, scalars = write_train("alpha", "first", LAYOUT, task)
    return list(arrays.values()), scalars


def with_momentum(momentum):
    return replace(TASK, download=FullModel("2-ab", MODEL, momentum))


def change_of(dtype, rate=0.05):
    return GlobalChange("2-ab", "1-cd", encode(STEP, dtype), STATISTICS, MODEL.counters, rate)


def sent_change(dtype="float32"):
    return sent_train(replace(TASK, download=change_of(dtype)))


def sent_reply(result=RESULT):
    arrays, images, metrics = write_train_reply(result, None)
    return dict(zip(("model", "counters"), arrays, strict=True)), {"images": images, **metrics}


def sent_change_reply(dtype="float32"):
    moved = ModelState(np.concatenate([MODEL.values[:4] + STEP, STATISTICS]), np.array([8], dtype=np.int64))
    arrays, images, metrics = write_train_reply(replace(RESULT, model=moved), encode(STEP, dtype))
    named = dict(zip(("difference", "statistics", "counters"), arrays, strict=True))
    return named, {"images": images, **metrics}


def sent_evaluate(purpose="test"):
    arrays, scalars = write_evaluate("delta", "second", LAYOUT, purpose, 4, MODEL)
    return list(arrays.values()), scalars


ANCHOR = MODEL.values - np.float32(1)


def sent_anchored(dtype="float32", anchor=None):
    model = AnchoredModel("base-1", encode(STEP, dtype), STATISTICS, MODEL.counters, anchor)
    arrays, scalars = write_evaluate("delta", "second", LAYOUT, "validation", 4, model)
    return list(arrays.values()), scalars


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
    arrays, scalars = sent_train(with_momentum(momentum))
    assert len(arrays) == (2 if momentum is None else 3)
    order = read_train(arrays, scalars, LAYOUT, "float32")
    assert (order.round, order.rate, order.previous, order.oldest) == (3, 0.1, 2, 1)
    assert order.download.version == "2-ab"
    assert_same_model(order.download.model, MODEL)
    if momentum is None:
        assert order.download.momentum is None
    else:
        np.testing.assert_array_equal(order.download.momentum, momentum)


@pytest.mark.parametrize("dtype", WIRE_TYPES)
@pytest.mark.parametrize("rate", [0.05, 0.0])
def test_a_difference_comes_back_in_every_wire_type(dtype, rate):
    arrays, scalars = sent_train(replace(TASK, download=change_of(dtype, rate)))
    assert [array.dtype for array in arrays] == [WIRE_TYPES[dtype], np.float32, np.int64]
    order = read_train(arrays, scalars, LAYOUT, dtype)
    assert (order.round, order.rate, order.previous, order.oldest) == (3, 0.1, 2, 1)
    read, written = order.download, change_of(dtype, rate)
    assert (read.version, read.base, read.rate) == ("2-ab", "1-cd", rate)
    assert (read.difference.dtype, read.difference.scale) == (dtype, written.difference.scale)
    np.testing.assert_array_equal(decode(read.difference), decode(written.difference))
    np.testing.assert_array_equal(read.statistics, STATISTICS)
    np.testing.assert_array_equal(read.counters, MODEL.counters)


@pytest.mark.parametrize("dtype", WIRE_TYPES)
def test_a_reply_by_difference_is_read_from_where_the_round_started(dtype):
    arrays, scalars = sent_change_reply(dtype)
    start = MODEL.values.copy()
    read = read_train_reply(arrays, scalars, ["alpha", "beta"], LAYOUT, MODEL, dtype)
    np.testing.assert_array_equal(read.model.values[:4], start[:4] + decode(encode(STEP, dtype)))
    np.testing.assert_array_equal(read.model.values[4:], STATISTICS)
    assert read.model.counters.tolist() == [8]
    assert (read.branches, read.num_images, read.seconds) == (RESULT.branches, 12, 1.5)
    np.testing.assert_array_equal(MODEL.values, start)


def test_a_trainer_may_ask_for_the_whole_model_and_nothing_looks_like_it():
    arrays, images, metrics = [], 0, NEEDS_MODEL
    scalars = {"images": images, **metrics}
    assert needs_model(dict(arrays), scalars)
    assert not needs_model({"model": MODEL.values}, scalars)
    assert not needs_model({}, scalars | {"loss.alpha": 1.0})
    assert not needs_model({}, scalars | {"needs_model": 2})
    assert not needs_model(*sent_reply())
    assert not needs_model(*sent_change_reply())


def difference_faults(dtype):
    other = "float16" if dtype == "float32" else "float32"
    return [
        ({"difference": encode(STEP, other).values}, f"array difference is {WIRE_TYPES[other].__name__}"),
        ({"difference": encode(STEP[:3], dtype).values}, r"array difference is \w+\[3\], not \w+\[4\]"),
        ({"difference": encode(STEP, dtype).values.reshape(2, 2)}, r"array difference is \w+\[2, 2\]"),
        ({"statistics": STATISTICS[:1]}, r"array statistics is float32\[1\], not float32\[2\]"),
        ({"statistics": STATISTICS.astype(np.float16)}, r"array statistics is float16\[2\]"),
        ({"counters": np.array([7], dtype=np.int32)}, r"array counters is int32\[1\]"),
        ({"scale": 0.0}, "a difference of scale 0.0"),
        ({"scale": -1.0}, "a difference of scale -1.0"),
        ({"scale": math.nan}, "field scale is nan"),
        ({"scale": 1}, "field scale is 1, not a finite float"),
        ({"extra": 1.0}, r"unknown \['extra'\]"),
    ]


@pytest.mark.parametrize("dtype", WIRE_TYPES)
@pytest.mark.parametrize("case", range(len(difference_faults("float32"))))
def test_a_difference_that_is_not_what_the_run_agreed_on_is_refused_both_ways(dtype, case):
    change, complaint = difference_faults(dtype)[case]
    names = ("difference", "statistics", "counters")
    down, scalars_down = sent_change(dtype)
    up, scalars_up = sent_change_reply(dtype)
    new_arrays = {name: value for name, value in change.items() if name in names}
    new_scalars = {name: value for name, value in change.items() if name not in names}
    named = dict(zip(names, down, strict=True)) | new_arrays
    with pytest.raises(ProtocolError, match=complaint):
        read_train(list(named.values()), scalars_down | new_scalars, LAYOUT, dtype)
    with pytest.raises(ProtocolError, match=complaint):
        read_train_reply(up | new_arrays, scalars_up | new_scalars, ["alpha", "beta"], LAYOUT, MODEL, dtype)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"base": 1}, "field base is 1, not a finite str"),
        ({"version": 2.0}, "field version is 2.0, not a finite str"),
        ({"momentum_rate": -0.1}, "a momentum of rate -0.1"),
        ({"momentum_rate": math.inf}, "field momentum_rate is inf"),
    ],
)
def test_a_difference_names_its_two_models_and_a_rate(change, complaint):
    arrays, scalars = sent_change()
    with pytest.raises(ProtocolError, match=complaint):
        read_train(arrays, scalars | change, LAYOUT, "float32")
    for name in ("base", "scale", "momentum_rate", "version"):
        with pytest.raises(ProtocolError, match=rf"fields missing \['{name}'\]|fields missing \[\], fields unknown"):
            read_train(arrays, {key: value for key, value in scalars.items() if key != name}, LAYOUT, "float32")


def test_a_difference_comes_with_statistics_and_counters():
    arrays, scalars = sent_change()
    for wrong in (arrays[:2], [*arrays, MOMENTUM], []):
        with pytest.raises(ProtocolError, match=f"{len(wrong)} arrays instead of difference, statistics, counters"):
            read_train(wrong, scalars, LAYOUT, "float32")


def test_whole_models_and_differences_do_not_pass_for_each_other():
    model, difference = sent_reply(), sent_change_reply()
    with pytest.raises(ProtocolError, match=r"arrays \['model', 'counters'\] instead of difference"):
        read_train_reply(*model, ["alpha", "beta"], LAYOUT, MODEL)
    with pytest.raises(ProtocolError, match=r"arrays \['difference', .* instead of model, counters"):
        read_train_reply(*difference, ["alpha", "beta"], LAYOUT)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", WIRE_TYPES)
def test_a_difference_that_is_not_finite_is_refused(dtype, bad):
    arrays, scalars = sent_change_reply(dtype)
    bits = {"float32": np.float32(bad), "float16": np.float16(bad), "bfloat16": np.uint16(0x7FC0)}[dtype]
    arrays["difference"] = arrays["difference"].copy()
    arrays["difference"][2] = bits
    with pytest.raises(ProtocolError, match="not finite"):
        read_train_reply(arrays, scalars, ["alpha", "beta"], LAYOUT, MODEL, dtype)


def test_train_reply_comes_back_and_holds_nothing_else():
    arrays, scalars = sent_reply()
    assert set(arrays) == {"model", "counters"}
    assert set(scalars) == {"images", "seconds"} | {f"{f}.{s}" for f in BRANCH_FIGURES for s in ("alpha", "beta")}
    read = read_train_reply(arrays, scalars, ["alpha", "beta"], LAYOUT)
    assert (read.branches, read.num_images, read.seconds) == (RESULT.branches, 12, 1.5)
    assert_same_model(read.model, MODEL)


@pytest.mark.parametrize("purpose", ["validation", "test"])
def test_evaluate_message_comes_back(purpose):
    order = read_evaluate(*sent_evaluate(purpose), LAYOUT, "float32")
    assert (order.purpose, order.half, order.number) == (purpose, "second", 4)
    assert_same_model(order.download, MODEL)


@pytest.mark.parametrize("dtype", WIRE_TYPES)
@pytest.mark.parametrize("anchor", [None, ANCHOR])
def test_a_candidate_comes_back_as_a_difference_from_the_anchor(dtype, anchor):
    order = read_evaluate(*sent_anchored(dtype, anchor), LAYOUT, dtype)
    assert (order.purpose, order.number, order.download.base) == ("validation", 4, "base-1")
    assert (order.download.anchor is None) == (anchor is None)
    if anchor is not None:
        np.testing.assert_array_equal(order.download.anchor, anchor)
    expected = np.concatenate([ANCHOR[:4] + decode(encode(STEP, dtype)), STATISTICS])
    assert_same_model(order.download.place(ANCHOR), ModelState(expected, MODEL.counters))


def test_a_candidate_of_other_arrays_or_scalars_is_refused():
    arrays, scalars = sent_anchored(anchor=ANCHOR)
    for count in (1, 2):
        with pytest.raises(ProtocolError, match=f"{count} arrays instead of difference, statistics, counters"):
            read_evaluate(arrays[:count], scalars, LAYOUT, "float32")
    with pytest.raises(ProtocolError, match="5 arrays, of which the fourth is the anchor"):
        read_evaluate([*arrays, ANCHOR], scalars, LAYOUT, "float32")
    with pytest.raises(ProtocolError, match=r"array anchor is float32\[4\], not float32\[6\]"):
        read_evaluate([*arrays[:3], ANCHOR[:4]], scalars, LAYOUT, "float32")
    with pytest.raises(ProtocolError, match="a difference of scale 0"):
        read_evaluate(arrays, scalars | {"scale": 0.0}, LAYOUT, "float32")
    with pytest.raises(ProtocolError, match=r"array difference is float32\[4\], not uint16\[4\]"):
        read_evaluate(arrays, scalars, LAYOUT, "bfloat16")


@pytest.mark.parametrize("names", [SCORE_FIGURES, TEST_FIGURES])
def test_figures_come_back(names):
    figures = {name: index / 8 for index, name in enumerate((*names, "seconds"))}
    assert read_figures(figures, names) == figures


def test_models_of_another_layout_are_refused_in_every_message():
    train, evaluate, request = sent_train(), sent_evaluate(), write_request("alpha", "first", LAYOUT)
    for read in (
        lambda: read_train(*train, OTHER, "float32"),
        lambda: read_evaluate(*evaluate, OTHER, "float32"),
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
        with pytest.raises(ProtocolError, match="instead of model, counters"):
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
        ({"previous": -1, "oldest": -1}, "round 3 after round -1"),
        ({"oldest": 3}, "round 3 after round 2"),
        ({"oldest": -1}, "round 3 after round 2"),
        ({"oldest": 0.0}, "field oldest is 0.0, not a finite int"),
        ({"version": 3}, "field version is 3, not a finite str"),
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
        read_train(arrays, scalars | change, LAYOUT, "float32")


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_train_message_with_another_number_of_arrays_is_refused(count):
    arrays, scalars = sent_train()
    with pytest.raises(ProtocolError, match=f"{count} arrays instead of model, counters and momentum"):
        read_train([*arrays, MOMENTUM][:count], scalars, LAYOUT, "float32")


def test_a_momentum_covers_the_parameters_alone():
    arrays, scalars = sent_train(with_momentum(MODEL.values))
    with pytest.raises(ProtocolError, match=r"array momentum is float32\[6\], not float32\[4\]"):
        read_train(arrays, scalars, LAYOUT, "float32")


@pytest.mark.parametrize("name", sorted(REQUEST))
def test_no_field_of_a_request_may_be_missing(name):
    scalars = write_request("alpha", "first", LAYOUT)
    del scalars[name]
    with pytest.raises(ProtocolError, match=rf"missing \['{name}'\]"):
        read_request(scalars, LAYOUT)


def test_an_evaluate_message_is_for_validation_or_test_of_one_model():
    arrays, scalars = sent_evaluate()
    with pytest.raises(ProtocolError, match="purpose 'train' is neither"):
        read_evaluate(arrays, scalars | {"purpose": "train"}, LAYOUT, "float32")
    for number in (0, -1):
        with pytest.raises(ProtocolError, match=f"number {number}; counted from 1"):
            read_evaluate(arrays, scalars | {"number": number}, LAYOUT, "float32")
    with pytest.raises(ProtocolError, match="half 'both' is neither first nor second"):
        read_evaluate(arrays, scalars | {"half": "both"}, LAYOUT, "float32")
    with pytest.raises(ProtocolError, match="3 arrays"):
        read_evaluate([*arrays, MOMENTUM], scalars, LAYOUT, "float32")


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
    words = set(contract.__doc__.replace(",", " ").replace(";", " ").replace(":", " ").split())
    change = replace(TASK, download=change_of("bfloat16"))
    trains = [*write_train("a", "first", LAYOUT, TASK), *write_train("a", "first", LAYOUT, change)]
    replies = [*sent_reply()[0], *sent_change_reply()[0], *NEEDS_MODEL, "images", "seconds", "scale"]
    fields = {*(name for part in trains for name in part), *replies, *sent_evaluate()[1], *BRANCH_FIGURES}
    assert fields <= words
