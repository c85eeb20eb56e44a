# SPDX-License-Identifier: Apache-2.0
"""A real federation inside the test's process: Flower's grid over our own ClientApp, with places to put faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from clients.adapter import CONFIG
from fedface_flwr.client_app import app
from fedface_flwr.compose import compose_config
from fedface_flwr.config import Config
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies import STRATEGIES
from strategies.round_loop import RoundLoop

Event = dict[str, Any]

TINY = (
    "model.width=2",
    "model.input_size=16",
    "model.embedding=8",
    "data.synthetic.identities=6",
    "data.synthetic.images_per_identity=4",
    "data.synthetic.pairs=20",
    "data.synthetic.pair_identities=20",
    "training.rounds=2",
    "training.steps_per_round=1",
    "training.batch_size=4",
    "fv.mode=sync",
    "fv.every=1",
    "federation.poll=0.01",
    "federation.round_timeout=60",
)

# Flower sets these in the processes that it starts; without them no message can be made.
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

# Torch's random generator is the process's: one message is computed at a time, as in one of Flower's actors.
_COMPUTING = threading.Lock()


class SilenceError(Exception):
    """Raised by a hook: the party never answers this message."""


class PartyGrid(Grid):
    """Nodes that run ``fedface_flwr.client_app`` in threads, one a message, as Flower's simulation does.

    ``before[party]`` is called with each message to the party before it is computed: it may wait, raise (the reply is
    then an error, as Flower makes it) or raise ``SilenceError``. ``after[party]`` is called with message and reply and
    returns the reply to deliver. ``refused`` holds the parties to whom messages are not taken. ``names`` holds the
    registered name of each node that has one. :meth:`disconnect` takes a node away, :meth:`connect` brings one.
    """

    def __init__(
        self, config: Config, nodes: int | None = None, *, node_configs: Sequence[dict[str, Any]] = ()
    ) -> None:
        count = nodes or len(config.parties)
        shares = node_configs or [{"partition-id": i, "num-partitions": count} for i in range(count)]
        self._run_config = {"config": config.to_json(), "overrides": ""}
        self.contexts: dict[int, Context] = {}
        self._next_node = 1000
        for share in shares:
            self.connect(share)
        self.before: dict[str, Callable[[Message], None]] = {}
        self.after: dict[str, Callable[[Message, Message], Message]] = {}
        self.refused: set[str] = set()
        self.names: dict[int, str] = {}
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}
        self._arrived = threading.Condition()
        self._threads: list[threading.Thread] = []

    def connect(self, node_config: dict[str, Any]) -> int:
        """Bring a node with this configuration, and return its number, which no node had before."""
        node, self._next_node = self._next_node, self._next_node + 1
        self.contexts = {**self.contexts, node: Context(1, node, node_config, RecordDict(), self._run_config)}
        return node

    def disconnect(self, node: int) -> dict[str, Any]:
        """Take a node away and return its configuration."""
        gone = self.contexts[node]
        self.contexts = {number: context for number, context in self.contexts.items() if number != node}
        return gone.node_config

    def __enter__(self) -> PartyGrid:
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in self._threads), "a hook still waits; the test must release it"

    def messages(self, kind: str, party: str = "") -> list[Message]:
        """Return what was sent of one message type, to all parties or one, in order."""
        return [m for m in self.sent if m.metadata.message_type == kind and party in ("", party_of(m))]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            if party_of(message) in self.refused:
                ids.append("")
                continue
            self.sent.append(message)
            self._threads.append(threading.Thread(target=self._serve, args=(message,), daemon=True))
            self._threads[-1].start()
            ids.append(message.metadata.message_id)
        return ids

    def _serve(self, message: Message) -> None:
        party = party_of(message)
        try:
            self.before.get(party, lambda _: None)(message)
            with _COMPUTING:
                reply = app(message, self.contexts[message.metadata.dst_node_id])
            reply = self.after.get(party, lambda _, given: given)(message, reply)
        except SilenceError:
            return
        except Exception as error:
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        with self._arrived:
            self._replies[message.metadata.message_id] = reply
            self._arrived.notify_all()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._arrived:
            return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        ids = list(self.push_messages(messages))
        with self._arrived:
            self._arrived.wait_for(lambda: all(i in self._replies for i in ids), timeout)
        return self.pull_messages(ids)

    # What Flower's abstract class has besides, and nothing of ours calls.

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError


def party_of(message: Message) -> str:
    """Return the party that a message is for; a query for a node's parties is for none."""
    return str(message.content.config_records[CONFIG].get("party", ""))


def deployed_node(folder: Path, party: str, role: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a SuperNode that acts for one party, whose things lie in a folder of its own.

    Keys of ``more`` are written with ``_`` for ``-``. The party computes in the process that gets the message.
    """
    own = {name.replace("_", "-"): value for name, value in more.items()}
    policy = folder / party / "policy.toml"
    if not policy.exists():
        # Tests' rounds are over fewer images than a party gives figures over by default.
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text("min_images = 1\n")
    return {"party": party, "role": role, "silo-dir": str(folder / party), "service": False, **own}


def tiny_config(folder: Path, strategy: str, *overrides: str) -> Config:
    """Return the configuration of a run that takes a second; ``folder`` becomes the run's."""
    return compose_config([f"strategy={strategy}", *TINY, *overrides], {"run.dir": str(folder)})


def make_loop(
    config: Config, observe: Callable[[RoundLoop, Event], None] = lambda loop, event: None
) -> tuple[RoundLoop, list[Event]]:
    """Return a run's loop and the list in which its events gather; ``observe`` sees each event as it happens."""
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        observe(loop, event)

    model = FlatModel(build_backbone(config.model, config.seed))
    loop = STRATEGIES[config.strategy.name](config, "first", model.layout, model.state(), emit)
    return loop, events


def run_loop(config: Config, nodes: int | None = None) -> tuple[RoundLoop, list[Event]]:
    """Run a configuration without faults and return its loop and events."""
    loop, events = make_loop(config)
    with PartyGrid(config, nodes) as grid:
        loop.start(grid)
    return loop, events


def hurry(loop: RoundLoop, seconds: float = 0.3) -> None:
    """Make the loop wait for no answer longer than this from now on."""
    loop.config = replace(loop.config, federation=replace(loop.config.federation, round_timeout=seconds))


def of_kind(events: list[Event], kind: str) -> list[Event]:
    """Return the events of one kind, in order."""
    return [event for event in events if event["event"] == kind]
