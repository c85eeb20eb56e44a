# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from fedface_flwr.errors import StateError
from fedface_flwr.training.store import SiloStore

STATE = {
    "a.head": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.smoothed_loss": np.array([0.1 + 0.2]),
    "a.steps": np.array([2**40 + 1]),
}


@pytest.fixture
def store(tmp_path: Path) -> SiloStore:
    return SiloStore(tmp_path / "silo")


def test_what_was_saved_comes_back_bit_for_bit(store: SiloStore) -> None:
    store.save(1, STATE, 0)
    loaded = store.load(1)
    assert set(loaded) == set(STATE)
    for name, array in STATE.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)


def test_nothing_is_created_before_the_first_save(store: SiloStore) -> None:
    assert store.rounds() == []
    assert not store.folder.exists()


def test_all_rounds_are_kept_that_the_server_may_come_back_to(store: SiloStore) -> None:
    kept = []
    # Round 3's reply was lost, so that 4 came from 2; then the silo was away until 12; then the server began anew.
    for number, oldest in ((1, 0), (2, 1), (3, 2), (4, 2), (5, 4), (12, 5), (13, 5), (1, 0)):
        store.save(number, STATE, oldest)
        kept.append(store.rounds())
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 12], [5, 12, 13], [1, 5, 12, 13]]


def test_a_repeated_round_replaces_itself_and_the_round_before_stays(store: SiloStore) -> None:
    for number in (1, 2, 3):
        store.save(number, STATE, number - 1)
    store.save(3, {"x": np.ones(1)}, 2)
    assert store.rounds() == [2, 3]
    assert list(store.load(3)) == ["x"]


def test_rounds_are_numbers_not_names(store: SiloStore) -> None:
    store.save(999_999, STATE, 999_998)
    store.save(1_000_000, STATE, 999_999)
    (store.folder / "round-x.safetensors").touch()
    (store.folder / "round-000003.safetensors.old").touch()
    assert store.rounds() == [999_999, 1_000_000]


@pytest.mark.parametrize(("saved", "kept"), [([], "none"), ([1], "1"), ([1, 2, 3], "2, 3")])
def test_a_round_that_is_not_there_is_an_error_that_lists_those_kept(
    store: SiloStore, saved: list[int], kept: str
) -> None:
    for number in saved:
        store.save(number, STATE, number - 1)
    with pytest.raises(StateError, match=rf"silo: no state of round 9 \(kept: {kept}\)"):
        store.load(9)


@pytest.mark.parametrize("keep", [0, 5, -1], ids=["empty", "no header", "last byte"])
def test_a_damaged_file_is_an_error_that_names_it(store: SiloStore, keep: int) -> None:
    store.save(1, STATE, 0)
    path = store.folder / "round-000001.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StateError, match=r"round-000001\.safetensors: cannot be read"):
        store.load(1)


def test_a_save_that_fails_leaves_what_was_there(store: SiloStore) -> None:
    for number in (1, 2):
        store.save(number, STATE, number - 1)
    before = {path.name: path.read_bytes() for path in store.folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        for number in (2, 3):
            with pytest.raises(StateError, match=r"cannot be written .*File too large"):
                store.save(number, {"x": np.zeros(100_000)}, number - 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in store.folder.iterdir()} == before
