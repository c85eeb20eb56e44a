# SPDX-License-Identifier: Apache-2.0
"""Messages that are out, and their replies as they come."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from flwr.app import Message

if TYPE_CHECKING:
    from strategies.link import Link


class Exchange:
    """Messages that are out and their replies, until all have come or the time is over; more may be sent meanwhile.

    A reply is announced before it is uploaded, and Flower's grid fetches those that are announced one after another,
    waiting for each. So messages are dealt out to lanes, each with a thread that asks for its own: an upload that is
    slow, or never ends, holds up no other lane.

    Parameters
    ----------
    link : Link
        Over which they go.
    timeout : float
        Seconds from now, after which no reply is waited for.
    waiting : iterable of str
        Ids of messages that are out already.
    stop : threading.Event, optional
        Ends it early.
    """

    def __init__(
        self, link: Link, timeout: float, waiting: Iterable[str] = (), stop: threading.Event | None = None
    ) -> None:
        self._link, self._deadline, self._stop = link, time.monotonic() + timeout, stop or threading.Event()
        self._lanes: list[set[str]] = [set() for _ in range(link.lanes)]
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._come: queue.SimpleQueue[Message | BaseException] = queue.SimpleQueue()
        self._over = threading.Event()
        for number in waiting:
            self._wait_for(number)

    def add(self, message: Message) -> str:
        """Send a message and return its id."""
        number = self._link.push(message)
        self._wait_for(number)
        return number

    def _wait_for(self, number: str) -> None:
        with self._lock:
            self._waiting.add(number)
            min(self._lanes, key=len).add(number)

    def __iter__(self) -> Iterator[Message]:
        for lane in self._lanes:
            threading.Thread(target=self._fetch, args=(lane,), name="replies", daemon=True).start()
        try:
            while self._waiting and (reply := self._next()):
                # No name holds it here, so that it is freed as soon as its reader lets go of it.
                yield reply.pop()
        finally:
            self._over.set()

    def _next(self) -> list[Message]:
        """Return the next reply alone, or none if the time is over or somebody has said stop."""
        while not self._stop.is_set():
            left = self._deadline - time.monotonic()
            try:
                come = self._come.get(timeout=max(min(left, self._link.poll), 0))
            except queue.Empty:
                if left <= 0:
                    break
                continue
            if isinstance(come, BaseException):
                raise come
            self._waiting.discard(come.metadata.reply_to_message_id)
            return [come]
        return []

    def _fetch(self, lane: set[str]) -> None:
        """Fetch a lane's replies until the exchange is over; what comes later than that is dropped."""
        try:
            while not self._over.is_set():
                with self._lock:
                    numbers = list(lane)
                replies = self._link.pull(numbers) if numbers else []
                with self._lock:
                    lane -= {reply.metadata.reply_to_message_id for reply in replies}
                while replies:
                    self._come.put(replies.pop(0))
                self._over.wait(self._link.poll)
        except BaseException as error:
            # Raised again by whoever reads the replies.
            self._come.put(error)
