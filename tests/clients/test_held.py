# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import resource

import numpy as np
import pytest

from clients.held import HeldModel
from fedface_flwr.errors import StateError
from fedface_flwr.federation.difference import FullModel, GlobalChange, decode, encode, momentum_of
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.training.store import SiloStore

PARAMETERS = 5


class Server:
    """Moves a model by random steps, and says how both by difference and whole."""

    def __init__(self, dtype="bfloat16", rate=0.5):
        self._draw, self._dtype, self._rate = np.random.default_rng(1), dtype, rate
        self.number = 0
        self.model = ModelState(self._draw.normal(size=7).astype(np.float32), np.array([0]))
        self.momentum = None

    def whole(self):
        return FullModel(f"v{self.number}", ModelState(*self.copies()), self.momentum)

    def copies(self):
        return self.model.values.copy(), self.model.counters.copy()

    def move(self):
        step = encode(self._draw.normal(size=PARAMETERS).astype(np.float32), self._dtype)
        self.number += 1
        self.model.values[:PARAMETERS] += decode(step)
        self.model.values[PARAMETERS:] = self._draw.normal(size=2)
        self.model.counters[:] = self.number
        self.momentum = momentum_of(decode(step), self._rate) if self._rate else None
        values, counters = self.copies()
        return GlobalChange(f"v{self.number}", f"v{self.number - 1}", step, values[PARAMETERS:], counters, self._rate)


@pytest.fixture
def store(tmp_path):
    return SiloStore(tmp_path / "silo")


def assert_holds(received, server):
    model, momentum = received
    np.testing.assert_array_equal(model.values, server.model.values)
    np.testing.assert_array_equal(model.counters, server.model.counters)
    if server.momentum is None:
        assert momentum is None
    else:
        np.testing.assert_array_equal(momentum, server.momentum)


@pytest.mark.parametrize("rate", [0.5, 0.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_whole_model_and_then_differences_make_the_server_s_bits(store, dtype, rate):
    held, server = HeldModel(store), Server(dtype, rate)
    assert_holds(held.receive(server.whole()), server)
    for _ in range(4):
        assert_holds(held.receive(server.move()), server)


def test_a_whole_model_with_a_momentum_comes_as_it_is_and_is_kept_apart_from_the_message(store):
    held, server = HeldModel(store), Server()
    server.move()
    sent = server.whole()
    assert_holds(held.receive(sent), server)
    sent.model.values[:] = 0
    assert_holds(held.receive(server.move()), server)


def test_a_difference_to_a_base_that_is_not_held_asks_for_the_whole(store):
    held, server = HeldModel(store), Server()
    assert held.receive(server.move()) is None
    held.receive(server.whole())
    lost = server.move()
    assert held.receive(server.move()) is None
    # Nothing has become of what is held.
    assert held.receive(lost) is not None
    assert_holds(held.receive(server.whole()), server)
    assert_holds(held.receive(server.move()), server)


def test_a_repeated_message_gives_the_same_and_does_not_move_twice(store):
    held, server = HeldModel(store), Server()
    held.receive(server.whole())
    change = server.move()
    for _ in range(3):
        assert_holds(held.receive(change), server)
    held.settle()
    assert_holds(HeldModel(store).receive(change), server)


def test_a_new_process_goes_on_from_the_store(store):
    server = Server()
    first = HeldModel(store)
    first.receive(server.whole())
    first.settle()
    for _ in range(3):
        held = HeldModel(store)
        assert_holds(held.receive(server.move()), server)
        held.settle()
    assert [path.name for path in store.folder.iterdir()] == ["global.safetensors"]


@pytest.mark.parametrize("keep", [0, 5, -1, None], ids=["empty", "no header", "last byte", "gone"])
def test_a_damaged_copy_is_as_good_as_none(store, keep):
    server = Server()
    first = HeldModel(store)
    first.receive(server.whole())
    first.settle()
    (path,) = store.folder.iterdir()
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    held = HeldModel(store)
    assert held.receive(server.move()) is None
    assert_holds(held.receive(server.whole()), server)


def test_a_full_disk_is_told_and_memory_goes_on(store):
    held, server = HeldModel(store), Server()
    held.receive(server.whole())
    held.settle()
    before = store.load_global("v0")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        held.receive(server.move())
        with pytest.raises(StateError, match=r"global\.safetensors: cannot be written .*free some space"):
            held.settle()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    np.testing.assert_array_equal(store.load_global("v0").values, before.values)
    assert_holds(held.receive(server.move()), server)
    held.settle()
    assert_holds((store.load_global("v2"), server.momentum), server)
