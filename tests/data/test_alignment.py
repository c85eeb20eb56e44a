# SPDX-License-Identifier: Apache-2.0
import io
import zlib

import numpy as np
import pytest
from PIL import Image

from fedface_flwr.data.alignment import TEMPLATE, align, similarity
from fedface_flwr.data.images import decode_photo
from fedface_flwr.errors import DataError


def umeyama(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The general solution, in any number of dimensions, step by step as in the paper."""
    centre, goal = points.mean(0), target.mean(0)
    covariance = (target - goal).T @ (points - centre) / len(points)
    u, d, vt = np.linalg.svd(covariance)
    sign = np.diag([1, -1 if np.linalg.det(covariance) < 0 else 1])
    rotation = u @ sign @ vt
    scale = np.trace(np.diag(d) @ sign) / ((points - centre) ** 2).sum(1).mean()
    return np.column_stack([scale * rotation, goal - scale * rotation @ centre])


def by_lstsq(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """x' = a x - b y + s, y' = b x + a y + t as ten linear equations in (a, b, s, t)."""
    rows, goals = [], []
    for (x, y), (gx, gy) in zip(points, target, strict=True):
        rows += [[x, -y, 1, 0], [y, x, 0, 1]]
        goals += [gx, gy]
    a, b, s, t = np.linalg.lstsq(np.array(rows), np.array(goals), rcond=None)[0]
    return np.array([[a, -b, s], [b, a, t]])


@pytest.mark.parametrize("seed", range(20))
def test_similarity_is_the_least_squares_solution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    angle, scale = rng.uniform(-3, 3), rng.uniform(0.2, 8)
    rotation = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = TEMPLATE @ rotation.T + rng.uniform(-50, 300, 2) + rng.normal(0, 3, (5, 2))
    matrix = similarity(points, TEMPLATE)
    np.testing.assert_allclose(matrix, umeyama(points, TEMPLATE), atol=1e-9)
    np.testing.assert_allclose(matrix, by_lstsq(points, TEMPLATE), atol=1e-9)


def test_similarity_undoes_a_known_transform_exactly() -> None:
    # A quarter turn, twice as large, moved by (10, 20): (x, y) -> (10 - 2y, 20 + 2x).
    points = np.column_stack([10 - 2 * TEMPLATE[:, 1], 20 + 2 * TEMPLATE[:, 0]])
    np.testing.assert_allclose(similarity(points, TEMPLATE), [[0, 0.5, -10], [-0.5, 0, 5]], atol=1e-12)


def test_points_in_place_leave_the_picture_as_it_is() -> None:
    image = np.random.default_rng(0).integers(0, 256, (112, 112, 3), dtype=np.uint8)
    np.testing.assert_array_equal(align(image, TEMPLATE, 112), image.transpose(2, 0, 1))


def test_a_shift_by_whole_pixels_moves_pixels_and_fills_with_black() -> None:
    image = np.random.default_rng(0).integers(1, 256, (112, 112, 3), dtype=np.uint8)
    aligned = align(image, TEMPLATE - (30, -7), 112)
    expected = np.zeros((112, 112, 3), dtype=np.uint8)
    expected[:105, 30:] = image[7:, :82]
    np.testing.assert_array_equal(aligned, expected.transpose(2, 0, 1))


def test_half_pixels_are_the_mean_of_neighbours() -> None:
    image = np.random.default_rng(0).integers(0, 256, (112, 112, 3), dtype=np.uint8)
    aligned = align(image, TEMPLATE + np.array([0.5, 0]), 112).transpose(1, 2, 0).astype(int)
    mean = (image[:, :-1].astype(int) + image[:, 1:]) / 2
    assert np.abs(aligned[:, :-1] - mean).max() <= 0.5


@pytest.mark.parametrize("size", [56, 224])
def test_another_size_scales_the_face(size: int) -> None:
    ramp = np.broadcast_to(np.arange(240, dtype=np.uint8)[None, :, None], (240, 240, 3))
    aligned = align(ramp, TEMPLATE + 60, size)
    assert aligned.shape == (3, size, size)
    # Column c of the result lies at x = 112 c / size + 60 of the picture, whose values are x.
    np.testing.assert_allclose(aligned[0, size // 2], 60 + 112 * np.arange(size) / size, atol=0.55)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (np.full((5, 2), 31.0), "all the same"),
        (np.zeros((5, 2)), "all the same"),
        (np.full((5, 2), np.nan), "not finite"),
        (np.full((5, 2), 1e200), "beyond any picture"),
        (np.where(np.eye(5, 2), np.inf, 1.0), "not finite"),
        (TEMPLATE[:4], r"shape \(4, 2\)"),
        (np.array([[1, 0], [-1, 0], [0, 0], [0, 0], [0, 0]]), "unlike a face"),
    ],
)
def test_points_that_fix_nothing_are_an_error(points: np.ndarray, why: str) -> None:
    # The last: what is left of a pair of eyes, turned by every angle with equal cost.
    target = np.array([[0, 0], [0, 0], [0, 0], [1, 0], [-1, 0]]) if why == "unlike a face" else TEMPLATE
    with pytest.raises(DataError, match=why):
        similarity(points, target)


def test_points_far_outside_give_a_black_face() -> None:
    image = np.full((50, 60, 3), 200, dtype=np.uint8)
    for offset in (1e4, 9e6):
        assert not align(image, TEMPLATE + offset, 112).any()


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def test_photos_need_not_be_square() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_photo(encoded(Image.fromarray(pixels)), "here"), pixels)


def test_photos_are_turned_upright() -> None:
    pixels = np.zeros((16, 32, 3), dtype=np.uint8)
    pixels[:8] = 255
    picture = Image.fromarray(pixels)
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise: what was on top is at the right
    upright = decode_photo(encoded(picture, "JPEG", exif=exif.tobytes()), "here")
    assert upright.shape == (32, 16, 3)
    assert upright[:, :6].max() < 30
    assert upright[:, 10:].min() > 225


def test_a_photo_that_declares_too_much_is_refused_by_its_header() -> None:
    data = bytearray(encoded(Image.new("L", (1, 1))))
    data[16:24] = (9_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(DataError, match="here: the image is 9000x9000, above"):
        decode_photo(bytes(data), "here")
    with pytest.raises(DataError, match="here: the image cannot be decoded"):
        decode_photo(b"nothing", "here")
