# SPDX-License-Identifier: Apache-2.0
"""What the messages between who asks and the silo service say.

=========  ==============================================================================
message    fields, beside arrays
=========  ==============================================================================
ping       kind
its answer pid, busy, party, role
request    kind (prepare, train, evaluate), config, scalars, node (party, role, data), version
answer     scalars
refusal    stale: the service has other code or another policy, and makes room for a new one
error      error (class), text
=========  ==============================================================================
"""

from __future__ import annotations

import math
from typing import Any

from clients.exchange import Answer, Request
from clients.node import Node
from clients.service.memory import Array
from fedface_flwr import errors
from fedface_flwr.errors import FedFaceError, ProtocolError

Fields = dict[str, Any]

KINDS = ("prepare", "train", "evaluate")
PING: Fields = {"kind": "ping"}
STALE: Fields = {"stale": True}


class StaleService(Exception):  # noqa: N818
    """The service has other code, or another policy, than who asks."""


def write_node(node: Node) -> Fields:
    """Return what of a node both sides must agree on."""
    return {"party": node.party, "role": node.role, "data": node.data}


def write_request(request: Request, node: Node, version: str) -> Fields:
    """Return a request's fields; its arrays go along."""
    _check_scalars(request.scalars)
    kind, config, scalars = request.kind, request.config, request.scalars
    return {"kind": kind, "config": config, "scalars": scalars, "node": write_node(node), "version": version}


def read_request(fields: Fields, arrays: list[Array]) -> tuple[Request, Fields, str]:
    """Return a request, the node that it was sent for and the version that the sender runs.

    Raises
    ------
    ProtocolError
        If it is not made as :func:`write_request` makes it.
    """
    if set(fields) != {"kind", "config", "scalars", "node", "version"}:
        raise ProtocolError("request: fields are missing or unknown")
    if fields["kind"] not in KINDS:
        raise ProtocolError(f"request: kind is none of {', '.join(KINDS)}")
    if not isinstance(fields["config"], str) or not isinstance(fields["version"], str):
        raise ProtocolError("request: config and version are no texts")
    if not isinstance(fields["node"], dict):
        raise ProtocolError("request: node is no object")
    _check_scalars(fields["scalars"])
    return Request(fields["kind"], fields["config"], arrays, fields["scalars"]), fields["node"], fields["version"]


def write_answer(answer: Answer) -> Fields:
    """Return an answer's fields; its arrays go along."""
    _check_scalars(answer.scalars)
    return {"scalars": answer.scalars}


def read_answer(fields: Fields, arrays: list[Array]) -> Answer:
    """Return an answer.

    Raises
    ------
    FedFaceError
        The error that the service met, of the class and with the text that it had there.
    StaleService
        If the service has other code or another policy.
    """
    if fields == STALE:
        raise StaleService
    if set(fields) == {"error", "text"}:
        kind = getattr(errors, str(fields["error"]), FedFaceError)
        known = isinstance(kind, type) and issubclass(kind, FedFaceError)
        raise (kind if known else FedFaceError)(str(fields["text"]))
    if set(fields) != {"scalars"}:
        raise ProtocolError("answer of the silo service: fields are missing or unknown")
    _check_scalars(fields["scalars"])
    return Answer(arrays, fields["scalars"])


def write_error(error: Exception) -> Fields:
    """Return what of an error the caller may know: all of one that was written to be read, else the class alone."""
    for kind in type(error).__mro__:
        if issubclass(kind, FedFaceError) and getattr(errors, kind.__name__, None) is kind:
            return {"error": kind.__name__, "text": str(error)}
    name = type(error).__name__
    return {
        "error": "FedFaceError",
        "text": f"the silo service failed with {name}; the silo's service log has the trace",
    }


def _check_scalars(scalars: Any) -> None:
    if not isinstance(scalars, dict) or not all(isinstance(name, str) for name in scalars):
        raise ProtocolError("scalars: no object with names")
    for name, value in scalars.items():
        if type(value) not in (int, float, str):
            raise ProtocolError(f"scalar {name} is a {type(value).__name__}, neither a number nor a text")
        # JSON has no such number, though Python would write it.
        if isinstance(value, float) and not math.isfinite(value):
            raise ProtocolError(f"scalar {name} is {value}, which is no number")
