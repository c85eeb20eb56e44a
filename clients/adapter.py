# SPDX-License-Identifier: Apache-2.0
"""Between Flower's messages and its NumPyClients, with array names kept and without needless copies."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient

from clients.contract import ARRAYS_OF_DIFFERENCE, ARRAYS_OF_MODEL, Arrays, Scalars
from fedface_flwr.errors import ProtocolError

ARRAYS, CONFIG, METRICS, PROPERTIES = "arrays", "config", "metrics", "properties"
REPLY_ARRAYS: dict[int, tuple[str, ...]] = {0: (), 2: ARRAYS_OF_MODEL, 3: ARRAYS_OF_DIFFERENCE}


def to_records(arrays: Mapping[str, Array], scalars: Scalars) -> RecordDict:
    """Return the content of a message to a party."""
    return RecordDict({ARRAYS: ArrayRecord(dict(arrays)), CONFIG: ConfigRecord(cast(Any, scalars))})


class ReplyError(ProtocolError):
    """A party answers that it could not do what it was asked, or the SuperLink answers that it cannot be reached."""


class Serialiser:
    """Turns arrays into Flower's, the same array object only once, so that messages share what they have in common."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[npt.NDArray[Any], Array]] = {}

    def __call__(self, arrays: Arrays) -> dict[str, Array]:
        """Return the arrays by name, serialised."""
        return {name: self._serialise(array) for name, array in arrays.items()}

    def _serialise(self, array: npt.NDArray[Any]) -> Array:
        # The array itself is kept as well: its id is only its own while it lives.
        if id(array) not in self._known:
            self._known[id(array)] = (array, serialise(array))
        return self._known[id(array)][1]


def serialise(array: npt.NDArray[Any]) -> Array:
    """Return what ``Array(array)`` would hold, at one copy of the array's bytes instead of three."""
    contiguous = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(contiguous))
    data = b"".join((header.getvalue(), contiguous.data))
    return Array(dtype=str(array.dtype), shape=array.shape, stype="numpy.ndarray", data=data)


def view(array: Array) -> npt.NDArray[Any]:
    """Return a received array as a read-only view of the message's own bytes, which ``Array.numpy`` would copy.

    Raises
    ------
    ProtocolError
        If the bytes are no plain ``.npy`` content.
    """
    if array.stype != "numpy.ndarray":
        raise ProtocolError(f"message: an array is serialised as {array.stype!r}, not as numpy.ndarray")
    stream = io.BytesIO(array.data[:4096])
    try:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        if dtype.hasobject or (fortran and len(shape) > 1):
            raise ValueError(f"{dtype} in {'column' if fortran else 'row'} order")
        return np.frombuffer(array.data, dtype, count=math.prod(shape), offset=stream.tell()).reshape(shape)
    except Exception as error:
        # NumPy evaluates the header as Python text, and foreign bytes make that fail in more ways than it promises.
        raise ProtocolError(f"message: an array cannot be read ({error})") from error


def num_bytes(records: RecordDict) -> int:
    """Return how many bytes of arrays a message carries."""
    return sum(len(a.data) for record in records.array_records.values() for a in record.values())


def read_reply(reply: Message) -> tuple[Arrays, dict[str, Any]]:
    """Return a reply's arrays, as views, and its scalars.

    Raises
    ------
    ReplyError
        If the reply is an error, with its reason.
    ProtocolError
        If it holds any other record than arrays and metrics.
    """
    if reply.has_error():
        # Ray's reasons are whole traces.
        raise ReplyError(" ".join(str(reply.error.reason).split())[-2000:])
    records = reply.content
    extra = sorted(set(records) - {ARRAYS, METRICS})
    if extra or METRICS not in records.metric_records:
        raise ProtocolError(f"reply: unexpected records {extra}" if extra else "reply: no metrics")
    arrays = records.array_records.get(ARRAYS, ArrayRecord())
    return {name: view(array) for name, array in arrays.items()}, dict(records.metric_records[METRICS])


def call_fit(client: NumPyClient, message: Message) -> Message:
    """Answer a train message by the client's ``fit``."""
    parameters, config = _received(message)
    model, images, metrics = client.fit(parameters, config)
    names = REPLY_ARRAYS[len(model)]
    arrays = {name: serialise(array) for name, array in zip(names, model, strict=True)}
    scalars = MetricRecord(cast(Any, {"images": images, **metrics}))
    return Message(RecordDict({ARRAYS: ArrayRecord(arrays), METRICS: scalars}), reply_to=message)


def call_evaluate(client: NumPyClient, message: Message) -> Message:
    """Answer an evaluate message by the client's ``evaluate``; the reply carries its metrics alone."""
    parameters, config = _received(message)
    _, _, metrics = client.evaluate(parameters, config)
    return Message(RecordDict({METRICS: MetricRecord(cast(Any, metrics))}), reply_to=message)


def call_prepare(samples: int, message: Message) -> Message:
    """Answer a prepare message by the number of images or pairs that the party owns."""
    return Message(RecordDict({METRICS: MetricRecord({"samples": samples})}), reply_to=message)


def properties_reply(message: Message, roles: Mapping[str, str]) -> Message:
    """Answer the query for a node's properties: the parties that it acts for, with the role of each."""
    record = ConfigRecord({"parties": list(roles), "roles": list(roles.values())})
    return Message(RecordDict({PROPERTIES: record}), reply_to=message)


def read_properties(records: RecordDict) -> dict[str, str]:
    """Return the names of the parties that a node acts for, with the role that each declares.

    Raises
    ------
    ProtocolError
        If the reply holds anything else.
    """
    record = records.config_records.get(PROPERTIES, ConfigRecord())
    parties, roles = record.get("parties"), record.get("roles")
    if not (isinstance(parties, list) and isinstance(roles, list) and len(parties) == len(roles)):
        raise ProtocolError("a node's properties are not parties and roles; is it of the same version?")
    return dict(zip(map(str, parties), map(str, roles), strict=True))


def scalars_of(message: Message) -> dict[str, Any]:
    """Return the scalars of a message to a party."""
    return dict(message.content.config_records.get(CONFIG, {}))


def _received(message: Message) -> tuple[list[npt.NDArray[Any]], dict[str, Any]]:
    if extra := sorted(set(message.content) - {ARRAYS, CONFIG}):
        raise ProtocolError(f"message: unexpected records {extra}")
    arrays = message.content.array_records.get(ARRAYS, ArrayRecord())
    return [view(array) for array in arrays.values()], scalars_of(message)
