# SPDX-License-Identifier: Apache-2.0
"""Rough scores with exact ones near the rates find what exact scores throughout find."""

from __future__ import annotations

import numpy as np
import pytest

from fedface_flwr.evaluation import roc, screening
from fedface_flwr.evaluation.screening import highest_scores
from fedface_flwr.evaluation.templates import TemplatePairs, pair_scores
from fedface_flwr.evaluation.ties import settle

TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)


def units(count: int, dim: int, seed: int, spread: float) -> np.ndarray:
    """Return directions, all within a cone: the smaller the spread, the closer all their products lie together."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal(dim) + spread * rng.standard_normal((count, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def lists(features: np.ndarray, seed: int, repeated: bool = True) -> tuple[np.ndarray, TemplatePairs]:
    """Return genuine scores somewhat above, and among, the impostor ones, and impostor pairs."""
    rng = np.random.default_rng(seed)
    half = len(features) // 2
    # Pairs may come twice in a list.
    count = half * half // 3
    drawn = rng.integers(0, half * half, count) if repeated else rng.permutation(half * half)[:count]
    first, second = np.divmod(drawn, half)
    impostors = TemplatePairs.of(first, half + second)
    some = pair_scores(features, impostors)[:400]
    genuine = np.sort(settle(some + rng.uniform(0, 3 * some.std(), len(some))))
    return genuine, impostors


@pytest.mark.parametrize("spread", [1.0, 0.1, 0.03])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("repeated", [False, True])
def test_every_rule_finds_at_every_rate_what_exact_scores_find(
    seed: int, spread: float, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So few scores would all be computed again at once.
    monkeypatch.setattr(screening, "_MOST", 1.0)
    features = units(520, 64, seed, spread)
    genuine, impostors = lists(features, seed, repeated)
    exact = np.sort(settle(pair_scores(features, impostors)))
    rough = np.sort(pair_scores(features.astype(np.float32), impostors)).astype(np.float64)
    found = highest_scores(features, impostors, genuine, TARGETS, 0.3)
    assert found is not None
    scores, below = found
    assert len(scores) + below == len(exact)
    assert len(scores) == pytest.approx(0.3 * len(exact), rel=0.2)
    differs = 0
    for rule in ("at most", "nearest", "interpolated"):
        whole = roc.tar_at_far(genuine, exact, TARGETS, rule)
        points = roc.tar_at_far(genuine, scores, TARGETS, rule, below=below)
        assert [(point.tar, point.far) for point in points] == [(point.tar, point.far) for point in whole]
        # The same products, summed in another order.
        np.testing.assert_allclose([p.threshold for p in points], [p.threshold for p in whole], atol=1e-14)
        roughly = roc.tar_at_far(genuine, rough, TARGETS, rule)
        differs += [(point.tar, point.far) for point in roughly] != [(point.tar, point.far) for point in whole]
    # Where scores lie close together, rough ones would not do.
    assert differs or spread > 0.05


def test_few_scores_are_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    features = units(1200, 64, 1, 1.0)
    genuine, impostors = lists(features, 1)
    counted = []

    def count(vectors: np.ndarray, pairs: TemplatePairs) -> np.ndarray:
        counted.append((vectors.dtype, len(pairs)))
        return pair_scores(vectors, pairs)

    monkeypatch.setattr(screening, "pair_scores", count)
    assert highest_scores(features, impostors, genuine, TARGETS, 0.3) is not None
    (rough, pairs), (exact, again) = counted
    assert (rough, exact, pairs) == (np.float32, np.float64, len(impostors))
    assert again < pairs / 50


def test_scores_that_cannot_be_told_apart_are_left_to_the_exact_way() -> None:
    features = units(100, 16, 2, 1.0)
    genuine, impostors = lists(features, 2)
    repeated = TemplatePairs.of(np.repeat(impostors.first, 30), np.repeat(impostors.second, 30))
    assert highest_scores(features, repeated, genuine, TARGETS, 0.3) is None
    same = np.repeat(features[:1], 100, axis=0)
    assert highest_scores(same, impostors, genuine, TARGETS, 0.3) is None
    assert highest_scores(features, impostors, genuine, (0.5,), 0.3) is None


@pytest.mark.parametrize("seed", range(6))
def test_the_error_of_a_rough_score_is_within_what_is_allowed_for(seed: int) -> None:
    features = units(300, 512, seed, (1.0, 0.01)[seed % 2])
    impostors = TemplatePairs.of(*np.divmod(np.arange(90_000), 300))
    error = np.abs(pair_scores(features.astype(np.float32), impostors) - pair_scores(features, impostors)).max()
    assert 0 < error < (512 + 2) * 2.0**-24
