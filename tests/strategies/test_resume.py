# SPDX-License-Identifier: Apache-2.0
"""A run that is interrupted and goes on from its file ends with the bits of one that never was."""

from __future__ import annotations

import resource
import shutil
from functools import lru_cache

import numpy as np
import pytest
from grid import PartyGrid, make_loop, of_kind, tiny_config

from clients import party
from fedface_flwr.errors import StateError
from fedface_flwr.federation.run_state import load_state, save_state
from strategies.checkpoints import FileCheckpoints

ROUNDS = 6
SYNC = (
    f"training.rounds={ROUNDS}",
    "optimizer.milestones=[0.5]",
    "fv.phi=0.3",
    "data.synthetic.pairs=100",
    "seed=2",
    "data.tests=[]",
)
WIRES = {
    "weights": (),
    "differences": ("wire.differences=true", "wire.dtype=bfloat16"),
}


@pytest.fixture(autouse=True)
def _fresh_process():
    party._party.cache_clear()


class PowerCutError(Exception):
    """Ends a run as a crash would."""


def make(folder, wire, norm, observe=lambda loop, event: None, method="fedface", more=()):
    config = tiny_config(folder, method, *SYNC, *WIRES[wire], f"fv.norm={norm}", *more)
    loop, events = make_loop(config, observe)
    loop.checkpoints = FileCheckpoints(folder / "state.safetensors", lambda: {"note": "kept"})
    return loop, events


def run(loop):
    """Run a loop, as a new server with new silo processes."""
    party._party.cache_clear()
    with PartyGrid(loop.config) as grid:
        loop.start(grid)


def resumed(folder, *arguments, **options):
    loop, events = make(folder, *arguments, **options)
    arrays, values = load_state(folder / "state.safetensors")
    assert values["note"] == "kept"
    loop.restore(arrays, values)
    return loop, events


@lru_cache
def uninterrupted(root, wire, norm):
    folder = root / f"{wire}-{norm}"
    loop, events = make(folder, wire, norm)
    run(loop)
    # Or it would tell nothing that w comes back.
    assert any(event["best"] for event in of_kind(events, "validation")[:2])
    return loop, events


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("uninterrupted")


def assert_same_run(one, other):
    expected = other.saved_arrays()
    for name, array in one.saved_arrays().items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    mine, yours = one.saved_values(), other.saved_values()
    for values in (mine, yours):
        # A name that is drawn: the anchor itself was compared above.
        values.get("fv", {}).get("anchor", {}).pop("version", None)
    for name in ("round", "last_round", "loss_ema", "weights", "fv"):
        assert mine.get(name) == yours.get(name), name


def after(kind, number):
    """Return an observer by which the run ends with an event, before its round is saved."""

    def observe(loop, event):
        if event["event"] == kind and event["round"] == number:
            raise PowerCutError

    return observe


class Cutting(FileCheckpoints):
    """Ends the run as soon as a round's state is on the disk."""

    def __init__(self, path, number):
        super().__init__(path, lambda: {"note": "kept"})
        self.number = number

    def save(self, loop):
        super().save(loop)
        if loop.round == self.number:
            self.settle()
            raise PowerCutError


@pytest.mark.parametrize("norm", ["local", "moving"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_interrupted_after_any_round(tmp_path, root, wire, norm, number):
    expected, all_events = uninterrupted(root, wire, norm)
    loop, events = make(tmp_path, wire, norm)
    loop.checkpoints = Cutting(tmp_path / "state.safetensors", number)
    with pytest.raises(PowerCutError):
        run(loop)
    again, later = resumed(tmp_path, wire, norm)
    assert again.round == number
    run(again)
    assert_same_run(again, expected)
    # What both parts say of the rounds is what one says; seconds differ.
    told = [
        [(event["silos"][name]["loss"], event["weights"]) for event in of_kind(rounds, "round") for name in ("beta",)]
        for rounds in (events + later, all_events)
    ]
    assert told[0] == told[1]
    scores = [
        [(event["validation"], event["best"]) for event in of_kind(rounds, "validation")]
        for rounds in (events + later, all_events)
    ]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("kind", ["round", "validation"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_the_server_comes_back_one_round_earlier_than_the_silos_are(tmp_path, root, wire, number, kind):
    """The silos have trained, or trained and scored, a round that the file does not know of."""
    expected, _ = uninterrupted(root, wire, "moving")
    loop, _ = make(tmp_path, wire, "moving", after(kind, number + 1))
    with pytest.raises(PowerCutError):
        run(loop)
    loop.checkpoints.settle()
    again, _ = resumed(tmp_path, wire, "moving")
    assert again.round == number
    run(again)
    assert_same_run(again, expected)


@pytest.mark.parametrize("wire", WIRES)
def test_the_server_comes_back_two_rounds_earlier_when_the_disk_was_behind(tmp_path, root, wire):
    """A round's state is written while the next one trains: silos may be two rounds ahead of what is whole."""
    expected, _ = uninterrupted(root, wire, "local")
    path, old = tmp_path / "state.safetensors", tmp_path / "old.safetensors"

    def observe(loop, event):
        if event["event"] == "round" and event["round"] == 3:
            shutil.copy(path, old)
        if event["event"] == "round" and event["round"] == 4:
            raise PowerCutError

    loop, _ = make(tmp_path, wire, "local", observe)
    with pytest.raises(PowerCutError):
        run(loop)
    loop.checkpoints.settle()
    old.replace(path)
    again, _ = resumed(tmp_path, wire, "local")
    assert again.round == 2
    run(again)
    assert_same_run(again, expected)


@pytest.mark.parametrize("wire", WIRES)
def test_interrupted_again_and_again(tmp_path, root, wire):
    expected, _ = uninterrupted(root, wire, "moving")
    make_next = make
    for number in range(1, ROUNDS):
        loop, _ = make_next(tmp_path, wire, "moving", after("round", number + 1))
        with pytest.raises(PowerCutError):
            run(loop)
        loop.checkpoints.settle()
        make_next = resumed
    again, _ = resumed(tmp_path, wire, "moving")
    assert again.round == ROUNDS - 1
    run(again)
    assert_same_run(again, expected)


@pytest.mark.parametrize(("method", "wire"), [("solo", "weights"), ("central", "weights"), ("fedavg", "differences")])
def test_other_methods_go_on_as_well(tmp_path, method, wire):
    expected, _ = make(tmp_path / "whole", wire, "local", method=method)
    run(expected)
    loop, _ = make(tmp_path / "cut", wire, "local", after("round", 3), method=method)
    with pytest.raises(PowerCutError):
        run(loop)
    loop.checkpoints.settle()
    again, _ = resumed(tmp_path / "cut", wire, "local", method=method)
    run(again)
    assert_same_run(again, expected)


def test_a_finished_run_is_tested_again_and_trains_no_more(tmp_path, root):
    expected, _ = uninterrupted(root, "weights", "local")
    folder = root / "weights-local"
    shutil.copytree(folder, tmp_path / "run")
    again, events = resumed(tmp_path / "run", "weights", "local", more=("data.tests=[delta]",))
    run(again)
    assert [event["event"] for event in events] == ["start", "test"]
    assert_same_run(again, expected)


def test_a_full_disk_is_told_before_the_next_round_is_absorbed_and_the_last_good_state_stays(tmp_path, root):
    expected, _ = uninterrupted(root, "weights", "local")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    whole = []

    class Filling(FileCheckpoints):
        """Fills the disk before the third round is saved, as far as the server is concerned."""

        def save(self, loop):
            self.settle()
            if loop.round < 3:
                return super().save(loop)
            whole.append((tmp_path / "state.safetensors").read_bytes())
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
            try:
                super().save(loop)
                self._writing.exception()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            return None

    loop, events = make(tmp_path, "weights", "local")
    loop.checkpoints = Filling(tmp_path / "state.safetensors", lambda: {"note": "kept"})
    with pytest.raises(StateError, match=r"state\.safetensors: cannot be written .*free some space and resume"):
        run(loop)
    assert len(of_kind(events, "round")) == 3
    assert (tmp_path / "state.safetensors").read_bytes() == whole[0]
    assert sorted(path.name for path in tmp_path.glob("*state*")) == ["state.safetensors"]
    again, _ = resumed(tmp_path, "weights", "local")
    assert again.round == 2
    run(again)
    assert_same_run(again, expected)


def test_the_silos_keep_what_the_file_may_come_back_to_and_no_more(tmp_path):
    kept = []

    def observe(loop, event):
        if event["event"] == "round":
            store = tmp_path / "silos" / "beta" / "run" / "first"
            kept.append(sorted(int(path.stem[-6:]) for path in store.glob("round-*.safetensors")))

    loop, _ = make(tmp_path, "weights", "local", observe)
    run(loop)
    # The state of the round before is on its way to the disk while a round trains: the one before that counts.
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]


@pytest.mark.parametrize("keep", [0, 5, -1, None], ids=["empty", "no header", "last byte", "gone"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, keep):
    path = tmp_path / "state.safetensors"
    save_state(path, {"x": np.arange(3)}, {"round": 1})
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    with pytest.raises(StateError, match=r"state\.safetensors: not a readable state of a run"):
        load_state(path)


@pytest.mark.parametrize(("was", "is_now"), [(b'\\"round\\": 1', b'\\"round\\": 2'), (b"\x07\0\0\0", b"\x08\0\0\0")])
def test_what_still_can_be_read_but_is_not_what_was_written_is_damaged(tmp_path, was, is_now):
    path = tmp_path / "state.safetensors"
    save_state(path, {"x": np.array([7], np.int32)}, {"round": 1})
    content = path.read_bytes()
    assert content.count(was) == 1
    path.write_bytes(content.replace(was, is_now))
    with pytest.raises(StateError, match="is damaged, its content has another digest"):
        load_state(path)


def test_values_come_back_to_the_bit(tmp_path):
    path = tmp_path / "state.safetensors"
    values = {"weights": [0.1 + 0.2, 1 / 3], "generator": np.random.default_rng(5).bit_generator.state, "none": None}
    save_state(path, {"x": np.arange(3, dtype=np.uint16), "empty": np.zeros(0, np.float32)}, values)
    arrays, back = load_state(path)
    assert back == values
    np.testing.assert_array_equal(arrays["x"], np.arange(3))
    assert (arrays["x"].dtype, arrays["empty"].shape) == (np.uint16, (0,))
    # They are changed in place by the rounds that follow.
    arrays["x"][0] = 7
