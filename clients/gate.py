# SPDX-License-Identifier: Apache-2.0
"""The silo's one way out: what a party may send is decided here, for every message, and written down.

A trainer sends a backbone, as large as the one it was sent, and named numbers about its sets; a validator sends named
numbers alone. Whatever else a reply holds, and whoever made it, it stays on the silo.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from logging import ERROR
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode

from clients.adapter import ARRAYS, CONFIG, METRICS, PROPERTIES, read_properties, view
from clients.contract import (
    ARRAYS_OF_DIFFERENCE,
    ARRAYS_OF_MODEL,
    BRANCH_FIGURES,
    PREPARE,
    QUERY,
    SCORE_FIGURES,
    TEST_FIGURES,
)
from fedface_flwr.errors import FedFaceError, ProtocolError, TrainingError

KINDS = {"train": "trainer", "evaluate": "validator", f"query.{QUERY}": "", f"query.{PREPARE}": ""}
"""The messages that a silo answers, and the one role that does."""

_DTYPES = {
    "model": {"float32"},
    "statistics": {"float32"},
    "counters": {"int64"},
    "difference": {"float32", "uint16", "float16"},
}
_HEADER = 128
"""Bytes that a one-dimensional array's description takes beside its numbers."""

_TRAINER = {"images", "seconds", "scale", "needs_model"}
_VALIDATOR = {"seconds", "needs_model", *SCORE_FIGURES, *TEST_FIGURES}

# What these say is about the server's own message, or the step of a round: their texts may leave the silo.
_PUBLIC = (ProtocolError, TrainingError)


@dataclass(frozen=True)
class Gate:
    """The way out of one party.

    Parameters
    ----------
    role : str
        ``trainer`` or ``validator``; empty where a message names no party, which then gets no data.
    log_file : Path or None
        ``privacy.jsonl``: one JSON object for each message out.
    private_errors : bool
        Whether the text of an error stays on the silo; false in a simulation, which has one owner.
    sets : tuple of str
        The training sets that the party owns, whose figures it may send.
    """

    role: str
    log_file: Path | None
    private_errors: bool
    sets: tuple[str, ...] = ()

    def release(self, message: Message, reply: Message) -> Message:
        """Return the reply if it may go, else an error in its place; write down which."""
        if not reply.has_error():
            try:
                check(self.role, self.sets, message, reply)
            except ProtocolError as error:
                reply = error_reply(message, str(error))
        return self._written(message, reply)

    def refuse(self, message: Message, error: Exception) -> Message:
        """Return the reply that tells the server of a failure, without telling it of the silo's data."""
        reference = secrets.token_hex(4)
        known = isinstance(error, FedFaceError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        log(ERROR, "[%s] %s", reference, text, exc_info=None if known else error)
        if self.private_errors and not isinstance(error, _PUBLIC):
            text = f"{type(error).__name__}; the silo's own log has the reason under {reference}"
        return self._written(message, error_reply(message, text))

    def _written(self, message: Message, reply: Message) -> Message:
        if self.log_file is None:
            return reply
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_file, "a", encoding="utf-8", opener=_private) as file:
                file.write(json.dumps(_record(message, reply)) + "\n")
        except OSError as error:
            # What is not written down does not go out.
            log(ERROR, "%s: cannot be written (%s)", self.log_file, error)
            return error_reply(message, "the silo cannot write its privacy log, and sends nothing until it can")
        return reply


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def error_reply(message: Message, reason: str) -> Message:
    """Return an error as Flower carries it."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def check_kind(role: str, message: Message) -> None:
    """Find out whether a party of this role answers this kind of message.

    Raises
    ------
    ProtocolError
        If it does not.
    """
    kind = message.metadata.message_type
    if kind not in KINDS:
        raise ProtocolError(f"a message of kind {kind!r}: a silo answers {', '.join(KINDS)}, and nothing else")
    if role and KINDS[kind] not in ("", role):
        raise ProtocolError(f"a {role} does not answer {kind!r}")


def check(role: str, sets: Collection[str], message: Message, reply: Message) -> None:
    """Find out whether a reply may leave a party of this role, which owns these training sets.

    Raises
    ------
    ProtocolError
        If it may not, with the reason.
    """
    check_kind(role, message)
    kind, content = message.metadata.message_type, reply.content
    if kind == f"query.{QUERY}":
        _only(content, {PROPERTIES})
        return _check_properties(content)
    if not role:
        raise ProtocolError("a message that is for no party of this silo")
    if kind == f"query.{PREPARE}":
        _only(content, {METRICS})
        return _check_scalars(content, {"samples"})
    _only(content, {METRICS, ARRAYS} if role == "trainer" else {METRICS})
    figures = {f"{figure}.{name}" for name in sets for figure in BRANCH_FIGURES}
    _check_scalars(content, _TRAINER | figures if role == "trainer" else _VALIDATOR)
    _check_arrays(dict(content.array_records.get(ARRAYS, {})), dict(message.content.array_records.get(ARRAYS, {})))


def _only(content: RecordDict, names: set[str]) -> None:
    kinds = {ARRAYS: ArrayRecord, METRICS: MetricRecord, PROPERTIES: ConfigRecord}
    if any(name not in names or not isinstance(record, kinds[name]) for name, record in content.items()):
        raise ProtocolError(f"a reply with records other than {', '.join(sorted(names))}, which do not leave a silo")


def _check_properties(content: RecordDict) -> None:
    roles = read_properties(content).values()
    if len(content.config_records[PROPERTIES]) != 2 or not set(roles) <= {"trainer", "validator"}:
        raise ProtocolError("a reply with properties that do not leave a silo")


def _check_scalars(content: RecordDict, names: Collection[str]) -> None:
    for name, value in content.metric_records.get(METRICS, MetricRecord()).items():
        if name not in names or isinstance(value, list):
            raise ProtocolError("a reply with a figure that does not leave a silo")


def _check_arrays(out: Mapping[str, Array], received: Mapping[str, Array]) -> None:
    """Let out a backbone of the size that came in, or nothing."""
    if tuple(out) not in ((), ARRAYS_OF_MODEL, ARRAYS_OF_DIFFERENCE):
        raise ProtocolError("a reply with arrays other than a backbone's, which do not leave a silo")
    for name, array in out.items():
        held = view(array)
        # What an array says of itself is not yet what its bytes hold.
        honest = (str(held.dtype), held.shape) == (array.dtype, tuple(array.shape))
        spare = len(array.data) - held.nbytes
        if array.dtype not in _DTYPES[name] or len(array.shape) != 1 or not honest or spare > _HEADER:
            raise ProtocolError(f"a reply whose {name} is no such array as leaves a silo")
    if out and _sizes(out) != _sizes(received):
        raise ProtocolError("a reply whose backbone is not of the size of the one received")


def _sizes(arrays: Mapping[str, Array]) -> tuple[int, int]:
    values = sum(arrays[name].shape[0] for name in ("model", "difference", "statistics") if name in arrays)
    return values, arrays["counters"].shape[0] if "counters" in arrays else -1


def _record(message: Message, reply: Message) -> dict[str, Any]:
    """Return the line of the privacy log: what went out, and what asked for it."""
    config = message.content.config_records.get(CONFIG, ConfigRecord()) if message.has_content() else ConfigRecord()
    number = config.get("round", config.get("number", 0))
    record: dict[str, Any] = {
        "time": round(time.time(), 3),
        "run": message.metadata.run_id,
        "kind": message.metadata.message_type[:64],
        "round": number if type(number) is int else 0,
    }
    if reply.has_error():
        return {**record, "error": reply.error.reason}
    arrays = [
        {"name": name, "dtype": a.dtype, "shape": list(a.shape), "bytes": len(a.data)}
        for arrays in reply.content.array_records.values()
        for name, a in arrays.items()
    ]
    scalars = {name: value for m in reply.content.metric_records.values() for name, value in m.items()}
    properties = {name: value for c in reply.content.config_records.values() for name, value in c.items()}
    return {**record, "arrays": arrays, "scalars": scalars, **({"properties": properties} if properties else {})}
