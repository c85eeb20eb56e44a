# SPDX-License-Identifier: Apache-2.0
"""One connection between who asks and the silo service: mutual proof of the key, then bounded JSON and shared arrays.

It is a :class:`multiprocessing.connection.Connection` of which the pickles are never used.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from types import TracebackType
from typing import Any

from clients.service import memory
from fedface_flwr.errors import ProtocolError

# A run's whole configuration as JSON has some 100 KB.
LONGEST_FRAME = 16 << 20
ARRAYS = "arrays"


class WrongKey(Exception):  # noqa: N818
    """The other side does not hold the silo's key."""


class Parcel:
    """A message that is ready to be sent: everything that can be wrong with it was found when it was packed."""

    def __init__(self, fields: Mapping[str, Any], arrays: Sequence[memory.Array] = ()) -> None:
        self.file: int | None = None
        places: memory.Places = []
        if arrays:
            self.file, places = memory.write(arrays)
        try:
            self.frame = json.dumps({**fields, ARRAYS: places}).encode()
            if len(self.frame) > LONGEST_FRAME:
                raise ProtocolError(f"a message of {len(self.frame)} bytes beside its arrays: {LONGEST_FRAME} may be")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the arrays."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def __enter__(self) -> Parcel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Channel:
    """One connection; it takes over the socket.

    Parameters
    ----------
    connected : socket
        A Unix socket.
    patience : float
        Seconds that one read or write may take; how long an answer may take is not limited, see :meth:`wait`.

    Notes
    -----
    Every method raises ``OSError`` or ``EOFError`` when the other side goes away, and of these ``BlockingIOError`` when
    it stalls in the middle of a message.
    """

    def __init__(self, connected: socket.socket, patience: float) -> None:
        self._socket = connected
        # Whatever the process has chosen for its sockets: the limits are the kernel's, for it knows no others.
        connected.setblocking(True)
        wait = struct.pack("ll", int(patience), 0)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        self._connection: Connection[Any, Any] = Connection(os.dup(connected.fileno()))

    def connect(self, path: str) -> None:
        """Connect to who listens there."""
        self._socket.connect(path)

    def prove(self, key: bytes, first: bool) -> None:
        """Prove to one another that both hold the key; one side challenges first.

        Raises
        ------
        WrongKey
            If the other side does not hold it, or does not play by the rules.
        """
        steps = (deliver_challenge, answer_challenge) if first else (answer_challenge, deliver_challenge)
        try:
            for step in steps:
                step(self._connection, key)
        except (AuthenticationError, AssertionError, ValueError) as error:
            raise WrongKey(str(error)) from error

    def send(self, parcel: Parcel) -> None:
        """Send a message."""
        self._connection.send_bytes(parcel.frame)
        if parcel.file is not None:
            socket.send_fds(self._socket, [b"\0"], [parcel.file])

    def wait(self) -> None:
        """Wait for the other side's next message, or its end, for however long."""
        self._connection.poll(None)

    def is_gone(self) -> bool:
        """Return whether the other side, which has nothing more to say, has gone away."""
        return self._connection.poll(0)

    def receive(self) -> tuple[dict[str, Any], list[memory.Array]]:
        """Return the next message's fields, and its arrays as read-only views.

        Raises
        ------
        ProtocolError
            If it is no message.
        """
        frame = self._connection.recv_bytes(LONGEST_FRAME)
        try:
            fields = json.loads(frame)
        except (ValueError, RecursionError) as error:
            raise ProtocolError("message: not JSON") from error
        if not isinstance(fields, dict) or ARRAYS not in fields:
            raise ProtocolError("message: not an object with arrays")
        places = fields.pop(ARRAYS)
        if not places:
            return fields, []
        with self._received_file() as file:
            return fields, memory.read(file, places)

    @contextmanager
    def _received_file(self) -> Iterator[int]:
        mark, files, _, _ = socket.recv_fds(self._socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            if not mark:
                raise EOFError
            if len(files) != 1:
                raise ProtocolError("message: its arrays are missing")
            yield files[0]
        finally:
            for file in files:
                os.close(file)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
        self._socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
