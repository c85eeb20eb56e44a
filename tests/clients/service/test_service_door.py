# SPDX-License-Identifier: Apache-2.0
"""Who may talk to a silo's service, and what is not a message."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from service_processes import call, eventually, log_of

from clients.node import Node
from clients.service import memory
from clients.service.channel import LONGEST_FRAME, Channel, Parcel, WrongKey
from clients.service.folder import ServiceFolder
from clients.service.messages import PING
from clients.service.proxy import connect, ping
from fedface_flwr.errors import FedFaceError


def be_patient(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))


@contextmanager
def raw(node: Node) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        with ServiceFolder(node.silo_dir).socket_path() as path:
            connected.connect(path)
        be_patient(connected)
        yield connected


@contextmanager
def known(node: Node) -> Iterator[socket.socket]:
    """A connection that has proved its key, and can now say anything."""
    with raw(node) as connected:
        with Channel(socket.socket(fileno=os.dup(connected.fileno())), 30.0) as channel:
            channel.prove(ServiceFolder(node.silo_dir).key(), first=False)
        be_patient(connected)
        yield connected


def frame(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


def closed(connected: socket.socket) -> bool:
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


def request(**changes: object) -> bytes:
    node = {"party": "alpha", "role": "trainer", "data": ""}
    good = {"kind": "train", "config": "", "scalars": {}, "node": node, "version": "", "arrays": []}
    return json.dumps({**good, **changes}).encode()


def test_only_its_owner_can_reach_it(node: Node) -> None:
    node.silo_dir.mkdir(mode=0o755)
    call(node, do="echo")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in node.silo_dir.iterdir()}
    assert stat.S_IMODE(node.silo_dir.stat().st_mode) == 0o700
    assert modes == dict.fromkeys(("service.sock", "service.key", "service.lock", "service.log"), 0o600)
    assert len((node.silo_dir / "service.key").read_bytes()) == 32


def test_without_the_key_nothing_is_answered_and_the_service_goes_on(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    with raw(node) as connected, Channel(socket.socket(fileno=os.dup(connected.fileno())), 30.0) as channel:
        with pytest.raises(WrongKey):
            channel.prove(bytes(32), first=False)
        assert closed(connected)
    with raw(node) as connected:
        connected.sendall(frame(json.dumps({**PING, "arrays": []}).encode()))
        connected.shutdown(socket.SHUT_WR)
        answer = connected.makefile("rb").read()
        assert b"pid" not in answer
    eventually(lambda: log_of(node).count("WrongKey") == 2)
    assert call(node, do="echo").scalars["pid"] == service


def test_a_service_with_another_key_is_not_trusted(node: Node) -> None:
    call(node, do="echo")
    (node.silo_dir / "service.key").write_bytes(bytes(range(32)))
    with pytest.raises(FedFaceError, match="another key"):
        call(node, do="echo")


@pytest.mark.parametrize(("content", "mode"), [(b"short", 0o600), (bytes(32), 0o640)])
def test_a_key_that_is_damaged_or_open_is_refused(node: Node, content: bytes, mode: int) -> None:
    folder = ServiceFolder(node.silo_dir)
    folder.make_private()
    (folder.path / "service.key").write_bytes(content)
    (folder.path / "service.key").chmod(mode)
    with pytest.raises(FedFaceError, match=r"service\.key"):
        folder.make_key()


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"{"),
        frame(b"[" * 100_000),
        frame(b"[]"),
        frame(b"{}"),
        frame(b"\xff\xfe"),
        frame(request(kind="shell")),
        frame(request(kind=["train"])),
        frame(request(config=1)),
        frame(request(scalars={"rate": [1]})),
        frame(request(scalars={"rate": float("nan")})),
        frame(request(more=1)),
        frame(request(node="alpha")),
        frame(request(arrays=[{"dtype": "<f4", "shape": [1], "offset": 0}])),
        frame(request(arrays=[{"dtype": "<f4", "shape": [1], "offset": 0}])) + b"\0",
        struct.pack("!i", LONGEST_FRAME + 1),
        struct.pack("!i", -1) + struct.pack("!Q", 1 << 62),
        struct.pack("!i", 1000) + b"half",
        b"\0\0",
        b"",
    ],
    ids=lambda sent: repr(sent[:60]),
)
def test_what_is_no_message_closes_its_own_connection_only(node: Node, sent: bytes) -> None:
    service = call(node, do="echo").scalars["pid"]
    with known(node) as connected:
        connected.sendall(sent)
        connected.shutdown(socket.SHUT_WR)
        assert closed(connected)
    eventually(lambda: "WARNING a connection" in log_of(node))
    assert call(node, do="echo").scalars["pid"] == service


def test_arrays_that_are_not_sealed_close_the_connection(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    file = os.memfd_create("open")
    os.ftruncate(file, 64)
    with known(node) as connected:
        connected.sendall(frame(request(arrays=[{"dtype": "<f4", "shape": [1], "offset": 0}])))
        socket.send_fds(connected, [b"\0"], [file])
        assert closed(connected)
    os.close(file)
    eventually(lambda: "can still change" in log_of(node))
    assert call(node, do="echo").scalars["pid"] == service


def test_files_that_nobody_asked_for_do_not_pile_up_in_the_service(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    file, places = memory.write([np.zeros(1, np.float32)])
    with known(node) as connected:
        socket.send_fds(connected, [frame(request(arrays=places))], [file] * 8)
        socket.send_fds(connected, [b"\0"], [file] * 8)
        # Its version is none, so the service makes room.
        with Channel(socket.socket(fileno=os.dup(connected.fileno())), 30.0) as channel:
            assert channel.receive()[0] == {"stale": True}
    os.close(file)
    assert call(node, do="echo").scalars["pid"] != service
    files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not any("fedface-arrays" in name for name in files)


def test_callers_that_stall_hold_up_nobody(node: Node) -> None:
    service = call(node, do="echo").scalars["pid"]
    with known(node) as half, raw(node) as silent, known(node) as quiet:
        half.sendall(struct.pack("!i", 1000) + b"half")
        assert call(node, do="echo").scalars["pid"] == service
        assert silent.recv(1)
        # Each of them is given up after a while.
        assert closed(half)
        assert closed(quiet)


def test_a_ping_says_who_serves(node: Node) -> None:
    call(node, do="echo")
    folder = ServiceFolder(node.silo_dir)
    with connect(folder, 30.0) as channel, Parcel(PING) as parcel:
        channel.send(parcel)
        state = channel.receive()[0]
    assert state == {"pid": state["pid"], "busy": False, "party": "alpha", "role": "trainer"}
    assert ping(folder) == state
