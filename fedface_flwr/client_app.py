# SPDX-License-Identifier: Apache-2.0
"""Flower's entry to a silo: hands each message to the NumPyClient of the party that it is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from logging import ERROR
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.common.constant import ErrorCode

from clients.adapter import call_evaluate, call_fit, call_prepare, properties_reply, scalars_of
from clients.contract import PREPARE, QUERY, party_of
from clients.trainer import TrainerClient
from clients.validator import ValidatorClient
from fedface_flwr.compose import config_of_run
from fedface_flwr.config import Config
from fedface_flwr.errors import FedFaceError, ProtocolError

app = ClientApp()
Handler = Callable[[Message, Context], Message]


def answering(handler: Handler) -> Handler:
    """Turn an exception into an error reply of one line; the trace stays in the silo's own log."""

    @wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except FedFaceError as error:
            reason = str(error)
        except Exception as error:
            log(ERROR, "unexpected failure", exc_info=error)
            reason = f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    return answer


@app.query(QUERY)
@answering
def properties(message: Message, context: Context) -> Message:
    """Say which parties this node acts for."""
    return properties_reply(message, _parties(context, _config(context)))


@app.query(PREPARE)
@answering
def prepare(message: Message, context: Context) -> Message:
    """Open a party's data, so that its faults are known before training starts."""
    return call_prepare(_client(message, context).prepare(scalars_of(message)), message)


@app.train()
@answering
def train(message: Message, context: Context) -> Message:
    """Train one round."""
    return call_fit(_client(message, context), message)


@app.evaluate()
@answering
def evaluate(message: Message, context: Context) -> Message:
    """Score or test one model."""
    return call_evaluate(_client(message, context), message)


def _config(context: Context) -> Config:
    run = context.run_config
    return config_of_run(str(run["config"]), str(run["overrides"]), context.run_id)


def _parties(context: Context, config: Config) -> tuple[str, ...]:
    """Return the parties of this node: the one it was started for, or its share of a simulation's.

    A simulation may have fewer nodes than the federation has parties, Flower's default being two: they are dealt out.
    """
    node = context.node_config
    if "party" in node:
        return (str(node["party"]),)
    return config.parties[int(node["partition-id"]) :: int(node["num-partitions"])]


def _client(message: Message, context: Context) -> TrainerClient | ValidatorClient:
    config = _config(context)
    party = party_of(scalars_of(message))
    if party not in _parties(context, config):
        raise ProtocolError(f"message for {party!r}, but this node acts for {', '.join(_parties(context, config))}")
    folder = Path(config.run.dir).absolute()
    cache = Path(config.data.cache or folder / "cache")
    if party not in config.trainers:
        return ValidatorClient(config, party, cache)
    # A deployed silo's own folder serves many runs, a simulation's belongs to its run.
    own = context.node_config.get("silo-dir")
    private = Path(str(own), str(context.run_id)) if own else folder / "silos" / party
    return TrainerClient(config, party, private, cache)
