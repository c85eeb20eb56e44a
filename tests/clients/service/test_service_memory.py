# SPDX-License-Identifier: Apache-2.0
"""Arrays in an anonymous file: what arrives, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.service import memory
from fedface_flwr.errors import ProtocolError

ARRAYS = [np.arange(5, dtype=np.float32), np.arange(7, dtype=np.uint16), np.array([1 << 40, -1])]
GOOD = [{"dtype": "<f4", "shape": [5], "offset": 0}, {"dtype": "<u2", "shape": [7], "offset": 64}]
GOOD = [*GOOD, {"dtype": "<i8", "shape": [2], "offset": 128}]


@contextmanager
def written(arrays: list[Any]) -> Iterator[tuple[int, memory.Places]]:
    file, places = memory.write(arrays)
    try:
        yield file, places
    finally:
        os.close(file)


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:fedface-arrays")


@pytest.mark.parametrize(
    "arrays",
    [
        ARRAYS,
        [np.zeros(0, np.float32), np.ones((2, 3), np.float64)[:, ::2], np.array(3, np.int8)],
        [np.zeros(0, np.float32)],
        [np.array([True, False]), np.array([np.nan, -0.0, 6e-8], np.float16)],
    ],
)
def test_arrays_arrive_bit_for_bit_as_read_only_views(arrays: list[Any]) -> None:
    with written(arrays) as (file, places):
        received = memory.read(file, places)
    assert [a.dtype for a in received] == [a.dtype for a in arrays]
    assert [a.shape for a in received] == [a.shape for a in arrays]
    assert [a.tobytes() for a in received] == [a.tobytes() for a in arrays]
    assert all(not a.flags.writeable for a in received if a.size)


def test_the_memory_is_free_when_the_last_view_is() -> None:
    before = maps()
    with written(ARRAYS) as (file, places):
        received = memory.read(file, places)
    assert maps() == before + 1
    last = received[-1][:1]
    del received
    assert (last[0], maps()) == (1 << 40, before + 1)
    del last
    assert maps() == before


def test_neither_bytes_nor_size_can_change_under_the_receiver() -> None:
    with written(ARRAYS) as (file, _):
        with pytest.raises(PermissionError):
            os.pwrite(file, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(file, 1)


@pytest.mark.parametrize(
    ("which", "change"),
    [
        (0, {"dtype": "|O"}),
        (0, {"dtype": "<U4"}),
        (0, {"dtype": ">f4"}),
        (0, {"dtype": ["<f4"]}),
        (0, {"shape": [6]}),
        (2, {"shape": [200]}),
        (2, {"shape": [1 << 70]}),
        (0, {"shape": [-5]}),
        (0, {"shape": [5.0]}),
        (0, {"shape": 5}),
        (0, {"shape": [1] * 9}),
        (1, {"offset": 0}),
        (1, {"offset": -64}),
        (2, {"offset": 1 << 70}),
        (0, {"more": 1}),
    ],
)
def test_a_description_that_does_not_fit_the_file_is_refused(which: int, change: dict[str, Any]) -> None:
    with written(ARRAYS) as (file, places):
        assert places == GOOD
        places[which] = {**places[which], **change}
        if change == {"shape": [6]}:
            # It still lies within the array's aligned place, where nothing but zeros can be read.
            assert memory.read(file, places)[0].tolist() == [0, 1, 2, 3, 4, 0]
        else:
            with pytest.raises(ProtocolError):
                memory.read(file, places)


@pytest.mark.parametrize("places", [None, "x", {}, [1], [{}], GOOD * 30])
def test_what_is_no_description_is_refused(places: Any) -> None:
    with written(ARRAYS) as (file, _), pytest.raises(ProtocolError):
        memory.read(file, places)


def test_a_file_that_its_sender_could_still_change_is_refused(tmp_path: Path) -> None:
    file = os.memfd_create("open", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 192)
    with pytest.raises(ProtocolError, match="can still change"):
        memory.read(file, GOOD)
    os.close(file)
    path = tmp_path / "plain"
    path.write_bytes(bytes(192))
    with path.open("rb") as plain, pytest.raises(ProtocolError):
        memory.read(plain.fileno(), GOOD)


def test_what_is_not_plain_numbers_is_not_sent() -> None:
    for array in (np.array([object()]), np.array(["a"]), np.zeros(2, "f4,i4"), np.zeros(2, ">f4")):
        with pytest.raises(ProtocolError, match="cannot be handed"):
            memory.write([array])
    with pytest.raises(ProtocolError, match="65 arrays"):
        memory.write([np.zeros(1)] * 65)
