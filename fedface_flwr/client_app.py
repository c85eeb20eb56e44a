# SPDX-License-Identifier: Apache-2.0
"""Flower's entry to a silo: hands each message to the NumPyClient of the party that it is for."""

from __future__ import annotations

from functools import partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.adapter import call_evaluate, call_fit, call_prepare, properties_reply, scalars_of
from clients.contract import PREPARE, QUERY, party_of
from clients.exchange import Answer, Ask, Request
from clients.gate import Gate, check_kind
from clients.node import Node, deployed, parties_of
from clients.trainer import TrainerClient
from clients.validator import ValidatorClient
from fedface_flwr.config import Config
from fedface_flwr.errors import ProtocolError
from fedface_flwr.run_config import config_of_run

LOG = "privacy.jsonl"


class SiloApp(ClientApp):
    """A ClientApp of which no reply, and no exception, comes out but through the party's gate."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        gate = Gate("", None, private_errors="party" in context.node_config)
        try:
            gate = _gate(message, context)
            check_kind(gate.role, message)
            return gate.release(message, super().__call__(message, context))
        except Exception as error:
            return gate.refuse(message, error)


app = SiloApp()


@app.query(QUERY)
def properties(message: Message, context: Context) -> Message:
    """Say which parties this node acts for."""
    parties = parties_of(context.node_config, _config(context))
    return properties_reply(message, {name: node.role for name, node in parties.items()})


@app.query(PREPARE)
def prepare(message: Message, context: Context) -> Message:
    """Open a party's data, so that its faults are known before training starts."""
    return call_prepare(_client(message, context).prepare(scalars_of(message)), message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one round."""
    return call_fit(_client(message, context), message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score or test one model."""
    return call_evaluate(_client(message, context), message)


def _config(context: Context) -> Config:
    run = context.run_config
    if "party" in context.node_config and not run["config"]:
        # Composing would resolve what the server wrote with this machine's files and environment.
        raise ProtocolError("a deployed silo takes part in runs that fedface submits, with their whole configuration")
    return config_of_run(str(run["config"]), str(run["overrides"]), context.run_id)


def _gate(message: Message, context: Context) -> Gate:
    """Return the gate of the party that a message is for; a deployed node has but one, whatever a message says."""
    own = deployed(context.node_config)
    if own is not None:
        return Gate(own.role, own.silo_dir / LOG, private_errors=True, sets=(own.party,))
    if message.metadata.message_type == f"query.{QUERY}":
        return Gate("", None, private_errors=False)
    config = _config(context)
    node = _node(message, context, config)
    return Gate(node.role, node.silo_dir / LOG, private_errors=False, sets=config.sets_of(node.party))


def _node(message: Message, context: Context, config: Config) -> Node:
    party, parties = party_of(scalars_of(message)), parties_of(context.node_config, config)
    if party not in parties:
        raise ProtocolError(f"message for {party!r}, but this node acts for {', '.join(parties)}")
    return parties[party]


def _client(message: Message, context: Context) -> TrainerClient | ValidatorClient:
    config = _config(context)
    node = _node(message, context, config)
    ask = _ask_service(node) if node.service else partial(_ask_here, node)
    client = TrainerClient if node.role == "trainer" else ValidatorClient
    return client(config.to_json(), ask)


def _ask_here(node: Node, request: Request) -> Answer:
    # Imported here, since a deployed node starts a new process for every message, which needs no torch.
    from clients.party import answer

    return answer(request, node)


def _ask_service(node: Node) -> Ask:
    from clients.service.proxy import ask, supernode_pid

    return partial(ask, node=node, follow=supernode_pid())
