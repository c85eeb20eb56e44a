# SPDX-License-Identifier: Apache-2.0
"""Candidates as differences from a model that validators hold: who is sent what, and that the bits stay."""

from __future__ import annotations

import numpy as np
import pytest
from grid import PartyGrid, make_loop, of_kind, run_loop, tiny_config

from clients import party
from clients.adapter import view
from fedface_flwr.federation.difference import encode
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.training.store import SiloStore
from strategies import anchor as anchoring
from strategies.anchor import Anchor

WITH, WITHOUT = ("difference", "statistics", "counters", "anchor"), ("difference", "statistics", "counters")


@pytest.fixture(autouse=True)
def _fresh_process():
    party._party.cache_clear()


def anchored(folder, *overrides, dtype="bfloat16"):
    wire = ("wire.differences=true", f"wire.dtype={dtype}", "data.tests=[]")
    return tiny_config(folder, "fedface", *wire, "fv.candidates=3", *overrides)


def kinds(grid, validator):
    return [tuple(message.content.array_records["arrays"]) for message in grid.messages("evaluate", validator)]


def run(config, on_event=None, after=None):
    loop, events = make_loop(config, on_event) if on_event else make_loop(config)
    with PartyGrid(config) as grid:
        grid.after.update(after or {})
        loop.start(grid)
    return loop, events, grid


def test_the_anchor_travels_once_and_all_candidates_as_differences(tmp_path):
    _, events, grid = run(anchored(tmp_path, "training.rounds=3", "federation.depth=3"))
    for validator in ("delta", "epsilon"):
        assert kinds(grid, validator) == [WITH] + [WITHOUT] * 8
    bytes_down = [event["bytes_down"] for event in of_kind(events, "validation")]
    assert bytes_down[0] > bytes_down[1] == bytes_down[2]


def test_the_anchor_is_replaced_after_so_many_validation_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(anchoring, "ANCHORED", 2)
    _, _, grid = run(anchored(tmp_path, "training.rounds=5"))
    assert kinds(grid, "delta") == ([WITH] + [WITHOUT] * 5) * 2 + [WITH, WITHOUT, WITHOUT]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("lost", ["process", "everything"])
def test_a_validator_that_lost_the_anchor_gets_it_again_and_the_final_bits_stay(tmp_path, lost, depth):
    options = ("training.rounds=4", f"federation.depth={depth}")
    undisturbed, events = run_loop(anchored(tmp_path / "undisturbed", *options))

    def lose(loop, event):
        if event["event"] == "validation" and event["validation"] == 2:
            party._party.cache_clear()
            if lost == "everything":
                (tmp_path / "lost" / "silos" / "delta" / "run" / "first" / "global.safetensors").unlink()

    loop, others, grid = run(anchored(tmp_path / "lost", *options), lose)
    again = kinds(grid, "delta").count(WITH)
    assert again == (2 if lost == "everything" else 1)
    assert kinds(grid, "epsilon").count(WITH) == 1
    assert of_kind(others, "warning") == []
    scores = [[event["scores"] for event in of_kind(part, "validation")] for part in (events, others)]
    np.testing.assert_equal(*scores)
    assert loop.weights_by_name == undisturbed.weights_by_name
    np.testing.assert_array_equal(loop.models["global"].values, undisturbed.models["global"].values)


def test_a_validator_that_asks_for_the_anchor_again_and_again_is_left_out(tmp_path):
    def forget(message, reply):
        if message.metadata.message_type == "evaluate":
            metrics = reply.content.metric_records["metrics"]
            metrics.clear()
            metrics["needs_model"] = 1
        return reply

    _, events, grid = run(anchored(tmp_path, "training.rounds=2"), after={"delta": forget})
    assert [list(event["scores"]) for event in of_kind(events, "validation")] == [["epsilon"]] * 2
    assert all("goes on without delta" in event["message"] for event in of_kind(events, "warning"))
    # Once brought along in each round, never asked for again in it.
    assert kinds(grid, "delta") == [WITH, WITHOUT, WITH]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_a_validator_judges_is_the_average_to_the_rounding_of_its_distance(dtype):
    generator = np.random.default_rng(0)
    first = generator.normal(size=(3, 20)).astype(np.float32)
    counters = np.array([5], np.int64)
    anchor = Anchor(16, dtype)
    (zero, *_) = list(anchor.encode(1, first.copy(), counters))
    np.testing.assert_array_equal(zero.place(first[0]).values, first[0])
    later = first + generator.normal(size=first.shape).astype(np.float32) / 100
    for model, wanted in zip(anchor.encode(2, later.copy(), counters), later, strict=True):
        assert model.base == zero.base
        judged = model.place(first[0])
        np.testing.assert_array_equal(judged.values[16:], wanted[16:])
        exact = first[0, :16] + 0.0
        distance = np.abs(wanted[:16] - exact)
        step = {"float32": 2**-22, "bfloat16": 2**-8, "float16": 2**-10}[dtype]
        assert (np.abs(judged.values[:16] - wanted[:16]) <= distance * step + 2**-20).all()
        rounded = encode(wanted[:16] - first[0, :16], dtype)
        np.testing.assert_array_equal(model.difference.values, rounded.values)


def test_a_validator_keeps_the_anchor_it_was_sent(tmp_path):
    _, _, grid = run(anchored(tmp_path))
    message = grid.messages("evaluate", "delta")[0]
    base = str(message.content.config_records["config"]["base"])
    held = SiloStore(tmp_path / "silos" / "delta" / "run" / "first").load_global(base)
    assert isinstance(held, ModelState)
    np.testing.assert_array_equal(held.values, view(message.content.array_records["arrays"]["anchor"]))
