# SPDX-License-Identifier: Apache-2.0
"""Differences on the wire: rounding against torch, error feedback, and the same bits for everyone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedface_flwr.federation.aggregation import aggregate, aggregate_difference, norm
from fedface_flwr.federation.blocks import BLOCK, SPAN
from fedface_flwr.federation.difference import Difference, GlobalChange, MovedVector, decode, encode, momentum_of
from fedface_flwr.federation.layout import ModelState

DTYPES = ["float32", "bfloat16", "float16"]


def numbers(size: int, seed: int = 0) -> np.ndarray:
    """Return numbers over many magnitudes, zeros of both signs and exact ties among them."""
    generator = np.random.default_rng(seed)
    drawn = generator.normal(size=size) * 10.0 ** generator.uniform(-12, 0, size)
    drawn[: min(4, size)] = [0.0, -0.0, 1.00390625, 1.01171875][: min(4, size)]
    return drawn.astype(np.float32)


@pytest.mark.parametrize("size", [1, 5, BLOCK + 1, SPAN + 3])
def test_bfloat16_rounds_as_torch_does(size: int) -> None:
    given = numbers(size)
    wanted = torch.from_numpy(given).to(torch.bfloat16)
    sent = encode(given, "bfloat16")
    np.testing.assert_array_equal(sent.values, wanted.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(decode(sent), wanted.float().numpy())


def test_float16_is_scaled_so_that_small_differences_keep_their_bits() -> None:
    given = (numbers(1000) * np.float32(1e-7)).astype(np.float32)
    sent = encode(given, "float16")
    assert np.log2(sent.scale) == int(np.log2(sent.scale))
    assert 2.0**14 <= np.abs(sent.values).max() <= 2.0**15
    large = np.abs(given) > np.abs(given).max() * 2.0**-14
    np.testing.assert_allclose(decode(sent)[large], given[large], rtol=2.0**-11)


def test_float32_travels_as_it_is() -> None:
    given = numbers(100)
    np.testing.assert_array_equal(decode(encode(given, "float32")), given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(dtype: str, bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        encode(np.array([0.0, bad, 1.0], np.float32), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_stays_zero(dtype: str) -> None:
    np.testing.assert_array_equal(decode(encode(np.zeros(3, np.float32), dtype)), np.zeros(3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_holder_of_the_base_gets_the_servers_bits_and_momentum(dtype: str) -> None:
    size, parameters, rate = SPAN + BLOCK + 7, SPAN + 5, 0.05
    generator = np.random.default_rng(3)
    server = generator.normal(size=size).astype(np.float32)
    silo = ModelState(server.copy(), np.array([1]))
    carry = np.zeros(parameters, np.float32)
    for number in range(3):
        rows = [server + np.float32(1e-3) * generator.normal(size=size).astype(np.float32) for _ in range(3)]
        sent = aggregate_difference(rows, np.array([0.2, 0.3, 0.5]), server, carry, dtype)
        change = GlobalChange("b", "a", sent, server[parameters:], np.array([number]), rate)
        momentum = change.apply(silo)
        np.testing.assert_array_equal(silo.values, server)
        np.testing.assert_array_equal(silo.counters, [number])
        np.testing.assert_array_equal(momentum, momentum_of(decode(sent), rate))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_rounding_leaves_is_carried_on(dtype: str) -> None:
    """Worked by hand: with a constant mean step of 1 + 2^-12 from each round's model, nothing is lost in the sum."""
    step, rounds = np.float32(1 + 2.0**-12), 64
    model, carry = np.zeros(4, np.float32), np.zeros(3, np.float32)
    for _ in range(rounds):
        sent = aggregate_difference([model + step, model + step], np.array([0.5, 0.5]), model, carry, dtype)
        assert sent.values.dtype == {"float32": np.float32, "bfloat16": np.uint16, "float16": np.float16}[dtype]
    np.testing.assert_allclose(model[:3] + carry, rounds * step, rtol=1e-6)
    assert np.abs(carry).max() <= 2.0**-8


def test_float32_differences_follow_plain_averaging() -> None:
    generator = np.random.default_rng(5)
    rows = [generator.normal(size=50).astype(np.float32) for _ in range(3)]
    weights = np.array([0.5, 0.25, 0.25])
    plain, momentum = np.ones(50, np.float32), np.empty(40, np.float32)
    aggregate(rows, weights, plain, momentum, 0.1)
    moved, carry = np.ones(50, np.float32), np.zeros(40, np.float32)
    sent = aggregate_difference(rows, weights, moved, carry, "float32")
    np.testing.assert_allclose(moved, plain, atol=1e-6)
    np.testing.assert_allclose(momentum_of(decode(sent), 0.1), momentum, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(moved[40:], plain[40:])


def test_shapes_and_weights_are_checked() -> None:
    model, carry = np.zeros(3, np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        aggregate_difference([np.zeros(4, np.float32)], np.array([1.0]), model, carry, "float32")
    with pytest.raises(ValueError, match="sum to"):
        aggregate_difference([model], np.array([0.9]), model, carry, "float32")


def test_a_difference_without_momentum_only_moves_the_model() -> None:
    state = ModelState(np.array([1.0, 2.0, 9.0], np.float32), np.array([0]))
    change = GlobalChange(
        "b", "a", Difference("float32", np.array([0.5, -1.0], np.float32)), state.values[2:] * 2, np.array([4]), 0.0
    )
    assert change.apply(state) is None
    np.testing.assert_array_equal(state.values, np.array([1.5, 1.0, 18.0], np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_moved_vector_reads_as_the_array_that_it_stands_for(dtype: str) -> None:
    start, step = numbers(20, 1), encode(numbers(13, 2), dtype)
    statistics = numbers(7, 3)
    moved = MovedVector(start, step, statistics)
    whole = np.concatenate([start[:13] + decode(step), statistics])
    np.testing.assert_array_equal(np.asarray(moved), whole)
    assert (len(moved), moved.shape) == (20, (20,))
    for first in range(21):
        for last in range(21):
            np.testing.assert_array_equal(moved[first:last], whole[first:last])


def test_the_norm_is_that_of_the_whole_and_shows_what_is_not_finite() -> None:
    vector, origin = numbers(SPAN + 5, 1), numbers(SPAN + 5, 2)
    np.testing.assert_allclose(norm(vector), np.linalg.norm(vector.astype(np.float64)), rtol=1e-5)
    expected = np.linalg.norm((vector - origin)[:100].astype(np.float64))
    np.testing.assert_allclose(norm(vector, origin, 100), expected, rtol=1e-5)
    for bad in (np.nan, np.inf, np.float32(3e38)):
        vector[SPAN] = bad
        assert not np.isfinite(norm(vector))
