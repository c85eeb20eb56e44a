# SPDX-License-Identifier: Apache-2.0
"""A network that gives every face the same feature knows nobody, whichever matrix product its scores come from."""

from __future__ import annotations

import numpy as np
import pytest

from fedface_flwr.evaluation.megaface import Distractors, evaluate
from fedface_flwr.evaluation.megaface_probes import Probes
from fedface_flwr.evaluation.search import search
from fedface_flwr.evaluation.templates import ALL_FLAGS, TemplatePairs
from fedface_flwr.evaluation.ties import settle
from fedface_flwr.protocols.ijb_verification import FAR_RULES, verify_templates

DIMS = (64, 100, 128, 256, 512)


def direction(dim: int, seed: int) -> np.ndarray:
    vector = np.random.default_rng(seed).standard_normal(dim)
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("seed", range(8))
def test_no_template_pair_is_accepted(dim: int, seed: int) -> None:
    vectors = np.tile(direction(dim, seed), (400, 1))
    first, second = np.repeat(np.arange(100), 300), np.tile(np.arange(100, 400), 100)
    same = first % 100 == second % 100
    pairs = tuple(TemplatePairs.of(first[kind], second[kind]) for kind in (same, ~same))
    outcome = verify_templates("c", "IJB-C", {ALL_FLAGS[0]: vectors}, (pairs[0], pairs[1]), FAR_RULES)
    at_most = [figure.value for figure in outcome.figures if figure.conditions["FAR rule"] == "at most"]
    assert np.nanmax(at_most) == 0


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(8))
def test_no_mate_is_found_in_a_gallery(dim: int, kind: type, seed: int) -> None:
    one = direction(dim, seed).astype(kind)
    size = 3 + 7 * seed
    found = search(np.tile(one, (6, 1)), np.full(6, seed % size), np.tile(one, (size, 1)), np.arange(size))
    assert found.rank.tolist() == [size] * 6


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("seed", range(8))
def test_no_mate_is_found_among_distractors(dim: int, seed: int) -> None:
    one = direction(dim, seed).astype(np.float32)
    probes = Probes(np.tile(one, (40, 1)), np.arange(40) // 4)
    (found,) = evaluate(probes, Distractors(np.tile(one, (500, 1)), {"all": 500}))[:1]
    assert found.cmc[0] == 0


@pytest.mark.parametrize(("kind", "step"), [(np.float64, 2.0**-44), (np.float32, 2.0**-20)])
def test_scores_move_by_half_a_step_at_most_and_keep_their_order(kind: type, step: float) -> None:
    scores = np.sort(np.random.default_rng(0).uniform(-1, 1, 10_000)).astype(kind)
    settled = settle(scores.copy())
    assert np.abs(settled.astype(np.float64) - scores).max() <= step / 2
    assert (np.diff(settled) >= 0).all()
    one = np.array([1, np.nextafter(kind(1), kind(0)), np.nextafter(kind(1), kind(2))], kind)
    assert settle(one).tolist() == [1, 1, 1]
