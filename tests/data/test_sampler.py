# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedface_flwr.data.sampler import EpochSampler
from fedface_flwr.errors import ConfigError


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**40))
def test_batches_are_the_endless_row_of_permutations(num_images, batch_size, seed):
    sampler = EpochSampler(num_images, batch_size, seed)
    steps = 3 * num_images // batch_size + 3
    batches = [sampler.batch(step) for step in range(steps)]
    assert all(batch.shape == (batch_size,) and batch.dtype == np.int64 for batch in batches)
    row = np.concatenate(batches)
    for start in range(0, len(row) - num_images + 1, num_images):
        assert sorted(row[start : start + num_images]) == list(range(num_images))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_a_batch_depends_on_its_step_alone(steps):
    used = EpochSampler(17, 5, seed=3)
    for step in steps:
        np.testing.assert_array_equal(used.batch(step), EpochSampler(17, 5, seed=3).batch(step))


def test_changing_a_batch_changes_no_later_one():
    sampler = EpochSampler(10, 4, seed=0)
    expected = sampler.batch(0).copy()
    sampler.batch(0)[:] = -1
    np.testing.assert_array_equal(sampler.batch(0), expected)


def test_epochs_and_seeds_have_different_orders():
    sampler = EpochSampler(1000, 1000, seed=1)
    rows = [sampler.batch(0), sampler.batch(1), EpochSampler(1000, 1000, seed=2).batch(0)]
    shared = [(a == b).mean() for a, b in [(rows[0], rows[1]), (rows[0], rows[2]), (rows[1], rows[2])]]
    assert max(shared) < 0.02
    assert (rows[0] == np.arange(1000)).mean() < 0.02


@pytest.mark.parametrize(("num_images", "batch_size", "seed"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_numbers_out_of_range_are_refused(num_images, batch_size, seed):
    with pytest.raises(ConfigError, match="needs images >= 1"):
        EpochSampler(num_images, batch_size, seed)


def test_negative_step_is_refused():
    with pytest.raises(ConfigError, match="step -1"):
        EpochSampler(3, 2, 0).batch(-1)
