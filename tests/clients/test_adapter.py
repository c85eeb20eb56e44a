# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from clients.adapter import (
    ReplyError,
    Serialiser,
    call_evaluate,
    call_fit,
    call_prepare,
    num_bytes,
    properties_reply,
    read_properties,
    read_reply,
    scalars_of,
    serialise,
    to_records,
    view,
)
from fedface_flwr.errors import ProtocolError

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

VALUES = np.arange(1000, dtype=np.float32)
COUNTERS = np.array([3, 4], dtype=np.int64)


def npy(content: bytes) -> Array:
    return Array("float32", (1,), "numpy.ndarray", content)


def saved(array, **options) -> Array:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return npy(stream.getvalue())


def with_header(header: bytes, content: bytes = bytes(16)) -> Array:
    return npy(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content)


@pytest.mark.parametrize("array", [VALUES, COUNTERS, np.zeros((0,), np.float32), np.float32(3.5), np.eye(3)])
def test_a_view_is_the_array_in_the_messages_own_bytes(array):
    received = Array(np.asarray(array))
    seen = view(received)
    np.testing.assert_array_equal(seen, array)
    assert (seen.dtype, seen.shape) == (array.dtype, array.shape)
    assert not seen.flags.writeable
    if array.size:
        assert np.shares_memory(seen, np.frombuffer(received.data, np.uint8))


def test_headers_of_all_versions_are_read():
    for version in ((1, 0), (2, 0), (3, 0)):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, VALUES, version=version)
        np.testing.assert_array_equal(view(npy(stream.getvalue())), VALUES)


@pytest.mark.parametrize(
    "array",
    [
        saved(np.array([{"any": "object"}], dtype=object), allow_pickle=True),
        saved(np.asfortranarray(np.ones((2, 3)))),
        npy(b""),
        npy(b"\x80\x04K\x01."),
        npy(b"\x93NUMPY\x01\x00\x10"),
        npy(saved(VALUES).data[:-1]),
        npy(b"\x93NUMPY\x09\x00" + saved(VALUES).data[8:]),
        with_header(b"("),
        with_header(b"'''"),
        with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"),
        with_header(b"{'descr': '|S0', 'fortran_order': False, 'shape': (4,), }"),
        with_header(b"{'descr': [('a',)], 'fortran_order': False, 'shape': (1,), }"),
        with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }" + b"[" * 3000),
        Array("float32", (1,), "torch.Tensor", saved(VALUES).data),
    ],
)
def test_anything_but_a_plain_array_is_refused(array):
    with pytest.raises(ProtocolError, match="message: an array"):
        view(array)


@given(content=st.binary(max_size=80), cut=st.integers(0, 128), at=st.integers(0, 127))
def test_garbage_never_raises_anything_else(content, cut, at):
    whole = saved(VALUES[:8]).data
    for data in (content, whole[:cut], whole[:at] + content[:4] + whole[at + 4 :], whole[:10] + content + whole[128:]):
        try:
            view(npy(data))
        except ProtocolError:
            continue


@pytest.mark.parametrize("array", [VALUES, COUNTERS, VALUES[::3], VALUES[:0], np.eye(3), VALUES.reshape(10, 100).T])
def test_serialised_bytes_are_flower_s_own(array):
    ours, flower_s = serialise(array), Array(np.ascontiguousarray(array))
    assert (ours.dtype, tuple(ours.shape), ours.stype) == (flower_s.dtype, tuple(flower_s.shape), flower_s.stype)
    assert ours.data == flower_s.data
    np.testing.assert_array_equal(ours.numpy(), array)


def test_one_array_is_serialised_once_and_others_apart():
    once = Serialiser()
    first, second = once({"model": VALUES, "counters": COUNTERS}), once({"model": VALUES, "m": VALUES.copy()})
    assert first["model"] is second["model"]
    assert second["m"] is not second["model"]
    # Temporaries, whose ids Python would give again, must not be taken for each other.
    for number in range(50):
        np.testing.assert_array_equal(view(once({"x": np.full(3, number)})["x"]), number)


def test_bytes_of_a_message_are_those_of_its_arrays():
    records = to_records(Serialiser()({"model": VALUES, "counters": COUNTERS}), {"party": "alpha"})
    assert num_bytes(records) == len(saved(VALUES).data) + len(saved(COUNTERS).data)
    assert num_bytes(RecordDict({"metrics": MetricRecord({"score": 1.0})})) == 0


class Doubling(NumPyClient):
    """Doubles what it gets and tells what it was asked."""

    def fit(self, parameters, config):
        assert all(not array.flags.writeable for array in parameters)
        return [2 * array for array in parameters], 12, {"rate": config["rate"]}

    def evaluate(self, parameters, config):
        return 0.0, 0, {"score": float(parameters[0].sum())}


def message(kind: str = "train") -> Message:
    arrays = Serialiser()({"model": VALUES, "counters": COUNTERS})
    return Message(to_records(arrays, {"party": "alpha", "rate": 0.5}), 7, kind)


def test_a_train_message_reaches_fit_and_its_answer_comes_back_by_name():
    reply = call_fit(Doubling(), message())
    arrays, scalars = read_reply(reply)
    assert list(arrays) == ["model", "counters"]
    np.testing.assert_array_equal(arrays["model"], 2 * VALUES)
    np.testing.assert_array_equal(arrays["counters"], 2 * COUNTERS)
    assert scalars == {"images": 12, "rate": 0.5}
    assert reply.metadata.dst_node_id == 1


@pytest.mark.parametrize("count", [1, 4, 5])
def test_a_client_that_returns_another_number_of_arrays_than_a_reply_has_sends_nothing(count):
    class Leaking(Doubling):
        def fit(self, parameters, config):
            return [VALUES] * count, 12, {}

    with pytest.raises(KeyError):
        call_fit(Leaking(), message())


@pytest.mark.parametrize("names", [(), ("model", "counters"), ("difference", "statistics", "counters")])
def test_the_number_of_arrays_tells_what_they_are(names):
    class Answering(Doubling):
        def fit(self, parameters, config):
            return [np.full(3, number) for number in range(len(names))], 12, {}

    arrays, _ = read_reply(call_fit(Answering(), message()))
    assert tuple(arrays) == names
    assert [int(array[0]) for array in arrays.values()] == list(range(len(names)))


def test_an_evaluate_reply_carries_metrics_alone():
    reply = call_evaluate(Doubling(), message("evaluate"))
    assert list(reply.content) == ["metrics"]
    assert read_reply(reply) == ({}, {"score": VALUES.sum()})


def test_prepare_and_properties_come_back():
    assert read_reply(call_prepare(40, message("query"))) == ({}, {"samples": 40})
    roles = {"alpha": "trainer", "delta": "validator"}
    assert read_properties(properties_reply(message("query"), roles).content) == roles
    assert read_properties(properties_reply(message("query"), {}).content) == {}
    assert scalars_of(message()) == {"party": "alpha", "rate": 0.5}


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ({}, "no metrics"),
        ({"arrays": ArrayRecord()}, "no metrics"),
        ({"metrics": ConfigRecord({"images": 1})}, "no metrics"),
        ({"metrics": MetricRecord(), "head": ArrayRecord()}, r"unexpected records \['head'\]"),
        ({"metrics": MetricRecord(), "config": ConfigRecord()}, r"unexpected records \['config'\]"),
    ],
)
def test_a_reply_with_other_records_is_refused(records, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        read_reply(Message(RecordDict(records), reply_to=message()))


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"parties": ["alpha"]},
        {"parties": ["alpha"], "roles": []},
        {"parties": "alpha", "roles": "trainer"},
        {"parties": ["alpha", "beta"], "roles": ["trainer"]},
    ],
)
def test_properties_of_another_kind_are_refused(record):
    for records in ({"properties": ConfigRecord(record)}, {"other": ConfigRecord({"parties": [], "roles": []})}):
        with pytest.raises(ProtocolError, match="not parties and roles"):
            read_properties(RecordDict(records))


def test_an_error_is_told_apart_from_a_bad_reply_and_has_its_reason():
    with pytest.raises(ReplyError, match=r"^train\.rec: record 4$"):
        read_reply(Message(Error(2, "train.rec: record 4"), reply_to=message()))
