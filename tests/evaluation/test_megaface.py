# SPDX-License-Identifier: Apache-2.0
"""MegaFace's figures against plain loops on scores that float32 holds exactly, ties and noise included."""

from __future__ import annotations

import numpy as np
import pytest

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation import megaface, megaface_counts
from fedface_flwr.evaluation.megaface import Distractors, Noise, evaluate
from fedface_flwr.evaluation.megaface_probes import Probes
from fedface_flwr.evaluation.megaface_thresholds import Highest, keys_of


def exact_units(rng, count, dim=64):
    """Unit vectors whose cosines are multiples of 1/32: exact in float32 whatever the order of summation."""
    return (rng.choice([-1.0, 1.0], size=(count, dim)) / np.sqrt(dim)).astype(np.float32)


def exact_faces(rng, persons, each, flips=18, dim=64):
    """Faces of a person differ from its centre in some signs."""
    centres = exact_units(rng, persons, dim)
    faces = np.repeat(centres, each, axis=0)
    for face in faces:
        face[rng.choice(dim, size=rng.integers(0, flips), replace=False)] *= -1
    return faces, np.repeat(np.arange(persons), each)


def plain(features, identities, strangers, far_list, depth):
    """Ranks and rates by the definition, with one loop a search."""
    found, genuine, impostor = [], [], []
    for i in range(len(features)):
        others = strangers @ features[i]
        impostor += others.tolist()
        for j in range(len(features)):
            if i != j and identities[i] == identities[j]:
                score = features[i] @ features[j]
                found.append(1 + np.count_nonzero(others >= score))
                if i < j:
                    genuine.append(score)
    cmc = [np.mean(np.array(found) <= k) for k in range(1, depth + 1)]
    return len(found), cmc, np.array(genuine), np.array(impostor), far_list


def plain_tar(genuine, impostor, far, more_impostors=0):
    """The best TAR of all thresholds whose FAR is at most the target."""
    total = len(impostor) + more_impostors
    tries = [(np.mean(genuine >= t), np.sum(impostor >= t) / total) for t in np.append(np.unique(impostor), 2.0)]
    tries += [(np.mean(genuine >= t), np.sum(impostor >= t) / total) for t in np.unique(genuine)]
    return max(tar for tar, reached in tries if reached <= far)


def assert_finding(finding, features, identities, strangers, fars, depth, far_away=0):
    searches, cmc, genuine, impostor, _ = plain(features, identities, strangers, fars, depth)
    assert finding.searches == searches
    assert finding.cmc.tolist() == cmc
    assert finding.genuine == len(genuine)
    assert finding.impostors == len(impostor) + far_away * len(features)
    for far, point in zip(fars, finding.verification, strict=True):
        assert point.tar == plain_tar(genuine, impostor, far, far_away * len(features))
        assert point.far == np.sum(impostor >= point.threshold) / finding.impostors <= far


@pytest.mark.parametrize("widths", [(1024, 8192, 4096), (4, 16, 7)])
def test_ranks_and_rates_agree_with_plain_loops(monkeypatch, widths):
    """Small blocks, so that thresholds are closed, tiles cut through classes and the cutoff of the highest moves."""
    for name, width in zip(("_NARROWEST", "_WIDEST", "_TALLEST"), widths, strict=True):
        monkeypatch.setattr(megaface_counts, name, width)
    rng = np.random.default_rng(0)
    features, identities = exact_faces(rng, 9, 4)
    order = rng.permutation(len(features))
    features, identities = features[order], identities[order]
    strangers = exact_units(rng, 700)
    fars = [0.0, 1e-4, 5e-4, 1e-3]
    found = evaluate(
        Probes(features, identities),
        Distractors(strangers, {"10": 10, "100": 100, "odd ones": np.arange(1, 700, 2), "700": 700}),
        fars=fars,
        depth=12,
    )
    assert [(finding.distractors, finding.noise) for finding in found] == [
        (name, Noise.RAW) for name in ("10", "100", "odd ones", "700")
    ]
    for finding, chosen in zip(found, (slice(10), slice(100), slice(1, 700, 2), slice(700)), strict=True):
        assert_finding(finding, features, identities, strangers[chosen], fars, 12)
    assert 0.02 < found[3].cmc[0] < found[0].cmc[0] < 1


@pytest.mark.parametrize("tall", [4096, 5])
def test_noise_is_kept_replaced_and_left_out_in_one_pass(monkeypatch, tall):
    monkeypatch.setattr(megaface_counts, "_NARROWEST", 8)
    monkeypatch.setattr(megaface_counts, "_TALLEST", tall)
    rng = np.random.default_rng(1)
    features, identities = exact_faces(rng, 6, 5)
    strangers = exact_units(rng, 300)
    noisy, noisy_strangers = rng.random(30) < 0.25, rng.random(300) < 0.1
    # The most confusing stranger is one of the noisy.
    noisy_strangers[7], strangers[7] = True, features[0]
    fars = [1e-3]
    found = evaluate(
        Probes(features, identities, noisy),
        Distractors(strangers, {"50": 50, "300": 300}, noisy_strangers),
        fars=fars,
        depth=20,
        seed=5,
    )
    named = {(finding.distractors, finding.noise): finding for finding in found}
    assert list(named) == [(size, noise) for size in ("50", "300") for noise in Noise]

    disturbed = np.random.default_rng(5).uniform(-0.001, 0.001, (noisy.sum(), 64)).astype(np.float32)
    replaced = features.copy()
    for row, noise in zip(np.flatnonzero(noisy), disturbed, strict=True):
        total = features[(identities == identities[row]) & ~noisy].sum(axis=0) + noise
        replaced[row] = total / np.linalg.norm(total)
    for size in (50, 300):
        far_away = noisy_strangers[:size].sum()
        clean = strangers[:size][~noisy_strangers[:size]]
        assert_finding(named[str(size), Noise.RAW], features, identities, strangers[:size], fars, 20)
        left = named[str(size), Noise.LEFT_OUT]
        assert_finding(left, features[~noisy], identities[~noisy], clean, fars, 20)
        swapped = named[str(size), Noise.REPLACED]
        searches, cmc, genuine, impostor, _ = plain(replaced, identities, clean, fars, 20)
        assert (swapped.searches, swapped.genuine) == (searches, len(genuine))
        assert swapped.impostors == 30 * size
        np.testing.assert_allclose(swapped.cmc, cmc, rtol=0, atol=1e-12)
        tar = plain_tar(genuine, impostor, 1e-3, 30 * far_away)
        assert swapped.verification[0].tar == pytest.approx(tar, abs=1e-12)


def test_replacing_noise_flatters():
    """Faces that resemble nobody are found at rank 1 once the public script has replaced them."""
    rng = np.random.default_rng(2)
    features, identities = exact_faces(rng, 20, 5, flips=24)
    noisy = np.arange(100) % 5 == 0
    features[noisy] = exact_units(rng, 20)
    strangers = exact_units(rng, 3000)
    raw, replaced, left_out = evaluate(Probes(features, identities, noisy), Distractors(strangers, {"3000": 3000}))
    assert raw.cmc[0] < left_out.cmc[0] < replaced.cmc[0]


def test_float32_scores_give_the_ranks_of_the_same_product():
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(30, 32))
    faces = np.repeat(centres, 4, axis=0) + 0.9 * rng.normal(size=(120, 32))
    strangers = rng.normal(size=(5000, 32))
    faces, strangers = (
        (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32) for rows in (faces, strangers)
    )
    identities = np.repeat(np.arange(30), 4)
    found = evaluate(Probes(faces, identities), Distractors(strangers, {"5000": 5000}), depth=50)[0]
    exact = strangers.astype(np.float64) @ faces.T.astype(np.float64)
    ranks = [
        1 + np.count_nonzero(exact[:, i] >= faces[i].astype(np.float64) @ faces[j].astype(np.float64))
        for i in range(120)
        for j in range(120)
        if i != j and identities[i] == identities[j]
    ]
    assert found.cmc.tolist() == [np.mean(np.array(ranks) <= k) for k in range(1, 51)]


def test_a_network_of_one_point_finds_nobody():
    same = np.tile(exact_units(np.random.default_rng(4), 1), (6, 1))
    found = evaluate(Probes(same, np.array([0, 0, 1, 1, 2, 2])), Distractors(same, {"6": 6}), depth=6)[0]
    assert found.cmc.tolist() == [0.0] * 6
    assert found.verification[0].tar == 0.0
    assert found.verification[0].threshold == np.inf


def test_keys_order_as_floats_do():
    values = np.array([-np.inf, -1.5, -1e-45, -0.0, 0.0, 1e-45, 0.25, 1, np.inf], np.float32)
    keys = keys_of(np.full(9, 3, np.int64), values)
    assert (np.diff(keys) >= 0).all()
    assert keys[3] == keys[4]
    assert len(set(keys.tolist())) == 8
    assert (keys >> 32 == 3).all()
    assert keys[0] > 3 << 32


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_highest_are_exact_in_any_order_of_arrival(count):
    rng = np.random.default_rng(6)
    scores = np.round(rng.normal(size=900), 2).astype(np.float32)
    highest = Highest(count)
    for part in np.array_split(scores, 31):
        highest.add(part[part >= highest.cutoff])
    assert sorted(highest.values().tolist()) == sorted(scores.tolist())[900 - min(count, 900) :]


def test_what_cannot_be_evaluated_is_said():
    rng = np.random.default_rng(7)
    features, identities = exact_faces(rng, 3, 2)
    strangers = exact_units(rng, 10)
    whole = Distractors(strangers, {"10": 10})
    with pytest.raises(DataError, match="no probe person has two faces"):
        evaluate(Probes(features[::2], identities[::2]), whole)
    with pytest.raises(DataError, match="only noisy faces, such as that of face 2"):
        evaluate(Probes(features, identities, identities == 1), whole)
    with pytest.raises(DataError, match="none is left"):
        evaluate(Probes(features, identities), Distractors(strangers, {"10": 10}, np.ones(10, bool)))
    with pytest.raises(DataError, match="distractor set 0 is empty"):
        evaluate(Probes(features, identities), Distractors(strangers, {"0": 0}))
    with pytest.raises(DataError, match="noise left out no probe person"):
        evaluate(Probes(features, identities, np.arange(6) % 2 == 0), whole)
    for fars, depth in (([0.1], 5), ([], 5), ([1e-4], 0)):
        with pytest.raises(ConfigError):
            evaluate(Probes(features, identities), whole, fars=fars, depth=depth)
    assert megaface.HIGHEST_FAR == 1e-3
