# SPDX-License-Identifier: Apache-2.0
"""Identification against plain loops, numbers worked by hand, and the rules of public scripts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation import identification as ident
from fedface_flwr.evaluation import search as galleries


def clustered(rng, identities, each, dim=16, noise=1.0):
    """Embeddings around one centre an identity, not normalised, with the identities of the rows."""
    centres = rng.normal(size=(identities, dim))
    ids = np.repeat(np.arange(identities), each)
    rows = centres[ids] + noise * rng.normal(size=(len(ids), dim))
    return rows * rng.uniform(0.5, 3, size=(len(ids), 1)), ids


def loop_search(probes, probe_ids, gallery, gallery_ids):
    """One probe at a time, one gallery entry at a time."""
    found = []
    for probe, own in zip(probes, probe_ids, strict=True):
        scores = [float(probe @ g) / math.sqrt((probe @ probe) * (g @ g)) for g in gallery]
        mates = [s for s, other in zip(scores, gallery_ids, strict=True) if own == other]
        strangers = [s for s, other in zip(scores, gallery_ids, strict=True) if own != other]
        mate = max(mates, default=-math.inf)
        rank = 1 + sum(s >= mate for s in strangers) if mates else 0
        precisions = []
        for place, hit in enumerate(sorted(mates, reverse=True), start=1):
            precisions.append(place / (place + sum(s >= hit for s in strangers)))
        average = sum(precisions) / len(precisions) if mates else math.nan
        found.append((rank, mate, max(strangers, default=-math.inf), average, trapezoid(mates, strangers), strangers))
    return found


def trapezoid(mates, strangers):
    """Walk down the ranking and add up the area under precision over recall, as TinyFace's evaluation does."""
    if not mates:
        return math.nan
    ranking = sorted([(-s, 1) for s in mates] + [(-s, 0) for s in strangers])
    area, recall, precision, hits = 0.0, 0.0, 1.0, 0
    for place, (_, hit) in enumerate(ranking, start=1):
        hits += hit
        area += (hits / len(mates) - recall) * (precision + hits / place) / 2
        recall, precision = hits / len(mates), hits / place
    return area


@pytest.mark.parametrize("block_bytes", [1, 5_000, 1 << 20])
def test_search_agrees_with_plain_loops(block_bytes):
    rng = np.random.default_rng(0)
    rows, ids = clustered(rng, 23, 5)
    order = rng.permutation(len(rows))
    probes, probe_ids = rows[order[:40]], ids[order[:40]]
    gallery, gallery_ids = rows[order[40:]], np.where(ids[order[40:]] < 4, -1, ids[order[40:]])
    found = galleries.search(
        probes, probe_ids, gallery, gallery_ids, average_precision=True, strongest=37, block_bytes=block_bytes
    )
    expected = loop_search(probes, probe_ids, gallery, gallery_ids)
    ranks, mates, others, precisions, trapezoids, strangers = zip(*expected, strict=True)
    assert found.rank.tolist() == list(ranks)
    assert 0 in ranks
    assert max(ranks) > 2
    np.testing.assert_allclose(found.mate, mates, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.other, others, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.precision, precisions, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.trapezoid, trapezoids, rtol=0, atol=1e-12)
    assert ident.mean_average_precision(found) == pytest.approx(np.nanmean(precisions), abs=1e-12)
    assert ident.mean_average_precision(found, "trapezoidal") == pytest.approx(np.nanmean(trapezoids), abs=1e-12)
    pooled = sorted((s for scores in strangers for s in scores), reverse=True)[:37]
    np.testing.assert_allclose(found.strongest, pooled, rtol=0, atol=1e-12)


def test_the_same_inputs_give_the_same_bits():
    rng = np.random.default_rng(1)
    rows, ids = clustered(rng, 30, 4)
    rows = rows.astype(np.float32)
    first, second = (galleries.search(rows[::2], ids[::2], rows[1::2], ids[1::2], strongest=9) for _ in range(2))
    for name in ("rank", "mate", "other", "strongest"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


def test_ties_count_against_the_probe():
    """A network that maps all faces to one point finds nobody, whatever the gallery's order."""
    same = np.ones((6, 4))
    found = galleries.search(same[:1], np.array([2]), same, np.arange(6))
    assert found.rank.tolist() == [6]
    assert ident.rank_rate(found, 5) == 0.0
    assert ident.rank_rate(found, 6) == 1.0


def test_identities_may_be_names_and_a_gallery_entry_of_the_probes_own_identity_is_never_a_stranger():
    axes = np.eye(3)
    found = galleries.search(axes[:1], np.array(["ann"]), axes, np.array(["ann", "bob", "ann"]))
    assert found.rank.tolist() == [1]
    assert found.mate.tolist() == [1.0]
    assert found.other.tolist() == [0.0]


def hand_made(rank, mate, other, strongest=()):
    array = np.array
    unasked = np.full(len(rank), np.nan)
    return galleries.Search(
        array(rank), array(mate, float), array(other, float), unasked, unasked, array(strongest, float)
    )


def test_cmc_by_hand():
    found = hand_made([1, 3, 0, 2, 9], [0.9, 0.5, -np.inf, 0.4, 0.1], [0.1, 0.6, 0.3, 0.5, 0.8])
    assert ident.cmc(found, 4).tolist() == [0.25, 0.5, 0.75, 0.75]
    assert ident.rank_rate(found, 9) == 1.0


def test_open_set_rates_by_hand():
    """Four mated probes, four non-mated ones with best scores 0.8, 0.7, 0.7, 0.1."""
    found = hand_made(
        [1, 1, 2, 1, 0, 0, 0, 0],
        [0.9, 0.75, 0.95, 0.7, -np.inf, -np.inf, -np.inf, -np.inf],
        [0.1, 0.1, 0.96, 0.1, 0.8, 0.7, 0.7, 0.1],
    )
    none, one, two, three = ident.tpir_at_fpir(found, [0.24, 0.25, 0.5, 0.75])
    # Nobody may pass: above 0.8 lies only the first mate, for the third is at rank 2.
    assert none == ident.OpenSet(0.24, 0.8, 0.0, 0.25)
    # One may pass: the second search stays out, and its tie with it.
    assert one == ident.OpenSet(0.25, 0.7, 0.25, 0.5)
    # Two may pass, but a threshold which lets the second in lets the third in too.
    assert two == ident.OpenSet(0.5, 0.7, 0.25, 0.5)
    assert three == ident.OpenSet(0.75, 0.1, 0.75, 0.75)
    # The rounded rule takes search round(4 * 0.5) = 2 itself in, and its tie: FPIR 0.75 where 0.5 was asked for.
    assert ident.tpir_at_fpir_rounded(found, [0.5]) == (ident.OpenSet(0.5, 0.7, 0.75, 0.75),)
    assert ident.tpir_at_fpir_rounded(found, [0.1])[0].threshold == pytest.approx(0.80001)


def test_the_curve_of_open_set_rates_by_hand():
    """Two may not pass without the third; the rates are those of the test above, and that of nobody."""
    found = hand_made(
        [1, 1, 2, 1, 0, 0, 0, 0],
        [0.9, 0.75, 0.95, 0.7, -np.inf, -np.inf, -np.inf, -np.inf],
        [0.1, 0.1, 0.96, 0.1, 0.8, 0.7, 0.7, 0.1],
    )
    fpir, tpir = ident.tpir_curve(found)
    assert (fpir.tolist(), tpir.tolist()) == ([0.0, 0.25, 0.75], [0.25, 0.5, 0.75])
    one = hand_made([1, 0], [0.5, -np.inf], [0.1, 0.4])
    assert [part.tolist() for part in ident.tpir_curve(one)] == [[0.0], [1.0]]


def test_a_curve_of_many_searches_is_thinned_and_each_point_is_one_of_the_definition():
    rng = np.random.default_rng(4)
    best, mates = rng.normal(size=5000), rng.normal(1, 1, size=300)
    found = hand_made(
        np.r_[np.ones(300, int), np.zeros(5000, int)], np.r_[mates, np.full(5000, -np.inf)], np.r_[mates * 0, best]
    )
    fpir, tpir = ident.tpir_curve(found, 50)
    assert 30 < len(fpir) <= 51
    assert (np.diff(fpir) > 0).all()
    assert (fpir[0], fpir[1], fpir[-1]) == (0, 1 / 5000, 4999 / 5000)
    for rate, share in zip(fpir, tpir, strict=True):
        lowest = np.sort(best)[::-1][round(rate * 5000)]
        assert share == np.mean(mates > lowest)


def test_open_set_threshold_is_the_lowest_that_keeps_the_target():
    rng = np.random.default_rng(2)
    best = np.round(rng.normal(size=200), 1)
    mates = np.round(rng.normal(1, 1, size=300), 1)
    rank = np.r_[rng.integers(1, 3, size=300), np.zeros(200, int)]
    found = hand_made(rank, np.r_[mates, np.full(200, -np.inf)], np.r_[np.zeros(300), best])
    for target in (0.0, 0.004, 0.01, 0.1, 0.5):
        point = ident.tpir_at_fpir(found, [target])[0]
        # Every real threshold that matters: just above each score.
        tries = [(np.mean(best > t), np.mean((rank[:300] == 1) & (mates > t))) for t in np.r_[best, mates, -9.0]]
        assert point.tpir == max(tpir for fpir, tpir in tries if fpir <= target)
        assert point.fpir <= target


def public_pooled(scores, own, rates):
    """The rule of the public IJB 1:N scripts, written down plainly."""
    positive = scores[np.arange(len(scores)), own].copy()
    negatives = sorted((s for row, m in zip(scores, own, strict=True) for s in np.delete(row, m)), reverse=True)
    result = []
    for rate in rates:
        threshold = negatives[math.ceil(len(scores) * rate) - 1]
        result.append((threshold, np.sum(positive > threshold) / len(scores)))
    return result


def test_pooled_rule_agrees_with_the_public_one():
    rng = np.random.default_rng(3)
    rows, ids = clustered(rng, 60, 2, noise=1.2)
    probes, gallery = rows[::2], rows[1::2]
    rates = (0.01, 0.1, 0.33)
    found = galleries.search(
        probes, ids[::2], gallery, ids[1::2], strongest=ident.pooled_place(60, 0.33), block_bytes=4000
    )
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probes, gallery)]
    for point, (threshold, tpir) in zip(
        ident.tpir_at_fpir_pooled(found, rates), public_pooled(unit[0] @ unit[1].T, np.arange(60), rates), strict=True
    ):
        assert point.threshold == pytest.approx(threshold, abs=1e-12)
        assert point.tpir == tpir
    with pytest.raises(DataError, match="30 strongest scores"):
        ident.tpir_at_fpir_pooled(found, [0.5])


def test_pooled_rule_counts_a_mate_behind_a_stranger():
    """Of four probes the first has a stranger at rank 1; the second highest score of strangers is 0.7."""
    found = hand_made([2, 1, 1, 1], [0.8, 0.6, 0.6, 0.6], [0.9, 0.5, 0.5, 0.5], [0.9, 0.7, 0.5])
    assert ident.tpir_at_fpir_pooled(found, [0.5]) == (ident.OpenSet(0.5, 0.7, 0.25, 0.25),)


def test_joined_searches_pool_probes_and_strangers():
    first = hand_made([1, 2], [0.5, 0.4], [0.2, 0.6], [0.6, 0.2])
    second = hand_made([0], [-np.inf], [0.3], [0.3])
    joined = galleries.join_searches([first, second])
    assert joined.rank.tolist() == [1, 2, 0]
    assert joined.strongest.tolist() == [0.6, 0.3, 0.2]
    assert ident.rank_rate(joined, 1) == 0.5


def test_what_cannot_be_searched_is_said():
    rows, ids = np.eye(3), np.arange(3)
    with pytest.raises(DataError, match=r"gallery: 1 of 3 embeddings are zero .* number 1"):
        galleries.search(rows, ids, rows * [[1], [0], [1]], ids)
    with pytest.raises(DataError, match="3 dimensions and the gallery 2"):
        galleries.search(rows, ids, rows[:, :2], ids)
    with pytest.raises(DataError, match=r"identities of shape \(2,\)"):
        galleries.search(rows, ids[:2], rows, ids)
    with pytest.raises(DataError, match="gallery: embeddings of shape"):
        galleries.search(rows, ids, rows[:0], ids[:0])
    alone = galleries.search(rows, ids, rows, ids + 3)
    with pytest.raises(DataError, match="no probe has a mate"):
        ident.cmc(alone, 5)
    with pytest.raises(DataError, match="probes without"):
        ident.tpir_at_fpir(galleries.search(rows, ids, rows, ids), [0.1])
    with pytest.raises(DataError, match="3 probes without a mate"):
        ident.tpir_at_fpir_pooled(alone, [0.1])
    with pytest.raises(ConfigError, match="asked for it"):
        ident.mean_average_precision(galleries.search(rows, ids, rows, ids))
    mixed = galleries.search(rows, np.array([0, 1, 7]), rows, ids)
    with pytest.raises(ConfigError, match="in \\[0, 1\\)"):
        ident.tpir_at_fpir(mixed, [1.0])
