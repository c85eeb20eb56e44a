# SPDX-License-Identifier: Apache-2.0
"""The silo service itself: one process that answers its silo's messages one after another.

The main thread computes, since there is one GPU. Every connection is read by a thread of its own, so that a caller
which stalls holds up nobody but itself, and a ping is answered while a round is computed. A further thread ends the
process the moment that it is told to, or that the process it follows is gone: also in the middle of a round, of which
nobody waits for the result and whose GPU the silo's next process may need. Nothing is lost by that, as the silo's
store is written whole or not at all, and a repeated round gives the same bits.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from clients.exchange import Answer, Request
from clients.node import Node
from clients.service.channel import Channel, Parcel, WrongKey
from clients.service.code import version
from clients.service.folder import ServiceFolder
from clients.service.messages import PING, STALE, read_request, write_answer, write_error, write_node
from fedface_flwr.errors import FedFaceError, ProtocolError

Answerer = Callable[[Request, Node], Answer]

MOST_CONNECTIONS = 32
# What a caller begins to say, it says without a pause.
PATIENCE = 10.0
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("fedface-silo")


@dataclass(frozen=True)
class Call:
    """A request and whom to answer; without a request, all that is left is to say that this service is stale."""

    channel: Channel
    request: Request | None


class Host:
    """Answers one silo's messages; its process holds the folder's lock.

    Parameters
    ----------
    folder : ServiceFolder
        Where it is reached.
    node : Node
        Whom it acts for.
    load : callable
        Imports what computes an answer; called when the service can be reached already.
    idle : float
        After so many seconds without a message it ends.
    """

    def __init__(self, folder: ServiceFolder, node: Node, load: Callable[[], Answerer], idle: float) -> None:
        self._folder, self._node, self._load, self._idle = folder, node, load, idle
        self._version, self._key = version(node), folder.make_key()
        self._calls: queue.Queue[Call] = queue.Queue()
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._busy = False

    def serve(self, follow: int | None) -> None:
        """Serve until there is a reason to end.

        Parameters
        ----------
        follow : int or None
            A process with whose end this one ends.
        """
        watched = _open_process(follow)
        wake = _wake_at_signals()
        with self._folder.listen() as listener:
            threading.Thread(target=self._watch, args=(wake, watched), daemon=True).start()
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            log.info("process %d serves %s (%s)", os.getpid(), self._node.party, self._node.role)
            try:
                compute = self._load()
                while (reason := self._answer_next(compute)) is None:
                    pass
            finally:
                self._folder.remove_socket()
            self._end(reason)

    def _answer_next(self, compute: Answerer) -> str | None:
        """Answer one call; return the reason to end, if there is one."""
        try:
            call = self._calls.get(timeout=self._idle)
        except queue.Empty:
            return f"no message for {self._idle:g} s"
        with call.channel:
            if call.request is None:
                self._folder.remove_socket()
                self._send(call.channel, Parcel(STALE))
                return "the app's code or the silo's policy is not what it was at the start"
            if call.channel.is_gone():
                log.info("%s: the caller went away before its turn", call.request.kind)
                return None
            self._busy = True
            parcel, sound = self._answer(compute, call.request)
            self._busy = False
            if not sound:
                self._folder.remove_socket()
            self._send(call.channel, parcel)
            return None if sound else "after an unexpected failure the next message gets a new process"

    def _answer(self, compute: Answerer, request: Request) -> tuple[Parcel, bool]:
        """Return the answer, and whether this process is fit for another.

        After an error that nobody foresaw it is not: CUDA, for one, never recovers from some. The next message gets a
        new process, which starts from the silo's store.
        """
        try:
            answer = compute(request, self._node)
            return Parcel(write_answer(answer), answer.arrays), True
        except FedFaceError as error:
            log.warning("%s: %s: %s", request.kind, type(error).__name__, error)
            return Parcel(write_error(error)), True
        except Exception as error:
            log.exception("%s: unexpected failure", request.kind)
            return Parcel(write_error(error)), False

    def _send(self, channel: Channel, parcel: Parcel) -> None:
        with parcel:
            try:
                channel.send(parcel)
            except OSError as error:
                log.warning("the caller went away, its answer is dropped (%s)", error)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            self._slots.acquire()
            try:
                connected, _ = listener.accept()
            except OSError as error:
                self._slots.release()
                if listener.fileno() < 0:
                    return
                log.error("cannot take a connection (%s)", error)
                # Out of files, most likely: others must come free first.
                threading.Event().wait(1.0)
                continue
            threading.Thread(target=self._read, args=(connected,), daemon=True).start()

    def _read(self, connected: socket.socket) -> None:
        """Read one connection's message; answer a ping, and leave the rest to the main thread."""
        channel = Channel(connected, PATIENCE)
        try:
            channel.prove(self._key, first=True)
            if not self._handle(channel):
                channel.close()
        except EOFError:
            log.warning("a connection ended in the middle of its message")
            channel.close()
        except (WrongKey, ProtocolError, OSError) as error:
            log.warning("a connection is closed: %s: %s", type(error).__name__, error)
            channel.close()
        finally:
            self._slots.release()

    def _handle(self, channel: Channel) -> bool:
        """Return whether the connection is the main thread's now."""
        fields, arrays = channel.receive()
        if fields == PING:
            state = {"pid": os.getpid(), "busy": self._busy, "party": self._node.party, "role": self._node.role}
            self._send(channel, Parcel(state))
            return False
        request, node, wanted = read_request(fields, arrays)
        if node != write_node(self._node):
            error = FedFaceError(
                f"this silo's service was started for {write_node(self._node)}, the message is for {node}; "
                "end it with `fedface-silo stop`"
            )
            log.warning("%s", error)
            self._send(channel, Parcel(write_error(error)))
            return False
        self._calls.put(Call(channel, request if wanted == self._version else None))
        return True

    def _watch(self, wake: int, watched: int | None) -> None:
        """End the process at a signal, or when the one that it follows is gone."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        if watched is not None:
            poll.register(watched, select.POLLIN)
        while True:
            ready = {file for file, _ in poll.poll()}
            if watched in ready:
                self._end("the process that it follows is gone")
            # Other handlers, as those of a data loader, make themselves felt here too.
            for number in os.read(wake, 64):
                if number in ENDING:
                    self._end(f"signal {signal.Signals(number).name}")

    def _end(self, reason: str) -> NoReturn:
        """End the process from whichever thread, waiting for no other."""
        log.info("ends: %s%s", reason, ", in the middle of a message" if self._busy else "")
        self._folder.remove_socket()
        logging.shutdown()
        os._exit(0)


def _open_process(process: int | None) -> int | None:
    if process is None:
        return None
    try:
        return os.pidfd_open(process)
    except OSError as error:
        raise FedFaceError(f"process {process}, which the silo service should follow, is not there") from error


def _wake_at_signals() -> int:
    """Return a file that can be read when a signal has come, even while the main thread is deep in a computation."""
    readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in ENDING:
        signal.signal(number, lambda *_: None)
    return readable
