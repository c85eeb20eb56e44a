# SPDX-License-Identifier: Apache-2.0
import contextlib
import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.roc import FARS, auc, curve, doubt, eer, tar_at_far

TARGETS = (0.0, 1e-3, 0.01, 0.05, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.999)


def scores_of(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores with no ties, some, or hardly anything else, in shuffled order."""
    rng = np.random.default_rng(seed)
    genuine = rng.normal(1, 1, rng.integers(1, 400))
    impostor = rng.normal(0, 1, rng.integers(1, 4000))
    match kind:
        case "distinct":
            return genuine, impostor
        case "float32":
            return genuine.astype(np.float32), impostor.astype(np.float32)
        case "tied":
            return genuine.round(1), impostor.round(1)
        case "two values":
            return (genuine > 0).astype(float), (impostor > 1).astype(float)
    raise AssertionError(kind)


def all_points(genuine: np.ndarray, impostor: np.ndarray) -> list[tuple[float, float, float]]:
    """Every (FAR, TAR, threshold) of the curve, from its definition."""
    thresholds = [math.inf, *sorted(set(genuine.tolist()) | set(impostor.tolist()), reverse=True)]
    return [(float(np.mean(impostor >= t)), float(np.mean(genuine >= t)), t) for t in thresholds]


CASES = [(seed, kind) for seed in range(6) for kind in ("distinct", "float32", "tied", "two values")]


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_at_most_is_the_largest_accepted_set(seed: int, kind: str) -> None:
    genuine, impostor = scores_of(seed, kind)
    points = all_points(genuine, impostor)
    for point in tar_at_far(genuine, impostor, TARGETS, "at most"):
        far, tar, threshold = [p for p in points if p[0] <= point.target][-1]
        assert (point.far, point.tar, point.threshold) == (far, tar, threshold)


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_nearest_is_the_fields_reading_of_sklearns_curve(seed: int, kind: str) -> None:
    genuine, impostor = scores_of(seed, kind)
    labels = np.concatenate([np.ones(len(genuine)), np.zeros(len(impostor))])
    far, tar, _ = roc_curve(labels, np.concatenate([genuine, impostor]))
    far, tar = far[::-1], tar[::-1]
    for point in tar_at_far(genuine, impostor, (*TARGETS, 1.0), "nearest"):
        best = min(range(len(far)), key=lambda index: (abs(far[index] - point.target), index))
        assert (point.far, point.tar) == (far[best], tar[best])
        if math.isfinite(point.threshold):
            assert (np.mean(impostor >= point.threshold), np.mean(genuine >= point.threshold)) == (point.far, point.tar)
        else:
            assert (point.far, point.tar) == (0, 0)


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_interpolated_is_numpy_interp_of_all_points(seed: int, kind: str) -> None:
    genuine, impostor = scores_of(seed, kind)
    far, tar, _ = np.array(all_points(genuine, impostor)).T
    for point in tar_at_far(genuine, impostor, (*TARGETS, 1.0), "interpolated"):
        assert point.tar == pytest.approx(np.interp(point.target, far, tar), abs=1e-12)
        assert point.far == point.target
        assert math.isnan(point.threshold)


@pytest.mark.parametrize("window", [1, 2, 7])
def test_nearest_does_not_depend_on_how_much_is_looked_at_first(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, impostor = scores_of(3, "tied")
    whole = tar_at_far(genuine, impostor, TARGETS, "nearest")
    monkeypatch.setattr("fedface_flwr.evaluation.roc._WINDOW", window)
    assert tar_at_far(genuine, impostor, TARGETS, "nearest") == whole


def test_nearest_misses_a_point_in_line_which_sklearn_drops() -> None:
    # One genuine and one impostor pair at each of the scores 9 .. 0: the curve is the diagonal, and of its points
    # sklearn keeps (0, 0), (0.1, 0.1) and (1, 1), so that FAR 0.5 is answered by FAR 0.1.
    scores = np.arange(10.0)
    (point,) = tar_at_far(scores, scores, (0.5,), "nearest")
    assert (point.far, point.tar, point.threshold) == (0.1, 0.1, 9.0)
    (point,) = tar_at_far(scores, scores, (0.5,), "at most")
    assert (point.far, point.tar, point.threshold) == (0.5, 0.5, 5.0)


def test_rules_by_hand() -> None:
    genuine, impostor = np.array([0.9, 0.6, 0.6, 0.2]), np.array([0.8, 0.6, 0.3, 0.1])
    # Points: (0, 0), (0, .25), (.25, .25), (.5, .75), (.75, .75), (.75, 1), (1, 1).
    at_most = tar_at_far(genuine, impostor, (0.0, 0.4, 0.3), "at most")
    assert [(p.far, p.tar, p.threshold) for p in at_most] == [(0, 0.25, 0.9), (0.25, 0.25, 0.8), (0.25, 0.25, 0.8)]
    nearest = tar_at_far(genuine, impostor, (0.0, 0.4, 0.3), "nearest")
    assert [(p.far, p.tar, p.threshold) for p in nearest] == [(0, 0.25, 0.9), (0.5, 0.75, 0.6), (0.25, 0.25, 0.8)]
    interpolated = tar_at_far(genuine, impostor, (0.375, 0.5, 0.75), "interpolated")
    assert [p.tar for p in interpolated] == [0.5, 0.75, 1.0]


def test_too_few_impostors_for_a_target_let_none_pass() -> None:
    genuine, impostor = np.array([2.0, 0.5]), np.linspace(0, 1, 100)
    for point in tar_at_far(genuine, impostor, FARS[2:], "at most"):
        assert (point.far, point.tar, point.threshold) == (0, 0.5, 2.0)
    (none,) = tar_at_far(np.array([0.0]), impostor, (1e-6,), "at most")
    assert (none.far, none.tar, none.threshold) == (0, 0, math.inf)


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_auc_equals_sklearns(seed: int, kind: str) -> None:
    genuine, impostor = scores_of(seed, kind)
    labels = np.concatenate([np.ones(len(genuine)), np.zeros(len(impostor))])
    expected = roc_auc_score(labels, np.concatenate([genuine, impostor]))
    assert auc(genuine, impostor) == pytest.approx(expected, abs=1e-12)
    assert auc(impostor, genuine) == pytest.approx(1 - expected, abs=1e-12)


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_eer_is_the_crossing_of_the_polyline(seed: int, kind: str) -> None:
    genuine, impostor = scores_of(seed, kind)
    points = all_points(genuine, impostor)
    after = next(i for i, (far, tar, _) in enumerate(points) if far + tar >= 1 - 1e-15)
    (x0, y0, _), (x1, y1, _) = points[after - 1], points[after]
    # x + y = 1 on the segment from (x0, y0) to (x1, y1).
    along = (1 - x0 - y0) / (x1 - x0 + y1 - y0)
    assert eer(genuine, impostor) == pytest.approx(x0 + along * (x1 - x0), abs=1e-12)


def test_separated_scores_have_no_errors() -> None:
    genuine, impostor = np.array([0.7, 0.9]), np.array([0.1, 0.3, 0.5])
    assert eer(genuine, impostor) == 0
    assert auc(genuine, impostor) == 1
    assert eer(impostor, genuine) == 1


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_curve_has_only_real_points_in_order(seed: int, kind: str) -> None:
    genuine, impostor = scores_of(seed, kind)
    far, tar = curve(genuine, impostor, 50)
    real = {(f, t) for f, t, _ in all_points(genuine, impostor)}
    assert set(zip(far.tolist(), tar.tolist(), strict=True)) <= real
    assert (np.diff(far) > 0).all()
    assert (np.diff(tar) >= 0).all()
    assert (far[0], far[-1], tar[-1]) == (0, 1, 1)
    assert len(far) <= 51


def test_sorted_scores_give_the_same() -> None:
    genuine, impostor = scores_of(1, "float32")
    ranked = np.sort(genuine), np.sort(impostor)
    for rule in ("at most", "nearest"):
        assert tar_at_far(genuine, impostor, TARGETS, rule) == tar_at_far(*ranked, TARGETS, rule)


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_low_rates_are_those_of_the_highest_scores_alone(seed: int, kind: str) -> None:
    genuine, impostor = scores_of(seed, kind)
    ranked = np.sort(impostor)
    below = int(np.searchsorted(ranked, ranked[int(len(ranked) * 0.7)]))
    top = ranked[below:]
    decided = 0
    for rule in ("at most", "nearest", "interpolated"):
        for target in TARGETS:
            (whole,) = tar_at_far(genuine, impostor, [target], rule)
            with contextlib.suppress(DataError):
                (point,) = tar_at_far(genuine, top, [target], rule, below=below)
                decided += 1
                assert (point.tar, point.far) == (whole.tar, whole.far)
                assert rule == "interpolated" or point.threshold == whole.threshold
    # Of ten targets five are at most 0.1 and two more below 0.3.
    assert decided >= (0 if kind == "two values" else 15)
    far, tar = curve(genuine, top, 50, below=below)
    real = {(f, t) for f, t, _ in all_points(genuine, impostor)}
    assert set(zip(far.tolist(), tar.tolist(), strict=True)) <= real


@pytest.mark.parametrize("where", [0, 1, 2])
def test_not_a_number_is_an_error_wherever_it_lies(where: int) -> None:
    bad = np.array([0.1, 0.2, 0.3])
    bad[where] = np.nan
    with pytest.raises(DataError, match="1 of 3 impostor scores"):
        auc(np.ones(3), bad)
    with pytest.raises(DataError, match="1 of 1 genuine scores"):
        eer(np.array([np.nan]), np.ones(3))


def test_unusable_calls_say_why() -> None:
    scores = np.arange(3.0)
    with pytest.raises(DataError, match="at least one pair of each kind"):
        tar_at_far(np.empty(0), scores, (0.1,), "at most")
    with pytest.raises(DataError, match="in one row"):
        curve(scores.reshape(1, 3), scores)
    with pytest.raises(ConfigError, match="'exact': it must be one of at most, nearest, interpolated"):
        tar_at_far(scores, scores, (0.1,), "exact")
    with pytest.raises(ConfigError, match=r"1\.5: it must lie in"):
        tar_at_far(scores, scores, (1.5,), "nearest")


def test_a_false_rate_is_doubted_where_few_decide_it():
    """At 1e-2 a hundred pairs let one in, a thousand ten; 99 none."""
    assert doubt(1e-2, 99) == ("not decided: 99 impostor pairs cannot show a FAR of 1e-02", False)
    assert doubt(1e-2, 100) == ("uncertain: it rests on the 1 nearest of 100 impostor pairs", True)
    assert doubt(1e-2, 1000) == ("", True)
    of = ("search", "searches")
    assert doubt(0.1, 7, of, "an FPIR") == ("not decided: 7 searches cannot show an FPIR of 1e-01", False)
    assert doubt(0.1, 1, of, "an FPIR") == ("not decided: 1 search cannot show an FPIR of 1e-01", False)
    assert doubt(0.1, 1, at_most=True)[0] == "not decided: at most 1 impostor pair cannot show a FAR of 1e-01"
    assert doubt(1e-3, 3000, at_most=True) == (
        "uncertain: it rests on the at most 3 nearest of at most 3000 impostor pairs",
        True,
    )
