# SPDX-License-Identifier: Apache-2.0
"""Verification against numbers worked by hand, scikit-learn, and the usual loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference_verification import usual_loop
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.verification import (
    THRESHOLDS,
    fold_slices,
    half_folds,
    pair_distances,
    verify,
)

threshold_values = st.sampled_from(THRESHOLDS.tolist())
distance_values = st.one_of(
    threshold_values,
    threshold_values.map(lambda t: float(np.nextafter(t, 4))),
    threshold_values.map(lambda t: float(np.nextafter(t, 0))),
    st.floats(0, 4),
)
scored_pairs = st.lists(st.tuples(distance_values, st.booleans()), min_size=8, max_size=40)


def as_arrays(scored):
    distances, same = zip(*scored, strict=True)
    return np.array(distances), np.array(same)


def test_pair_distances_by_hand():
    embeddings = np.array([[3, 4], [0, 2], [1, 0], [-5, 0], [2, 0], [0, 7], [1, 1], [9, 9]], dtype=np.float32)
    # (0.6, 0.8) - (0, 1) = (0.6, -0.2); opposite; orthogonal; parallel.
    np.testing.assert_allclose(pair_distances(embeddings), [0.4, 4, 2, 0], rtol=0, atol=1e-15)
    assert embeddings[0, 0] == 3


@pytest.mark.parametrize("bad", [[0, 0], [np.nan, 1], [np.inf, 1]])
def test_embedding_without_direction_is_an_error(bad):
    with pytest.raises(DataError, match="1 of 4 embeddings are zero or not finite"):
        pair_distances(np.array([[1, 2], bad, [3, 4], [5, 6]], dtype=np.float32))


def test_odd_number_of_embeddings_is_an_error():
    with pytest.raises(DataError, match="3 embeddings cannot form pairs"):
        pair_distances(np.ones((3, 2), dtype=np.float32))


@given(folds=st.integers(2, 12), extra=st.integers(0, 60))
def test_folds_are_those_of_scikit_learn(folds, extra):
    pairs = np.arange(folds + extra)
    expected = [test.tolist() for _, test in KFold(folds).split(pairs)]
    assert [pairs[part].tolist() for part in fold_slices(len(pairs), folds)] == expected


@given(pairs=st.integers(10, 80), chosen=st.sets(st.integers(0, 9), min_size=1))
def test_chosen_folds_joined_split_into_themselves(pairs, chosen):
    sizes = [part.stop - part.start for part in fold_slices(pairs)]
    chosen_sizes = [sizes[fold] for fold in sorted(chosen)]
    joined = fold_slices(sum(chosen_sizes), len(chosen))
    assert [part.stop - part.start for part in joined] == chosen_sizes


def test_fewer_pairs_than_folds_is_an_error():
    with pytest.raises(DataError, match="9 pairs cannot fill 10 folds"):
        fold_slices(9)


def test_verify_by_hand():
    distances = np.array([0.50, 1.50, 0.40, 0.80])
    same = np.array([True, False, True, False])
    result = verify(distances, same, folds=2)
    # 0.4 is no threshold for 0.4, which must lie below it: fold 1 chooses 0.41, which rejects fold 0's 0.5.
    assert result.thresholds == pytest.approx((0.41, 0.51))
    assert result.fold_accuracies == (0.5, 1.0)
    assert (result.accuracy, result.accuracy_std) == (0.75, 0.25)
    assert result.auc == 1
    assert result.tar_at_far == {1e-3: 1.0, 1e-4: 1.0}
    assert result.pairs == 4


def test_first_best_threshold_wins_even_when_it_rejects_all():
    # In the fold that chooses, the impostor is nearer: one of two pairs is right at 0 and at most later.
    result = verify(np.array([0.5, 1.5, 1.0, 0.8]), np.array([True, False, True, False]), folds=2, test_folds=[0])
    assert result.thresholds == (0.0,)
    assert result.fold_accuracies == (0.5,)
    assert result.pairs == 2


@settings(max_examples=60, deadline=None)
@given(scored=scored_pairs, folds=st.integers(2, 5), data=st.data())
def test_verify_equals_the_usual_loop(scored, folds, data):
    some_folds = st.lists(st.integers(0, folds - 1), min_size=1, unique=True)
    tested, choosing = data.draw(some_folds), data.draw(some_folds)
    assume(all(set(choosing) - {fold} for fold in tested))
    distances, same = as_arrays(scored)
    tested_same = np.concatenate([same[fold_slices(len(same), folds)[fold]] for fold in tested])
    assume(0 < tested_same.sum() < len(tested_same))

    result = verify(distances, same, folds=folds, test_folds=tested, threshold_folds=choosing)

    thresholds, accuracies = usual_loop(distances, same, folds, tested, choosing)
    assert result.thresholds == tuple(thresholds)
    assert result.fold_accuracies == tuple(accuracies)
    assert result.accuracy == np.mean(accuracies)
    assert result.accuracy_std == np.std(accuracies)


def test_verify_equals_the_usual_loop_on_a_pack_of_usual_size():
    generator = np.random.default_rng(3)
    same = np.arange(6003) // 300 % 2 == 0
    distances = np.clip(generator.normal(np.where(same, 1.2, 1.7), 0.25), 0, 4).round(3)
    for validation, test in (half_folds("first"), half_folds("second")):
        validated = verify(distances, same, test_folds=validation, threshold_folds=validation)
        tested = verify(distances, same, test_folds=test)
        for result, expected in (
            (validated, usual_loop(distances, same, 10, validation, validation)),
            (tested, usual_loop(distances, same, 10, test, range(10))),
        ):
            assert (list(result.thresholds), list(result.fold_accuracies)) == expected


def test_validation_half_does_not_see_the_test_half():
    generator = np.random.default_rng(0)
    distances, same = generator.uniform(0, 4, 100), generator.random(100) < 0.5
    validation, test = half_folds("first")
    hidden = distances.copy()
    hidden[50:] = 0
    seen = verify(distances, same, test_folds=validation, threshold_folds=validation)
    assert seen == verify(hidden, same, test_folds=validation, threshold_folds=validation)
    assert verify(distances, same, test_folds=test) != verify(hidden, same, test_folds=test)


def impostors_and_four_genuine(impostors):
    distances = np.concatenate([[0.5, 1.0, 1.0005, 1.001], impostors])
    return distances, np.arange(len(distances)) < 4


def test_tar_lets_in_exactly_as_many_impostors_as_far_allows():
    distances, same = impostors_and_four_genuine(1 + np.arange(1000) / 1000)
    # One of 1000 may pass at 1e-3: the threshold is the second, 1.001. None at 1e-4: it is the first, 1.0.
    assert verify(distances, same, test_folds=range(10)).tar_at_far == {1e-3: 0.75, 1e-4: 0.25}


def test_tar_keeps_tied_impostors_out_together():
    impostors = 1 + np.arange(1000) / 1000
    impostors[1] = 1.0
    distances, same = impostors_and_four_genuine(impostors)
    assert verify(distances, same).tar_at_far == {1e-3: 0.25, 1e-4: 0.25}


def test_tar_with_too_few_impostors_lets_none_in():
    distances, same = impostors_and_four_genuine(1 + np.arange(999) / 1000)
    assert verify(distances, same).tar_at_far[1e-3] == 0.25


@pytest.mark.parametrize("impostors", [3000, 7000, 9000, 30000])
def test_far_equal_to_its_target_is_allowed(impostors):
    ranks = np.arange(impostors)
    distances = np.concatenate([ranks / 10000 + 0.00005, ranks / 10000])
    same = np.arange(2 * impostors) < impostors
    # Genuine r lies just above impostor r: the threshold at impostor k lets in k of each.
    assert verify(distances, same).tar_at_far[1e-3] == (impostors // 1000) / impostors


def test_auc_by_hand_counts_a_tie_as_half():
    # Couples of (1, 2) and (2, 3): three with the genuine pair nearer, one tie.
    result = verify(np.array([1.0, 2.0, 2.0, 3.0]), np.array([True, True, False, False]), folds=2)
    assert result.auc == 3.5 / 4


@given(scored=scored_pairs)
def test_auc_equals_scikit_learn(scored):
    distances, same = as_arrays(scored)
    assume(0 < same.sum() < len(same))
    assert verify(distances, same, folds=2).auc == pytest.approx(roc_auc_score(same, -distances), abs=1e-12)


def test_half_folds_change_places():
    first, second = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
    assert half_folds("first") == (first, second)
    assert half_folds("second") == (second, first)
    with pytest.raises(ConfigError, match="'both'"):
        half_folds("both")


def test_wrong_pairs_are_errors():
    distances, same = np.linspace(0, 3, 20), np.arange(20) % 2 == 0
    with pytest.raises(DataError, match=r"shape \(20,\) do not match labels of shape \(19,\)"):
        verify(distances, same[:-1])
    with pytest.raises(DataError, match="only pairs of one kind"):
        verify(distances, np.ones(20, dtype=bool))
    distances[7] = np.nan
    with pytest.raises(DataError, match="pair 7 is not finite"):
        verify(distances, same)


@pytest.mark.parametrize(("tested", "choosing"), [([], [0]), ([10], [0]), ([0], [-1]), ([0, 1], [1])])
def test_folds_that_cannot_be_scored_are_errors(tested, choosing):
    with pytest.raises(ConfigError, match="test folds"):
        verify(np.linspace(0, 3, 20), np.arange(20) % 2 == 0, test_folds=tested, threshold_folds=choosing)
