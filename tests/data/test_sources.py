# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle

import numpy as np
import pytest
from grid import tiny_config
from hypothesis import given
from hypothesis import strategies as st
from writers import pixels, png, public_pack, write_recordio

from fedface_flwr.data.sources import pair_set, training_sets
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.verification import fold_slices, spread_over_folds


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [
        (0, list(range(16, 32))),
        (16, list(range(16, 32))),
        (99, list(range(16, 32))),
        (8, [16, 18, 20, 22, 24, 26, 28, 30]),
        (6, [16, 18, 21, 24, 26, 29]),  # thirds of eight: 0, 8/3, 16/3
        (7, [16, 18, 21, 24, 26, 29]),
        (1, [16, 24]),
    ],
)
def test_pairs_of_two_folds_of_eight(limit, chosen):
    assert spread_over_folds(80, (2, 3), limit).tolist() == chosen


@given(pairs=st.integers(10, 400), first=st.integers(0, 5), count=st.integers(1, 5), limit=st.integers(0, 500))
def test_a_choice_is_ascending_even_and_within_its_folds(pairs, first, count, limit):
    folds = range(first, first + count)
    chosen = spread_over_folds(pairs, folds, limit)
    assert (np.diff(chosen) > 0).all()
    by_fold = [((chosen >= s.start) & (chosen < s.stop)).sum() for s in (fold_slices(pairs)[f] for f in folds)]
    assert sum(by_fold) == len(chosen)
    if limit:
        assert len(set(by_fold)) == 1
        assert len(chosen) <= max(limit, count)
    else:
        assert len(chosen) == sum(fold_slices(pairs)[f].stop - fold_slices(pairs)[f].start for f in folds)


def test_half_of_a_spread_choice_is_positive_as_in_its_folds(tmp_path):
    config = tiny_config(tmp_path, "fedface", "data.synthetic.pairs=200")
    same = pair_set(config, "delta", tmp_path).same
    assert same[spread_over_folds(200, range(5), 40)].mean() == 0.5


def test_a_silo_owns_its_own_set_and_the_pool_owns_all_in_their_order(tmp_path):
    order = "data.silos=[gamma,alpha,beta]"
    silo = tiny_config(tmp_path, "fedavg", order)
    pool = tiny_config(tmp_path, "central", order)
    assert [s.name for s in training_sets(silo, "alpha", tmp_path)] == ["alpha"]
    pooled = training_sets(pool, "central", tmp_path)
    assert [s.name for s in pooled] == ["gamma", "alpha", "beta"]
    (own,) = training_sets(silo, "alpha", tmp_path)
    everyone = np.arange(len(own.labels))
    np.testing.assert_array_equal(own.images(everyone), pooled[1].images(everyone))
    assert (own.num_identities, len(own.labels)) == (6, 24)
    assert not np.array_equal(own.images(everyone), pooled[2].images(everyone))


def test_training_faces_follow_the_seed_and_validators_faces_do_not(tmp_path):
    first, second = (tiny_config(tmp_path, "fedface", f"seed={seed}") for seed in (1, 2))
    one, two = (training_sets(config, "alpha", tmp_path)[0].images(np.arange(4)) for config in (first, second))
    assert not np.array_equal(one, two)
    one, two = (pair_set(config, "delta", tmp_path) for config in (first, second))
    np.testing.assert_array_equal(one.images, two.images)
    assert (one.name, len(one), one.images.shape) == ("delta", 20, (40, 3, 16, 16))
    assert not np.array_equal(one.images, pair_set(first, "epsilon", tmp_path).images)


def test_files_are_those_of_the_configured_names_under_the_root(tmp_path):
    write_recordio(tmp_path / "faces" / "fiw", public_pack([0, 0, 1]))
    images = [png(pixels(seed)) for seed in range(4)]
    (tmp_path / "faces" / "lfw.bin").write_bytes(pickle.dumps((images, [True, False])))
    names = ("data.silos=[fiw]", "data.validators=[lfw.bin]", "data.tests=[]")
    config = tiny_config(tmp_path, "fedavg", "data=faces", f"data.root={tmp_path / 'faces'}", *names)
    (faces,) = training_sets(config, "fiw", tmp_path / "cache")
    assert (faces.name, faces.labels.tolist()) == ("fiw", [0, 0, 1])
    assert faces.images(np.array([0])).shape == (1, 3, 16, 16)
    pairs = pair_set(config, "lfw.bin", tmp_path / "cache")
    assert (pairs.name, pairs.same.tolist(), pairs.images.shape) == ("lfw", [True, False], (4, 3, 16, 16))


def test_a_missing_folder_or_pack_is_named(tmp_path):
    config = tiny_config(tmp_path, "fedavg", "data=faces", f"data.root={tmp_path}")
    with pytest.raises(DataError, match="celeba: no such folder"):
        training_sets(config, "celeba", tmp_path)
    with pytest.raises(DataError, match=r"lfw\.bin"):
        pair_set(config, "lfw.bin", tmp_path)
