# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fedface_flwr.federation.aggregation import aggregate, aggregate_counters, combine
from fedface_flwr.federation.blocks import BLOCK, SPAN
from fedface_flwr.training.flat import FlatModel

Array = npt.NDArray[Any]

SIZES = [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, SPAN - 1, SPAN, SPAN + 1, SPAN + BLOCK, 2 * SPAN + BLOCK + 3]
TOLERANCE = {np.float32: 1e-6, np.float64: 1e-14}


def draw_rows(count: int, size: int, dtype: type = np.float32) -> list[Array]:
    generator = np.random.default_rng([count, size])
    return [generator.standard_normal(size).astype(dtype) for _ in range(count)]


def plain_average(rows: list[Array], weights: Array) -> Array:
    total = np.zeros(len(rows[0]))
    for row, weight in zip(rows, weights, strict=True):
        total += float(weight) * row.astype(np.float64)
    return total


def received(row: Array) -> Array:
    """Return the array as a message delivers it: a read-only view of bytes."""
    return np.frombuffer(row.tobytes(), dtype=row.dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_combine_equals_the_plain_reference_at_every_border(size: int, dtype: type) -> None:
    rows = draw_rows(3, size, dtype)
    weights = np.random.default_rng(1).dirichlet(np.ones(3), size=2)
    out = np.full((2, size), np.nan, dtype)
    combine(rows, weights, out)
    for t in range(2):
        np.testing.assert_allclose(out[t], plain_average(rows, weights[t]), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_aggregate_equals_the_plain_reference_at_every_border(size: int, dtype: type) -> None:
    rows = draw_rows(3, size, dtype)
    before = np.random.default_rng(2).standard_normal(size).astype(dtype)
    weights = np.array([0.5, 0.2, 0.3])
    average = plain_average(rows, weights)
    for parameters in {0, size // 2, max(size - 1, 0), size}:
        model, momentum = before.copy(), np.full(parameters, np.nan, dtype)
        aggregate(rows, weights, model, momentum, 0.05)
        np.testing.assert_allclose(model, average, rtol=0, atol=TOLERANCE[dtype])
        expected = (before.astype(np.float64) - average)[:parameters] / 0.05
        np.testing.assert_allclose(momentum, expected, rtol=0, atol=40 * TOLERANCE[dtype])


@pytest.mark.parametrize("parameters", [BLOCK - 1, BLOCK, BLOCK + 1, SPAN - 1, SPAN, SPAN + 1])
def test_momentum_may_end_anywhere_relative_to_blocks_and_spans(parameters: int) -> None:
    size = SPAN + 2 * BLOCK
    rows, model = draw_rows(1, size), np.zeros(size, np.float32)
    momentum = np.full(parameters, np.nan, np.float32)
    aggregate(rows, np.ones(1), model, momentum, 0.5)
    np.testing.assert_array_equal(momentum, -2 * rows[0][:parameters])
    np.testing.assert_array_equal(model, rows[0])


def test_a_dozen_silos_and_three_candidates() -> None:
    rows = draw_rows(12, 1000)
    weights = np.random.default_rng(3).dirichlet(np.ones(12), size=3)
    out = np.empty((3, 1000), np.float32)
    combine(rows, weights, out)
    model = np.zeros(1000, np.float32)
    for t in range(3):
        aggregate(rows, weights[t], model, np.empty(0, np.float32), 1.0)
        np.testing.assert_allclose(out[t], plain_average(rows, weights[t]), rtol=0, atol=1e-6)
        np.testing.assert_allclose(model, out[t], rtol=0, atol=1e-6)


def test_rows_may_be_read_only_views_and_stay_as_they_are() -> None:
    originals = draw_rows(3, 2 * BLOCK + 5)
    rows = [received(row) for row in originals]
    weights = np.array([0.25, 0.25, 0.5])
    model, momentum = np.ones(2 * BLOCK + 5, np.float32), np.empty(BLOCK, np.float32)
    aggregate(rows, weights, model, momentum, 0.1)
    out = np.empty((1, 2 * BLOCK + 5), np.float32)
    combine(rows, weights[None], out)
    np.testing.assert_allclose(model, plain_average(originals, weights), rtol=0, atol=1e-6)
    np.testing.assert_allclose(out[0], model, rtol=0, atol=1e-6)
    for row, original in zip(rows, originals, strict=True):
        np.testing.assert_array_equal(row, original)


def test_model_and_momentum_are_changed_in_place_even_as_views_of_larger_arrays() -> None:
    rows = [np.array([2.0, 4.0, 6.0], np.float32), np.array([4.0, 8.0, 10.0], np.float32)]
    home, kept = np.full(5, 9.0, np.float32), np.full(4, 9.0, np.float32)
    aggregate(rows, np.array([0.5, 0.5]), home[1:4], kept[1:3], 0.5)
    np.testing.assert_array_equal(home, [9, 3, 6, 8, 9])
    # (9 - 3) / 0.5 and (9 - 6) / 0.5; the third value is a statistic.
    np.testing.assert_array_equal(kept, [9, 12, 6, 9])


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_one_hot_weights_return_that_silo_bit_for_bit(chosen: int) -> None:
    rows = draw_rows(3, BLOCK + 3)
    weights = np.eye(3)[chosen]
    model = np.zeros(BLOCK + 3, np.float32)
    aggregate(rows, weights, model, np.empty(0, np.float32), 1.0)
    out = np.empty((3, BLOCK + 3), np.float32)
    combine(rows, np.eye(3), out)
    np.testing.assert_array_equal(model, rows[chosen])
    np.testing.assert_array_equal(out[chosen], rows[chosen])


def test_the_same_input_gives_the_same_bits() -> None:
    rows, weights = draw_rows(5, SPAN + 9), np.random.default_rng(4).dirichlet(np.ones(5))

    def once() -> tuple[bytes, bytes]:
        model, momentum = np.ones(SPAN + 9, np.float32), np.empty(SPAN, np.float32)
        aggregate(rows, weights, model, momentum, 0.1)
        return model.tobytes(), momentum.tobytes()

    assert once() == once()


def test_momentum_stops_before_batch_normalisation_statistics() -> None:
    flat = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    layout, state = flat.layout, flat.state()
    assert layout.num_parameters == 3 * 4 + 4 + 4 + 4
    rows = draw_rows(2, layout.num_values)
    momentum = np.zeros(layout.num_parameters, np.float32)
    statistics = slice(layout.num_parameters, layout.num_values)
    for weights in (np.array([0.5, 0.5]), np.array([0.1, 0.9])):
        aggregate(rows, weights, state.values, momentum, 0.1)
        average = plain_average(rows, weights)
        np.testing.assert_allclose(state.values[statistics], average[statistics], rtol=0, atol=1e-6)
    names = {name for name, tensor in state.tensors(layout).items() if np.shares_memory(tensor, state.values)}
    beyond = {name for name, t in state.tensors(layout).items() if np.shares_memory(t, state.values[statistics])}
    assert beyond == {"1.running_mean", "1.running_var"}
    assert names - beyond == {name for name, _ in flat.module.named_parameters()}
    assert torch.equal(flat.counters, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("rows", "weights", "size", "parameters", "rate", "reason"),
    [
        ([3, 3], [0.5, 0.3, 0.2], 3, 3, 0.1, "do not fit"),
        ([3, 4], [0.5, 0.5], 3, 3, 0.1, "do not fit"),
        ([4, 4], [0.5, 0.5], 3, 3, 0.1, "do not fit"),
        ([3, 3], [0.5, 0.5], 3, 4, 0.1, "do not fit"),
        ([3, 3], [0.5, 0.6], 3, 3, 0.1, "sum to 1.1, not to one"),
        ([3, 3], [np.nan, 0.5], 3, 3, 0.1, "sum to nan, not to one"),
        ([], [], 3, 3, 0.1, "sum to 0.0, not to one"),
        ([3, 3], [0.5, 0.5], 3, 3, 0.0, "learning rate is 0.0"),
        ([3, 3], [0.5, 0.5], 3, 3, -0.1, "learning rate is -0.1"),
        ([3, 3], [0.5, 0.5], 3, 3, np.nan, "learning rate is nan"),
    ],
)
def test_aggregate_refuses_what_cannot_be_meant_and_leaves_the_model_alone(
    rows: list[int], weights: list[float], size: int, parameters: int, rate: float, reason: str
) -> None:
    model, momentum = np.ones(size, np.float32), np.ones(parameters, np.float32)
    with pytest.raises(ValueError, match=reason):
        aggregate([np.zeros(n, np.float32) for n in rows], np.array(weights), model, momentum, rate)
    assert model.all()
    assert momentum.all()


@pytest.mark.parametrize(
    ("rows", "weights", "out"),
    [([3, 3], (2, 3), (2, 3)), ([3, 3], (2, 2), (1, 3)), ([3, 4], (1, 2), (1, 3)), ([4, 4], (1, 2), (1, 3))],
    ids=["silos", "candidates", "one row", "all rows"],
)
def test_combine_refuses_shapes_that_do_not_fit(
    rows: list[int], weights: tuple[int, int], out: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        combine([np.zeros(n, np.float32) for n in rows], np.zeros(weights), np.zeros(out, np.float32))


def test_counters_become_the_largest_and_stay_integers() -> None:
    # The last two would be equal as float32.
    rows = [np.array([3, 2**24]), np.array([1, 2**24 + 1]), np.array([2, 0])]
    combined = aggregate_counters(rows)
    assert combined.dtype == np.int64
    assert combined.tolist() == [3, 2**24 + 1]
