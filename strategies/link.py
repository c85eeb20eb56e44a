# SPDX-License-Identifier: Apache-2.0
"""Talking to named parties over Flower's grid, which knows numbered nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from clients.adapter import CONFIG, read_properties, to_records
from clients.contract import QUERY, Scalars
from fedface_flwr.errors import ProtocolError

ASK_AGAIN = 60.0
"""Seconds after which a node that has not said for whom it acts is asked once more."""


class Link:
    """The federation's parties by name.

    One link may be used by several threads.

    Parameters
    ----------
    grid : Grid
        Flower's.
    parties : iterable of str
        Every party that the run needs.
    poll : float
        Seconds between two looks for replies.
    ttl : float
        Seconds that a message lives.
    """

    def __init__(self, grid: Grid, parties: Iterable[str], *, poll: float, ttl: float) -> None:
        self._grid, self._parties, self._poll, self._ttl = grid, tuple(parties), poll, ttl
        self._nodes: dict[str, int] = {}
        self._asked: dict[str, str] = {}
        self._refused: dict[str, Message] = {}
        self._lock = threading.Lock()

    def discover(self, timeout: float) -> None:
        """Wait until every party has a node that acts for it.

        Raises
        ------
        ProtocolError
            If that takes longer than ``timeout`` seconds, naming who is missing, or two nodes claim one party.
        """
        deadline = time.monotonic() + timeout
        known: set[int] = set()
        while missing := [party for party in self._parties if party not in self._nodes]:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ProtocolError(
                    f"no node acts for {', '.join(missing)} after {timeout:g} s; start it, "
                    "or raise federation.start_timeout"
                )
            fresh = [node for node in self._grid.get_node_ids() if node not in known]
            if fresh:
                known |= self._ask(fresh, min(left, ASK_AGAIN))
            else:
                time.sleep(self._poll)

    def _ask(self, nodes: list[int], timeout: float) -> set[int]:
        """Ask nodes for whom they act; return those that answered, for one that is still starting is asked again."""
        answered = set()
        content = RecordDict({CONFIG: ConfigRecord()})
        queries = [Message(content, node, f"query.{QUERY}", group_id=QUERY, ttl=self._ttl) for node in nodes]
        for reply in self._grid.send_and_receive(queries, timeout=timeout):
            if reply.has_error():
                raise ProtocolError(f"node {reply.metadata.src_node_id} cannot take part: {reply.error.reason}")
            answered.add(reply.metadata.src_node_id)
            for party in read_properties(reply.content):
                node = self._nodes.setdefault(party, reply.metadata.src_node_id)
                if node != reply.metadata.src_node_id:
                    raise ProtocolError(f"nodes {node} and {reply.metadata.src_node_id} both act for {party}")
        return answered

    def message(self, party: str, kind: str, arrays: Mapping[str, Array], scalars: Scalars, group: str) -> Message:
        """Return a message for a party; messages may share ``Array`` objects, which are then serialised once."""
        return Message(to_records(arrays, scalars), self._nodes[party], kind, group_id=group, ttl=self._ttl)

    def push(self, message: Message) -> str:
        """Send a message and return its id; one that the SuperLink does not take is answered by an error."""
        party = str(message.content.config_records[CONFIG]["party"])
        taken = [number for number in self._grid.push_messages([message]) if number]
        number = message.metadata.message_id
        with self._lock:
            self._asked[number] = party
            if not taken:
                reason = "the SuperLink refused a message; is the party's node still connected?"
                self._refused[number] = Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)
        return number

    def pull(self, ids: Collection[str]) -> list[Message]:
        """Return the replies that have come to the messages of these ids."""
        with self._lock:
            refused = {number: self._refused.pop(number) for number in ids if number in self._refused}
        return [*refused.values(), *self._grid.pull_messages([number for number in ids if number not in refused])]

    def party_of(self, reply: Message) -> str:
        """Return who answers; the sender's node would not tell, for errors may come from the SuperLink itself."""
        with self._lock:
            return self._asked[reply.metadata.reply_to_message_id]

    def exchange(self, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
        """Send messages and yield the replies as they come, until all have come or ``timeout`` seconds have passed."""
        waiting = {self.push(message) for message in messages}
        deadline = time.monotonic() + timeout
        while waiting and time.monotonic() < deadline:
            replies = self.pull(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
            # Popped, so that a reply is freed as soon as its reader lets go of it.
            while replies:
                yield replies.pop(0)
            if waiting:
                time.sleep(self._poll)
