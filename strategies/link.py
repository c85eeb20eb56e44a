# SPDX-License-Identifier: Apache-2.0
"""Talking to named parties over Flower's grid, which knows numbered nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from uuid import uuid4

from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from clients.adapter import CONFIG, read_properties, to_records
from clients.contract import QUERY, Scalars
from fedface_flwr.errors import ProtocolError
from strategies.exchange import Exchange

ASK_AGAIN = 60.0
"""Seconds after which a node that has not said for whom it acts is asked once more."""

ROUND_WAITS = 15.0
"""Seconds that a round waits for a node that has come since the last one to say for whom it acts."""

UNANSWERED = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)
"""What the SuperLink says of a question that ended with its node or ClientApp, or was too old when that came back."""


class Link:
    """The federation's parties by name.

    One link may be used by several threads.

    Parameters
    ----------
    grid : Grid
        Flower's.
    roles : mapping of str to str
        Every party that the run needs, with its role.
    poll : float
        Seconds between two looks for replies.
    ttl : float
        Seconds that a message lives.
    lanes : int
        How many replies may be fetched at the same time.
    """

    def __init__(self, grid: Grid, roles: Mapping[str, str], *, poll: float, ttl: float, lanes: int = 1) -> None:
        self._grid, self._roles, self.poll, self._ttl, self.lanes = grid, dict(roles), poll, ttl, lanes
        self._nodes: dict[str, int] = {}
        self._online: set[int] = set()
        self._known: set[int] = set()
        self._asked: dict[str, str] = {}
        self._refused: dict[str, Message] = {}
        self._lock = threading.Lock()

    def discover(self, timeout: float) -> None:
        """Wait until every party has a node that acts for it.

        Raises
        ------
        ProtocolError
            If that takes longer than ``timeout`` seconds, naming who is missing; if a node cannot take part, acts for
            a party that it is not registered as, or in another role, or two nodes act for one party.
        """
        deadline = time.monotonic() + timeout
        while missing := [party for party in self._roles if party not in self._nodes]:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ProtocolError(
                    f"no node acts for {', '.join(missing)} after {timeout:g} s; start it, "
                    "or raise federation.start_timeout"
                )
            names = self._look()
            fresh = [node for node in names if node not in self._known]
            if fresh:
                if faults := self._ask(fresh, names, min(left, ASK_AGAIN)):
                    raise ProtocolError("; ".join(faults))
            else:
                time.sleep(self.poll)

    def refresh(self, timeout: float) -> list[str]:
        """Find out who is there now, as between rounds: parties may have gone, or come back on other nodes.

        Returns
        -------
        list of str
            What is wrong with nodes that have come since; they stay out.
        """
        names = self._look()
        fresh = [node for node in names if node not in self._known]
        return self._ask(fresh, names, timeout)

    def _look(self) -> dict[int, str]:
        """Return the name under which each node that is there was registered; empty without authentication."""
        names = {node.node_id: node.name for node in self._grid.get_nodes()}
        if self._online - set(names):
            # Those that stay out may have been refused for the sake of a node that has gone.
            self._known &= set(self._nodes.values())
        self._online = set(names)
        # A node that has gone is asked again when it is back: it may have been started for another party.
        self._known &= self._online
        return names

    def _ask(self, nodes: list[int], names: Mapping[int, str], timeout: float) -> list[str]:
        """Ask nodes for whom they act, and return what is wrong with those that therefore stay out.

        One that does not answer, for it is still starting, is asked again later.
        """
        if not nodes:
            return []
        content = RecordDict({CONFIG: ConfigRecord()})
        messages = [Message(content, node, f"query.{QUERY}", group_id=QUERY, ttl=self._ttl) for node in nodes]
        asked = {number: m for m in messages if (number := self._push(m))}
        faults = []
        for reply in Exchange(self, timeout, asked):
            if reply.has_error() and reply.error.code in UNANSWERED:
                continue
            # An error may come from the SuperLink itself: only the question tells the node.
            node = asked[reply.metadata.reply_to_message_id].metadata.dst_node_id
            try:
                self._admit(node, names[node], reply)
            except ProtocolError as error:
                faults.append(str(error))
            self._known.add(node)
        return faults

    def _admit(self, node: int, name: str, reply: Message) -> None:
        """Take a node for the parties that it acts for by its answer."""
        if reply.has_error():
            raise ProtocolError(f"node {name or node} cannot take part: {reply.error.reason}")
        for party, role in read_properties(reply.content).items():
            self._accept(node, name, party, role)

    def _accept(self, node: int, name: str, party: str, role: str) -> None:
        if name not in ("", party):
            raise ProtocolError(f"node {node} is registered as {name} and says that it acts for {party}; it stays out")
        if role != self._roles.get(party, role):
            raise ProtocolError(
                f"node {name or node} says that {party} is a {role}, the run has it as {self._roles[party]}; "
                "it stays out: mend its node configuration or the run's data.silos and data.validators"
            )
        other = self._nodes.get(party, node)
        if other != node and other in self._online:
            raise ProtocolError(f"nodes {other} and {node} both act for {party}")
        self._nodes[party] = node

    def message(self, party: str, kind: str, arrays: Mapping[str, Array], scalars: Scalars, group: str) -> Message:
        """Return a message for a party; messages may share ``Array`` objects, which are then serialised once."""
        return Message(to_records(arrays, scalars), self._nodes[party], kind, group_id=group, ttl=self._ttl)

    def push(self, message: Message) -> str:
        """Send a message and return its id; one that cannot be delivered is answered by an error."""
        party = str(message.content.config_records[CONFIG]["party"])
        online = message.metadata.dst_node_id in self._online
        taken = self._push(message) if online else ""
        number = taken or message.metadata.message_id or uuid4().hex
        with self._lock:
            self._asked[number] = party
            if not taken:
                reason = "the SuperLink refused a message" if online else "it is not connected"
                message.metadata.__dict__["_message_id"] = number
                self._refused[number] = Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)
        return number

    def _push(self, message: Message) -> str:
        taken = [number for number in self._grid.push_messages([message]) if number]
        return taken[0] if taken else ""

    def pull(self, ids: Collection[str]) -> list[Message]:
        """Return the replies that have come to the messages of these ids."""
        with self._lock:
            refused = {number: self._refused.pop(number) for number in ids if number in self._refused}
        others = [number for number in ids if number not in refused]
        return [*refused.values(), *(self._grid.pull_messages(others) if others else ())]

    def party_of(self, reply: Message) -> str:
        """Return who answers; the sender's node would not tell, for errors may come from the SuperLink itself."""
        with self._lock:
            return self._asked[reply.metadata.reply_to_message_id]

    def exchange(self, messages: Iterable[Message], timeout: float) -> Exchange:
        """Send messages and return the exchange, which yields the replies as they come."""
        exchange = Exchange(self, timeout)
        for message in messages:
            exchange.add(message)
        return exchange
