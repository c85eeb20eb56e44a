# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedface_flwr.federation.validation import LocalNorm, MovingNorm, NoNorm, Norm, draw_candidates, judge

CANDIDATES = np.array([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0], [0.1, 0.2, 0.7]])
W = CANDIDATES[0]
percents = st.lists(st.floats(0, 100), min_size=2, max_size=6).map(np.array)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_candidates_lie_on_the_simplex_and_the_first_is_the_current_weights(silos: int, count: int, seed: int) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(silos))
    candidates = draw_candidates(weights, count, np.random.default_rng(seed))
    assert candidates.shape == (count, silos)
    np.testing.assert_array_equal(candidates[0], weights)
    assert (candidates >= 0).all()
    np.testing.assert_allclose(candidates.sum(axis=1), 1, rtol=0, atol=1e-12)


def test_candidates_are_a_function_of_the_generator() -> None:
    first, again, other = (draw_candidates(W, 4, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first[1:], other[1:]).any()


def test_a_generator_goes_on_from_round_to_round() -> None:
    generator = np.random.default_rng(1)
    assert not np.isclose(draw_candidates(W, 3, generator)[1:], draw_candidates(W, 3, generator)[1:]).any()


def test_draws_are_uniform_on_the_simplex() -> None:
    drawn = draw_candidates(W, 20_001, np.random.default_rng(0))[1:]
    # Dirichlet(1, 1, 1): means 1/3, variances (1/3)(2/3)/4 = 1/18, and P(x_i > 1/2) = (1/2)^2.
    np.testing.assert_allclose(drawn.mean(axis=0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(drawn.var(axis=0), 1 / 18, atol=0.003)
    np.testing.assert_allclose((drawn > 0.5).mean(axis=0), 0.25, atol=0.01)


def test_local_norm_divides_by_the_population_spread_and_keeps_nothing() -> None:
    norm = LocalNorm(epsilon=1.0)
    same, scores = norm("lfw", np.array([70.0, 70.0, 76.0]))
    # Mean 72, squared deviations 4, 4, 16: variance 8, and 8 + 1 = 3^2.
    np.testing.assert_allclose(scores, [70 / 3, 70 / 3, 76 / 3], rtol=1e-15)
    assert same is norm


def test_local_norm_of_equal_scores_divides_by_the_root_of_epsilon() -> None:
    np.testing.assert_allclose(LocalNorm(epsilon=0.25)("lfw", np.array([60.0, 60.0]))[1], [120, 120], rtol=1e-15)


def test_local_norm_needs_percent() -> None:
    percent = np.array([80.0, 81.0, 82.0])
    # A standard deviation, sqrt(2/3) points, becomes one; as fractions epsilon would swallow it.
    np.testing.assert_allclose(np.diff(LocalNorm()("lfw", percent)[1]), np.sqrt(1.5), rtol=1e-3)
    assert np.diff(LocalNorm()("lfw", percent / 100)[1]).max() < 0.35


@given(percents)
def test_moving_norm_starts_as_the_local_norm(scores: np.ndarray) -> None:
    started, normalised = MovingNorm(gamma=0.01, epsilon=0.5)("lfw", scores)
    np.testing.assert_array_equal(normalised, LocalNorm(epsilon=0.5)("lfw", scores)[1])
    mu, nu = started.statistics["lfw"]
    np.testing.assert_allclose([mu, nu], [scores.mean(), scores.var()], rtol=1e-12, atol=1e-12)


def test_moving_norm_keeps_validators_apart_and_is_not_changed_itself() -> None:
    empty = MovingNorm(gamma=0.5, epsilon=1.0)
    one, _ = empty("lfw", np.array([70.0, 76.0]))
    two, _ = one("age", np.array([50.0, 52.0]))
    assert dict(empty.statistics) == {}
    assert dict(one.statistics) == {"lfw": (73.0, 9.0)}
    assert dict(two.statistics) == {"lfw": (73.0, 9.0), "age": (51.0, 1.0)}
    assert (two.gamma, two.epsilon) == (0.5, 1.0)


@pytest.mark.parametrize(("gamma", "mu", "nu"), [(0.0, 73.0, 9.0), (1.0, 81.0, 1.0)])
def test_moving_norm_at_the_ends_of_gamma(gamma: float, mu: float, nu: float) -> None:
    # gamma 0 never moves from the first statistics; gamma 1 is the local norm at every round.
    norm, _ = MovingNorm(gamma=gamma)("lfw", np.array([70.0, 76.0]))
    moved, _ = norm("lfw", np.array([80.0, 82.0]))
    assert moved.statistics["lfw"] == (mu, nu)


@pytest.mark.parametrize("norm", [LocalNorm(), MovingNorm(), NoNorm()])
def test_ties_go_to_the_first_candidate(norm: Norm) -> None:
    verdict = judge(norm, W, CANDIDATES, {"a": np.array([50.0, 60.0, 60.0]), "b": np.array([70.0, 75.0, 75.0])}, 0.5)
    assert verdict.best == 1
    assert judge(norm, W, CANDIDATES, {"a": np.full(3, 50.0)}, 0.5).best == 0


def test_without_a_norm_the_sum_of_raw_scores_decides() -> None:
    verdict = judge(
        NoNorm(), W, CANDIDATES, {"a": np.array([60.0, 50.0, 50.0]), "b": np.array([50.0, 55.0, 61.0])}, 1.0
    )
    assert verdict.best == 2
    np.testing.assert_array_equal(verdict.weights, CANDIDATES[2])
    np.testing.assert_array_equal(verdict.normalised["b"], [50, 55, 61])


@pytest.mark.parametrize("norm", [LocalNorm(), NoNorm()])
def test_the_order_in_which_validators_answered_does_not_matter(norm: Norm) -> None:
    scores = {name: np.random.default_rng(i).uniform(50, 90, 3) for i, name in enumerate("cab")}
    forward = judge(norm, W, CANDIDATES, scores, 0.1)
    backward = judge(norm, W, CANDIDATES, dict(reversed(scores.items())), 0.1)
    assert list(forward.normalised) == list(backward.normalised) == ["a", "b", "c"]
    assert forward.best == backward.best
    np.testing.assert_array_equal(forward.weights, backward.weights)


def test_phi_zero_keeps_the_weights_and_the_current_ones_winning_keeps_them_too() -> None:
    far = {"a": np.array([10.0, 90.0, 20.0])}
    np.testing.assert_array_equal(judge(LocalNorm(), W, CANDIDATES, far, 0.0).weights, W)
    stay = {"a": np.array([90.0, 10.0, 20.0])}
    np.testing.assert_allclose(judge(LocalNorm(), W, CANDIDATES, stay, 0.3).weights, W, rtol=1e-15)


@given(st.integers(2, 6), st.integers(1, 5), st.floats(0, 1), st.integers(0, 10**6))
def test_weights_stay_on_the_simplex(silos: int, count: int, phi: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    norm: Norm = MovingNorm()
    weights = np.full(silos, 1 / silos)
    for _ in range(5):
        candidates = draw_candidates(weights, count, generator)
        scores = {name: generator.uniform(50, 100, count) for name in ("lfw", "age")}
        verdict = judge(norm, weights, candidates, scores, phi)
        norm, weights = verdict.norm, verdict.weights
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1, abs=1e-12)


def test_nobody_answering_is_an_error() -> None:
    with pytest.raises(ValueError, match="no validator scored"):
        judge(LocalNorm(), W, CANDIDATES, {}, 0.1)
