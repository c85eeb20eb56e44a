# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation import templates as module
from fedface_flwr.evaluation.templates import ALL_FLAGS, Faces, Flags, TemplatePairs, pair_scores, template_features


def faces_of(seed: int, count: int = 300, templates: int = 40) -> tuple[np.ndarray, np.ndarray, Faces]:
    rng = np.random.default_rng(seed)
    template = rng.choice(rng.permutation(5 * templates)[:templates], count)
    # Few media numbers, so that several templates share one: a media is pooled in each template on its own.
    faces = Faces(template, rng.integers(0, 9, count), rng.uniform(0.1, 1, count))
    plain, mirrored = (rng.normal(0, 3, (count, 7)).astype(np.float32) for _ in range(2))
    return plain, mirrored, faces


def slow_features(plain: np.ndarray, mirrored: np.ndarray, faces: Faces, flags: Flags) -> dict[int, list[float]]:
    """Template features by plain loops over Python floats."""
    members: dict[int, dict[int, list[list[float]]]] = {}
    for face in range(len(plain)):
        vector = [float(x) for x in plain[face]]
        if flags.flip:
            vector = [x + float(y) for x, y in zip(vector, mirrored[face], strict=True)]
        if not flags.norm:
            norm = math.sqrt(math.fsum(x * x for x in vector))
            vector = [x / norm for x in vector]
        if flags.detector:
            vector = [x * float(faces.detector[face]) for x in vector]
        by_media = members.setdefault(int(faces.template[face]), {})
        by_media.setdefault(int(faces.media[face]), []).append(vector)
    pooled = {}
    for template, by_media in members.items():
        means = [
            [math.fsum(axis) / len(vectors) for axis in zip(*vectors, strict=True)] for vectors in by_media.values()
        ]
        total = [math.fsum(axis) for axis in zip(*means, strict=True)]
        norm = math.sqrt(math.fsum(x * x for x in total))
        pooled[template] = [x / norm for x in total]
    return pooled


@pytest.mark.parametrize("at_once", [1, 16, 128])
@pytest.mark.parametrize("seed", range(3))
def test_all_flags_agree_with_plain_loops(seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FACES_AT_ONCE", at_once)
    plain, mirrored, faces = faces_of(seed)
    ids, features = template_features(plain, mirrored, faces, ALL_FLAGS)
    assert list(features) == list(ALL_FLAGS)
    for flags in ALL_FLAGS:
        slow = slow_features(plain, mirrored, faces, flags)
        assert ids.tolist() == sorted(slow)
        np.testing.assert_allclose(features[flags], [slow[template] for template in ids.tolist()], rtol=0, atol=1e-13)


def test_flags_by_hand() -> None:
    # Template 5: a video of two frames and a photo; template 3: one photo.
    plain = np.array([[3.0, 0], [0, 4], [0, 1], [2, 0]])
    mirrored = np.array([[0.0, 3], [4, 0], [0, 1], [0, 0]])
    faces = Faces(np.array([5, 5, 5, 3]), np.array([1, 1, 2, 1]), np.array([1.0, 0.5, 0.25, 0.1]))
    ids, features = template_features(plain, mirrored, faces, ALL_FLAGS)
    assert ids.tolist() == [3, 5]
    sums = {
        "N1D0F0": (1.5, 2 + 1),  # (3, 0) and (0, 4), averaged, and (0, 1)
        "N1D1F0": (1.5, 1 + 0.25),  # (3, 0) and (0, 2), averaged, and (0, 0.25)
        "N0D0F0": (0.5, 0.5 + 1),
        "N0D1F0": (0.5, 0.25 + 0.25),
        "N1D0F1": (3.5, 3.5 + 2),  # (3, 3) and (4, 4), averaged, and (0, 2)
        "N0D1F1": (0.75 * math.sqrt(0.5), 0.75 * math.sqrt(0.5) + 0.25),
    }
    for name, (x, y) in sums.items():
        norm = math.hypot(x, y)
        np.testing.assert_allclose(features[Flags.parse(name)], [[1, 0], [x / norm, y / norm]], atol=1e-15)


def test_detector_score_still_counts_when_norms_are_divided_out() -> None:
    plain, mirrored, faces = faces_of(0)
    _, features = template_features(plain, mirrored, faces, ALL_FLAGS)
    difference = features[Flags.parse("N0D1F0")] - features[Flags.parse("N0D0F0")]
    assert np.abs(difference).max() > 0.01


def test_order_of_faces_does_not_matter() -> None:
    plain, mirrored, faces = faces_of(1)
    order = np.random.default_rng(0).permutation(len(plain))
    shuffled = Faces(faces.template[order], faces.media[order], faces.detector[order])
    ids, features = template_features(plain, mirrored, faces, ALL_FLAGS)
    again, others = template_features(plain[order], mirrored[order], shuffled, ALL_FLAGS)
    np.testing.assert_array_equal(ids, again)
    for flags in ALL_FLAGS:
        np.testing.assert_allclose(features[flags], others[flags], atol=1e-13)


def test_halves_of_a_memory_map_will_do(tmp_path) -> None:
    plain, mirrored, faces = faces_of(2)
    np.save(tmp_path / "both.npy", np.hstack([plain, mirrored]))
    both = np.load(tmp_path / "both.npy", mmap_mode="r")
    _, mapped = template_features(both[:, :7], both[:, 7:], faces, ALL_FLAGS)
    _, held = template_features(plain, mirrored, faces, ALL_FLAGS)
    for flags in ALL_FLAGS:
        np.testing.assert_array_equal(mapped[flags], held[flags])


def test_faces_without_weight_leave_a_template_of_zero() -> None:
    faces = Faces(np.array([1, 2]), np.array([1, 1]), np.array([0.0, 1.0]))
    _, features = template_features(np.ones((2, 4)), None, faces, [Flags.parse("N1D1F0")])
    np.testing.assert_array_equal(features[Flags.parse("N1D1F0")], [[0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_unusable_features_name_the_face(bad: float) -> None:
    plain, mirrored, faces = faces_of(0)
    plain[123] = bad
    with pytest.raises(DataError, match="face 123"):
        template_features(plain, mirrored, faces, [Flags.parse("N0D0F0")])


def test_what_does_not_fit_is_an_error() -> None:
    plain, mirrored, faces = faces_of(0)
    with pytest.raises(ConfigError, match="F1 needs"):
        template_features(plain, None, faces, ALL_FLAGS)
    with pytest.raises(DataError, match="300 faces with templates, but 299 with features"):
        template_features(plain[1:], mirrored, faces, ALL_FLAGS)
    with pytest.raises(DataError, match="300 faces with templates, but 299 with mirrored features"):
        template_features(plain, mirrored[1:], faces, ALL_FLAGS)
    with pytest.raises(DataError, match="do not match mirrored ones"):
        template_features(plain, mirrored[:, 1:], faces, ALL_FLAGS)
    for name in ("N2D1F1", "n1d1f1", "N1D1F1 ", ""):
        with pytest.raises(ConfigError, match="not of the form N1D1F1"):
            Flags.parse(name)


def test_the_published_combination_comes_first() -> None:
    assert [flags.name for flags in ALL_FLAGS] == [f"N{n}D{d}F{f}" for n in "10" for d in "10" for f in "10"]
    assert all(Flags.parse(flags.name) == flags for flags in ALL_FLAGS)


@pytest.mark.parametrize("products_per_pair", [0, 50, 1 << 40])
@pytest.mark.parametrize("rows", [1, 3, 256])
def test_scores_are_inner_products_either_way(rows: int, products_per_pair: int, monkeypatch) -> None:
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", rows)
    monkeypatch.setattr(module, "_PRODUCTS_PER_PAIR", products_per_pair)
    rng = np.random.default_rng(rows)
    features = rng.normal(size=(30, 12))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    first, second = rng.integers(0, 8, 500), rng.integers(4, 30, 500)
    pairs = TemplatePairs.of(first, second)
    couples = sorted(zip(first.tolist(), second.tolist(), strict=True))
    assert list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)) == couples
    slow = [math.fsum(float(x) * float(y) for x, y in zip(features[a], features[b], strict=True)) for a, b in couples]
    np.testing.assert_allclose(pair_scores(features, pairs), slow, rtol=0, atol=1e-14)


def test_no_pairs_have_no_scores() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert pair_scores(np.ones((3, 4)), TemplatePairs.of(nothing, nothing)).shape == (0,)
