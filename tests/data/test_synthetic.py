# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from fedface_flwr.data import drawing
from fedface_flwr.data.sets import ImageSet
from fedface_flwr.data.synthetic import FOLDS, SyntheticFaces, pair_identities, synthetic_pairs
from fedface_flwr.data.traits import FACE_RANGES, SHOT_RANGES, Style
from fedface_flwr.errors import ConfigError

Array = npt.NDArray[np.float64]
PLAIN = Style(
    cast=np.ones(3, np.float32),
    contrast=1.0,
    lift=0.0,
    blur=0.0,
    noise=0.0,
    backdrop=np.full(3, 0.5, np.float32),
    zoom=1.0,
    border=0.0,
)


def faces(
    name: str = "alpha",
    *,
    identities: int = 12,
    each: int = 5,
    size: int = 40,
    seed: int = 3,
    domain: int = 0,
):
    return SyntheticFaces(name, identities=identities, images_per_identity=each, size=size, seed=seed, domain=domain)


def random_traits(count: int, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random people under even light in front of an even background, nothing in the way."""
    rng = np.random.default_rng(seed)
    traits = {
        key: rng.uniform(low, high, (count, 1, 1)).astype(np.float32)
        for key, (low, high) in (FACE_RANGES | SHOT_RANGES).items()
    }
    for key in ("light_x", "light_y", "backdrop_slope"):
        traits[key] = np.zeros((count, 1, 1), np.float32)
    traits["cover"] = np.full((count, 1, 1), -1.0, np.float32)
    return traits


def best_accuracy(distance: Array, same: npt.NDArray[np.bool_]) -> float:
    """The accuracy of the best single threshold, chosen on the pairs themselves: an upper bound."""
    return max(float(np.mean((distance <= threshold) == same)) for threshold in distance)


def pair_distance(images: npt.NDArray[np.uint8]) -> Array:
    flat = images.reshape(len(images), -1).astype(np.float64)
    return np.asarray(((flat[::2] - flat[1::2]) ** 2).sum(axis=1))


def test_the_set_has_the_shape_and_type_that_it_promises() -> None:
    silo: ImageSet = faces()
    images = silo.images(np.arange(7))
    assert images.shape == (7, 3, 40, 40)
    assert images.dtype == np.uint8
    assert silo.labels.dtype == np.int64
    assert silo.labels.tolist() == [identity for identity in range(12) for _ in range(5)]
    assert silo.num_identities == 12
    assert silo.images(np.empty(0, np.int64)).shape == (0, 3, 40, 40)
    # Faces fill the range rather than a corner of it.
    assert images.std(axis=(1, 2, 3)).min() > 15


@pytest.mark.parametrize("domain", [0, 1, 2])
def test_an_image_does_not_depend_on_its_batch(domain: int) -> None:
    silo = faces(domain=domain, size=33)
    everything = silo.images(np.arange(60))
    order = np.random.default_rng(0).permutation(60)
    np.testing.assert_array_equal(silo.images(order), everything[order])
    for index in (0, 31, 59):
        np.testing.assert_array_equal(silo.images(np.array([index]))[0], everything[index])
    np.testing.assert_array_equal(silo.images(np.array([4, 4, 4])), everything[[4, 4, 4]])


def test_an_image_does_not_depend_on_the_size_of_the_set() -> None:
    small, large = faces(identities=3, each=2), faces(identities=9, each=4)
    np.testing.assert_array_equal(small.images(np.array([2, 3])), large.images(np.array([4, 5])))


def test_another_process_draws_the_same_images() -> None:
    program = (
        "import hashlib, numpy as np; from fedface_flwr.data.synthetic import SyntheticFaces as S;"
        "s = S('alpha', identities=12, images_per_identity=5, size=40, seed=3, domain=0);"
        "print(hashlib.sha256(s.images(np.arange(60)).tobytes()).hexdigest())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = hashlib.sha256(faces().images(np.arange(60)).tobytes()).hexdigest()
    assert answer.stdout.strip() == here


@pytest.mark.parametrize("change", [{"name": "beta"}, {"seed": 4}, {"domain": 3}])
def test_other_names_seeds_and_domains_have_other_people(change: dict[str, object]) -> None:
    here, there = (
        silo.facial_parameters(np.arange(60))
        for silo in (faces(), faces(**change))  # type: ignore[arg-type]
    )
    own = np.linalg.norm(here[0::5] - here[1::5], axis=1)
    across = np.linalg.norm(here[:, None] - there[None], axis=2)
    # Two photographs of one person are nearer than the nearest two people of different sets.
    assert own.max() < across.min()


def test_people_are_apart_in_parameters_but_not_in_pixels() -> None:
    silo = faces(identities=60, each=4, size=56)
    parameters = silo.facial_parameters(np.arange(240))
    distance = np.linalg.norm(parameters[:, None] - parameters[None], axis=2)
    same = silo.labels[:, None] == silo.labels[None]
    assert distance[same].max() < distance[~same].min()

    pack = synthetic_pairs("delta", pairs=600, identities=100, size=56, seed=0, domain=0)
    assert 0.52 < best_accuracy(pair_distance(pack.images), pack.same) < 0.68


def style_statistics(domain: int, seed: int) -> Array:
    """Mean colour, spread of colour, fine grain and dark margin of 120 images."""
    images = faces(identities=40, each=3, size=40, seed=seed, domain=domain).images(np.arange(120)) / 255.0
    grain = np.abs(np.diff(images[..., 5:35, 5:35], axis=-1)).mean()
    margin = images[..., :2, :].mean()
    return np.concatenate([images.mean(axis=(0, 2, 3)), images.std(axis=(0, 2, 3)), [grain, margin]])


def test_domains_differ_more_than_samples_of_one_domain() -> None:
    first, second = (np.stack([style_statistics(domain, seed) for domain in range(5)]) for seed in (0, 1))
    within = np.linalg.norm(first - second, axis=1)
    for one, other in combinations(range(5), 2):
        assert np.linalg.norm(first[one] - second[other]) > 1.5 * max(within[one], within[other])


def test_tight_crops_have_black_margins() -> None:
    images = faces(domain=1, size=56).images(np.arange(20))
    margin = np.ones((56, 56), bool)
    margin[4:-4, 4:-4] = False
    assert images[..., margin].max() == 0
    assert images[..., ~margin].mean() > 30


def test_folds_are_balanced_and_share_no_one() -> None:
    pack = synthetic_pairs("delta", pairs=60, identities=23, size=24, seed=1, domain=2)
    who = pair_identities("delta", pairs=60, identities=23, seed=1, domain=2)
    assert len(pack) == 60
    assert pack.images.shape == (120, 3, 24, 24)
    assert pack.images.dtype == np.uint8
    assert pack.same.tolist() == ([True] * 3 + [False] * 3) * FOLDS
    np.testing.assert_array_equal(who[:, 0] == who[:, 1], pack.same)
    people = [set(fold.ravel().tolist()) for fold in np.split(who, FOLDS)]
    for one, other in combinations(people, 2):
        assert not one & other
    assert set.union(*people) <= set(range(23))
    assert len({image.tobytes() for image in pack.images}) == 120


def test_packs_are_deterministic_and_unlike_each_other() -> None:
    def pack(name: str = "delta", seed: int = 0, domain: int = 0) -> npt.NDArray[np.uint8]:
        return synthetic_pairs(name, pairs=20, identities=20, size=24, seed=seed, domain=domain).images

    np.testing.assert_array_equal(pack(), pack())
    for other in (pack("epsilon"), pack(seed=1), pack(domain=3)):
        assert not {image.tobytes() for image in pack()} & {image.tobytes() for image in other}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pairs": 30}, "pairs must be a multiple of 20"),
        ({"pairs": 0}, "pairs must be at least 1, got 0"),
        ({"identities": 19}, "identities must be at least 20, got 19"),
        ({"size": 15}, "size must be at least 16"),
        ({"domain": -1}, "domain must be at least 0"),
    ],
)
def test_impossible_packs_are_refused(change: dict[str, int], message: str) -> None:
    wish = {"pairs": 20, "identities": 20, "size": 24, "seed": 0, "domain": 0} | change
    with pytest.raises(ConfigError, match=f"'delta': {message}"):
        synthetic_pairs("delta", **wish)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identities": 0}, "identities must be at least 1"),
        ({"each": 0}, "images_per_identity must be at least 1"),
        ({"size": 8}, "size must be at least 16, got 8"),
        ({"domain": -2}, "domain must be at least 0, got -2"),
    ],
)
def test_impossible_sets_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=f"'alpha': {message}"):
        faces(**change)  # type: ignore[arg-type]


def test_mirrored_traits_draw_the_mirrored_image() -> None:
    traits = random_traits(40)
    mirrored = {
        key: -value if key in ("roll", "yaw", "shift_x", "hair_part", "mole_x") else value
        for key, value in traits.items()
    }
    image, mirror = (drawing.draw(each, PLAIN, 40).astype(int) for each in (traits, mirrored))
    assert np.abs(image - mirror[..., ::-1]).max() <= 1
    assert np.abs(image - mirror).max() > 50


def test_shifted_traits_draw_the_shifted_image() -> None:
    traits = random_traits(20)
    shift = np.float32(2.0 / 40)
    shifted = traits | {"shift_x": traits["shift_x"] + 3 * shift, "shift_y": traits["shift_y"] - 2 * shift}
    image, moved = (drawing.draw(each, PLAIN, 40).astype(int) for each in (traits, shifted))
    assert np.abs(image[..., 2:, :-3] - moved[..., :-2, 3:]).max() <= 1


def test_the_boxes_that_save_time_clip_no_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    traits = random_traits(300)
    boxed = drawing.draw(traits, PLAIN, 48)
    for box in ("_LOWER_FACE", "_UPPER_FACE"):
        monkeypatch.setattr(drawing, box, (9.0, -9.0, 9.0))
    assert np.abs(boxed.astype(int) - drawing.draw(traits, PLAIN, 48)).max() <= 1


def test_a_frontal_face_has_its_colours_where_its_parameters_say() -> None:
    traits = random_traits(1)
    neutral = {"roll": 0, "yaw": 0, "pitch": 0, "shift_x": 0, "shift_y": 0, "zoom": 1, "gain": 1, "gamma": 0}
    neutral |= {"warmth": 0, "grey": -1, "smile": 0, "mouth_open": -0.1, "eye_open": 1}
    neutral |= {
        "eye_x": 0.3,
        "eye_y": -0.1,
        "eye_height": 0.1,
        "iris_radius": 0.07,
        "glasses": -1,
        "beard": -1,
    }
    neutral |= {"hairline": -0.6, "hairline_arch": 0, "hair_part": 0, "head_width": 0.7, "head_height": 0.9}
    neutral |= {"skin": 0.25, "hair": 0.25, "mole": -1, "folds": -1, "mouth_y": 0.5, "square": 0}
    for key, value in neutral.items():
        traits[key] = np.full((1, 1, 1), value, np.float32)
    image = drawing.draw(traits, PLAIN, 200)[0]

    def at(x: float, y: float) -> list[int]:
        return image[:, int((y + 1) * 100), int((x + 1) * 100)].tolist()

    # Both pupils are 0.03 of white; 255 * 0.03 rounds to 8.
    assert at(0.3, -0.1) == at(-0.301, -0.1) == [8, 8, 8]
    # Fringe between hairline and crown: the second colour of the hair ramp, (0.3, 0.18, 0.1).
    assert at(0.005, -0.705) == pytest.approx([76.5, 45.9, 25.5], abs=1)
    # Forehead at (0.005, -0.455): the second colour of the skin ramp under the head's shading.
    shade = 1.06 - 0.2 * ((0.005 / 0.7) ** 2 + (0.455 / 0.9) ** 2)
    assert at(0.005, -0.455) == pytest.approx([255 * shade * skin for skin in (0.94, 0.75, 0.6)], abs=1)
    # Closed lips show a dark line: a quarter of the skin's colour.
    assert at(0.005, 0.5) == pytest.approx([0.25 * 255 * skin for skin in (0.94, 0.75, 0.6)], abs=1)
