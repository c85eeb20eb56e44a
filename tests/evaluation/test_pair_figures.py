# SPDX-License-Identifier: Apache-2.0
"""Figures of verification against numbers worked by hand, plain loops, scikit-learn and the existing grid rule."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation import bootstrap, roc
from fedface_flwr.evaluation.pair_figures import EXACT_RULE, GRID_RULE, ScoredPairs, distances_of, measure
from fedface_flwr.evaluation.pair_figures_counts import best_of_all, count_exactly, count_on_grid, cross_validate
from fedface_flwr.evaluation.pictures import Embedded
from fedface_flwr.evaluation.verification import THRESHOLDS, pair_distances, verify

# Few values, so that ties are the rule.
distance_values = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 4.0]), st.floats(0, 4))
scored_pairs = st.lists(st.tuples(distance_values, st.booleans(), st.integers(0, 3)), min_size=8, max_size=40)


def pairs_of(rows) -> ScoredPairs:
    distances, same, fold = (np.array(column) for column in zip(*rows, strict=True))
    fold = np.unique(fold, return_inverse=True)[1].ravel().astype(np.int64)
    return ScoredPairs(distances, same, fold, int(fold.max()) + 1, "given")


def slow_exact(pairs: ScoredPairs) -> tuple[list[float], list[float]]:
    """Threshold and accuracy of each fold by trying every distance of the other folds, and none at all, in a loop."""
    thresholds, accuracies = [], []
    for fold in range(pairs.folds):
        tested, choosing = pairs.fold == fold, pairs.fold != fold
        best, most = math.nan, -1
        for threshold in [*sorted(set(pairs.distances[choosing].tolist())), math.inf]:
            right = sum(
                (distance < threshold) == same
                for distance, same in zip(pairs.distances[choosing], pairs.same[choosing], strict=True)
            )
            if right > most:
                best, most = threshold, right
        thresholds.append(best)
        accuracies.append(np.mean((pairs.distances[tested] < best) == pairs.same[tested]))
    return thresholds, accuracies


def test_exact_rule_by_hand():
    pairs = ScoredPairs(
        np.array([0.2, 0.6, 0.5, 0.9]), np.array([True, False, True, False]), np.array([0, 0, 1, 1]), 2, "given"
    )
    thresholds, accuracies = cross_validate(count_exactly(pairs.distances, pairs.same, pairs.fold, 2))
    # Fold 1 alone: 0.9 accepts 0.5 and rejects 0.9; it also accepts fold 0's impostor at 0.6. The other way round 0.6.
    assert thresholds.tolist() == [0.9, 0.6]
    assert accuracies.tolist() == [0.5, 1.0]
    # All of them: 0.6 is the lowest with all four right.
    assert best_of_all(count_exactly(pairs.distances, pairs.same, pairs.fold, 2)) == (0.6, 1.0)


def test_where_all_pairs_should_be_accepted_the_threshold_is_infinite():
    pairs = ScoredPairs(np.array([1.0, 2.0, 1.0, 2.0]), np.array([True] * 3 + [False]), np.array([0, 0, 1, 1]), 2, "")
    thresholds, accuracies = cross_validate(count_exactly(pairs.distances, pairs.same, pairs.fold, 2))
    assert thresholds.tolist() == [2.0, math.inf]
    assert accuracies.tolist() == [0.5, 0.5]
    threshold = figure(measure("x", pairs, flip="none"), "threshold", "threshold rule", EXACT_RULE)
    assert math.isnan(threshold.value)
    assert "accepting every pair" in threshold.note


@settings(max_examples=80)
@given(rows=scored_pairs)
def test_exact_rule_equals_the_loop(rows):
    pairs = pairs_of(rows)
    assume(pairs.folds > 1)
    thresholds, accuracies = cross_validate(count_exactly(pairs.distances, pairs.same, pairs.fold, pairs.folds))
    assert (thresholds.tolist(), accuracies.tolist()) == slow_exact(pairs)


def test_a_folds_own_distances_are_never_its_threshold():
    generator = np.random.default_rng(5)
    distances = generator.uniform(0, 4, 60)
    fold = np.arange(60) // 10
    thresholds, _ = cross_validate(count_exactly(distances, generator.random(60) < 0.5, fold, 6))
    for number, threshold in enumerate(thresholds):
        assert threshold not in distances[fold == number]


def figure(outcome, metric, condition="", value=""):
    found = [f for f in outcome.figures if f.metric == metric and (not condition or f.conditions[condition] == value)]
    assert len(found) == 1
    return found[0]


def usual_pairs(seed=0, pairs=600, folds=10) -> ScoredPairs:
    generator = np.random.default_rng(seed)
    same = np.arange(pairs) // (pairs // (2 * folds)) % 2 == 0
    distances = np.clip(generator.normal(np.where(same, 1.1, 1.7), 0.3), 0, 4).round(3)
    return ScoredPairs(distances, same, np.arange(pairs) * folds // pairs, folds, "consecutive")


def test_grid_rule_equals_the_existing_one_on_consecutive_folds():
    pairs = usual_pairs(pairs=6000)
    expected = verify(pairs.distances, pairs.same)
    counts = count_on_grid(pairs.distances, pairs.same, pairs.fold, 10, THRESHOLDS)
    thresholds, accuracies = cross_validate(counts)
    assert tuple(thresholds) == expected.thresholds
    assert tuple(accuracies) == expected.fold_accuracies
    accuracy = figure(measure("x", pairs, flip="none"), "accuracy", "threshold rule", GRID_RULE)
    assert (accuracy.value, accuracy.spread) == (expected.accuracy, expected.accuracy_std)


def test_rates_equal_scikit_learn_and_the_curve_module():
    pairs = usual_pairs(1)
    outcome = measure("x", pairs, flip="none", far_rules=("at most", "nearest", "interpolated"))
    assert figure(outcome, "AUC").value == pytest.approx(roc_auc_score(pairs.same, -pairs.distances), abs=1e-14)
    impostor = np.sort(pairs.distances[~pairs.same])
    for target, allowed in ((1e-1, 30), (1e-2, 3)):
        metric = f"TAR at FAR {target:.0e}"
        expected = np.mean(pairs.distances[pairs.same] < impostor[allowed])
        assert figure(outcome, metric, "FAR rule", "at most").value == expected
        for rule in ("nearest", "interpolated"):
            point = roc.tar_at_far(-pairs.distances[pairs.same], -impostor, [target], rule)[0]
            assert figure(outcome, metric, "FAR rule", rule).value == point.tar


def test_too_few_impostors_are_said():
    pairs = usual_pairs(1)
    outcome = measure("x", pairs, flip="none")
    notes = {f.metric: (math.isnan(f.value), f.note) for f in outcome.figures if f.metric.startswith("TAR")}
    assert notes["TAR at FAR 1e-01"] == (False, "")
    assert notes["TAR at FAR 1e-02"] == (False, "uncertain: it rests on the 3 nearest of 300 impostor pairs")
    assert notes["TAR at FAR 1e-03"] == (True, "not decided: 300 impostor pairs cannot show a FAR of 1e-03")
    assert all(f.interval is None for f in outcome.figures if math.isnan(f.value))


def test_one_impostor_pair_allowed_decides():
    same = np.arange(2000) < 1000
    distances = np.where(same, 0.5, 1.0) + np.arange(2000) / 10000
    outcome = measure("x", ScoredPairs(distances, same, np.arange(2000) % 2, 2, "given"), flip="none")
    at = figure(outcome, "TAR at FAR 1e-03")
    # The second impostor is at 1.1001: all genuine pairs, up to 0.5999, are nearer.
    assert (at.value, at.note) == (1.0, "uncertain: it rests on the 1 nearest of 1000 impostor pairs")


def test_names_are_unique_and_curves_are_there():
    outcome = measure("x", usual_pairs(), flip="none", far_rules=("at most", "nearest"))
    names = [f.full_name for f in outcome.figures]
    assert len(set(names)) == len(names)
    (curve,) = outcome.curves
    assert (curve.kind, curve.label, curve.x[-1], curve.y[-1]) == ("roc", "flip none", 1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"same": np.ones(600, dtype=bool)}, "all of one kind"),
        ({"distances": np.where(np.arange(600) == 7, np.nan, 1.0)}, "pair 7 is not finite"),
        ({"fold": np.zeros(600, dtype=np.int64)}, "fold 2 of 10 has no pairs"),
        ({"fold": np.arange(600)}, "they go from 0 to 9"),
        ({"fold": np.zeros(5, dtype=np.int64)}, "equally long"),
    ],
)
def test_what_cannot_be_measured_is_named(change, reason):
    with pytest.raises(DataError, match=reason):
        measure("x", replace(usual_pairs(), **change), flip="none")


def test_one_fold_has_no_cross_validated_accuracy_and_no_interval():
    pairs = replace(usual_pairs(), fold=np.zeros(600, dtype=np.int64), folds=1)
    outcome = measure("x", pairs, flip="none")
    assert [f.metric for f in outcome.figures][:2] == ["accuracy", "threshold"]
    assert "optimistic" in outcome.figures[0].note
    assert all(f.interval is None for f in outcome.figures)
    with pytest.raises(DataError, match="cannot be cross-validated"):
        cross_validate(count_exactly(pairs.distances, pairs.same, pairs.fold, 1))


def test_folds_of_one_kind_are_told():
    pairs = usual_pairs()
    outcome = measure("x", replace(pairs, same=np.arange(600) < 300), flip="none")
    assert (
        figure(outcome, "accuracy", "threshold rule", EXACT_RULE).note == "10 of 10 folds have pairs of one kind only"
    )
    # Some draws of folds have no impostor pair at all: nothing can be said of an interval.
    assert figure(outcome, "AUC").interval is None


def test_distances_are_those_of_unit_vectors_in_double_precision():
    generator = np.random.default_rng(2)
    plain, mirrored = generator.normal(size=(2, 50, 8)).astype(np.float32)
    left, right = generator.integers(0, 50, (2, 40_000))
    ours = distances_of(Embedded(plain, mirrored), left, right)
    both = plain.astype(np.float64) + mirrored
    rows = np.stack([left, right], axis=1).ravel()
    np.testing.assert_array_equal(ours, pair_distances(both[rows]))
    np.testing.assert_array_equal(distances_of(Embedded(plain), left, right), pair_distances(plain[rows]))
    plain[7] = 0
    with pytest.raises(DataError, match="embedding of picture 7 is zero"):
        distances_of(Embedded(plain), left, right)


def resampled(pairs: ScoredPairs, drawn) -> tuple[np.ndarray, np.ndarray]:
    """Genuine and impostor scores of a draw of folds, written out."""
    rows = np.concatenate([np.repeat(np.flatnonzero(pairs.fold == fold), times) for fold, times in enumerate(drawn)])
    return -pairs.distances[rows][pairs.same[rows]], -pairs.distances[rows][~pairs.same[rows]]


@settings(max_examples=40)
@given(rows=scored_pairs, seed=st.integers(0, 1000))
def test_bootstrap_equals_figures_of_the_pairs_written_out(rows, seed):
    pairs = pairs_of(rows)
    counts = count_exactly(pairs.distances, pairs.same, pairs.fold, pairs.folds)
    drawn = bootstrap.draw_folds(pairs.folds, samples=8, seed=seed)
    targets = [0.5, 0.1, 1e-3]
    tars, eers, aucs = bootstrap.tars_at_fars(drawn, counts, targets), bootstrap.eers(drawn, counts), None
    aucs = bootstrap.aucs(drawn, counts)
    for sample, times in enumerate(drawn):
        genuine, impostor = resampled(pairs, times)
        if not len(genuine) or not len(impostor):
            assert np.isnan(tars[sample]).all()
            assert np.isnan([eers[sample], aucs[sample]]).all()
            continue
        expected = [point.tar for point in roc.tar_at_far(genuine, impostor, targets, "at most")]
        assert tars[sample].tolist() == expected
        assert eers[sample] == pytest.approx(roc.eer(genuine, impostor), abs=1e-12)
        assert aucs[sample] == pytest.approx(roc.auc(genuine, impostor), abs=1e-12)


def test_draws_are_of_as_many_folds_and_seeded():
    drawn = bootstrap.draw_folds(10, samples=500, seed=3)
    assert drawn.shape == (500, 10)
    assert (drawn.sum(axis=1) == 10).all()
    assert drawn.mean() == 1
    np.testing.assert_array_equal(drawn, bootstrap.draw_folds(10, samples=500, seed=3))
    assert not np.array_equal(drawn, bootstrap.draw_folds(10, samples=500, seed=4))


def test_accuracy_interval_is_of_means_over_drawn_folds():
    accuracies = np.linspace(0.9, 1, 10)
    drawn = bootstrap.draw_folds(10)
    means = bootstrap.accuracies(drawn, accuracies)
    assert means[0] == pytest.approx(np.repeat(accuracies, drawn[0]).mean())
    low, high = bootstrap.interval(means)
    # Of the mean of ten equal draws: 0.95 +- 1.96 standard errors, about 0.02.
    standard = 1.96 * accuracies.std() / math.sqrt(10)
    assert (low, high) == pytest.approx((0.95 - standard, 0.95 + standard), abs=0.004)
    assert bootstrap.interval(np.array([0.5, np.nan])) is None
