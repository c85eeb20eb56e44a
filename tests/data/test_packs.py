# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers import edited, edits, jpeg, pixels, png

from fedface_flwr.data.packs import read_pack
from fedface_flwr.errors import DataError

FACES = np.stack([pixels(seed) for seed in range(6)])
ENCODED = [png(face) for face in FACES]
SAME = [True, False, True]


@pytest.fixture
def write(tmp_path):
    def write_pack(content: object, protocol: int = 4) -> Path:
        path = tmp_path / "toy.bin"
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
        return path

    return write_pack


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("labels", [bool, int, np.bool_])
@pytest.mark.parametrize(
    "image",
    [
        bytes,
        lambda data: np.frombuffer(data, np.uint8),
        lambda data: np.frombuffer(data, np.uint8)[:, None].copy(),
    ],
    ids=["bytes", "array", "column"],
)
def test_every_way_of_writing_a_pack(write, image, labels, protocol):
    pack = read_pack(write(([image(data) for data in ENCODED], [labels(value) for value in SAME]), protocol), 8)
    assert pack.name == "toy"
    assert pack.same.dtype == np.bool_
    assert pack.same.tolist() == SAME
    np.testing.assert_array_equal(pack.images, FACES)


def python_2_pack(protocol: int) -> bytes:
    """A pack's bytes as Python 2's pickle writes them, where an image is a string and not bytes."""
    if protocol == 0:
        images = b"".join(b"S" + repr(data).removeprefix("b").encode() + b"\np1\na" for data in ENCODED)
        return b"((lp0\n" + images + b"(lp9\n" + b"".join(b"I%02d\na" % value for value in SAME) + b"tp10\n."
    images = b"".join(b"T" + len(data).to_bytes(4, "little") + data + b"q\x01" for data in ENCODED)
    labels = b"".join(b"\x88" if value else b"\x89" for value in SAME)
    return b"\x80\x02]q\x00(" + images + b"e]q\x02(" + labels + b"e\x86q\x03."


@pytest.mark.parametrize("protocol", [0, 2])
def test_pack_of_python_2(write, protocol):
    pack = read_pack(write(python_2_pack(protocol)), 8)
    assert pack.same.tolist() == SAME
    np.testing.assert_array_equal(pack.images, FACES)


@pytest.mark.parametrize(("name", "pairs"), [("lfw", 6000), ("age_gap", 1592)])
def test_real_packs(shared_dir, name, pairs):
    path = shared_dir / "faces" / f"{name}.bin"
    chosen = np.array([0, pairs - 1, pairs // 2, pairs // 20])
    pack = read_pack(path, 112, pairs=chosen)
    labels = pickle.loads(path.read_bytes(), encoding="bytes")[1]
    assert (pack.name, len(pack), len(labels), sum(labels)) == (name, 4, pairs, pairs // 2)
    assert pack.same.tolist() == [labels[pair] for pair in chosen]
    assert pack.images.shape == (8, 3, 112, 112)
    with pytest.raises(DataError, match=f"pair {pairs} was asked for"):
        read_pack(path, 112, pairs=np.array([pairs]))


def test_chosen_pairs_come_in_the_order_asked_for(write):
    pack = read_pack(write((ENCODED, SAME)), 8, pairs=np.array([1, 0]))
    assert pack.same.tolist() == [False, True]
    np.testing.assert_array_equal(pack.images, FACES[[2, 3, 0, 1]])


def test_images_of_other_pairs_are_not_decoded(write):
    path = write(([*ENCODED[:4], b"junk", b"junk"], SAME))
    assert len(read_pack(path, 8, pairs=np.array([0, 1]))) == 2
    with pytest.raises(DataError, match=r"toy\.bin: image 4: the image cannot be decoded"):
        read_pack(path, 8)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ([0, 3], r"pair 3 was asked for, but it has pairs 0 to 2"),
        ([-1, 0], r"pair -1 was asked for"),
        ([0.0, 1.0], "pairs must be a row of whole numbers"),
        ([[0, 1]], "pairs must be a row of whole numbers"),
        ([0, 2], "none of the 2 pairs is a differing one"),
        ([1], "none of the 1 pairs is a matching one"),
    ],
)
def test_pairs_that_cannot_be_had(write, pairs, problem):
    with pytest.raises(DataError, match=rf"toy\.bin: {problem}"):
        read_pack(write((ENCODED, SAME)), 8, pairs=np.array(pairs))


GREY_ROWS = np.zeros((8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ((ENCODED[:5], SAME), "5 images, an odd number"),
        ((ENCODED[:4], SAME), "3 labels need 6 images, not 4"),
        (([], []), "the pack holds no pairs"),
        ((ENCODED, [True] * 3), "none of the 3 pairs is a differing one"),
        ((ENCODED, [False] * 3), "none of the 3 pairs is a matching one"),
        ((ENCODED, [True, 2, False]), "the label of pair 1 is"),
        ((ENCODED, [True, False, None]), "the label of pair 2 is"),
        ((ENCODED, [True, False, b"1"]), "the label of pair 2 is"),
        ((tuple(ENCODED), SAME), "not a verification pack"),
        ([ENCODED, SAME, 0], "not a verification pack"),
        (ENCODED, "not a verification pack"),
        (None, "not a verification pack"),
        (([*ENCODED[:5], "text"], SAME), "image 5: str is not an encoded image"),
        (
            ([*ENCODED[:5], GREY_ROWS], SAME),
            r"image 5: an array of shape \(8, 8, 3\) is not an encoded image",
        ),
        (pickle.dumps(([*ENCODED[:5], b""], SAME)), "image 5: the image cannot be decoded"),
        (([*ENCODED[:5], ENCODED[5][:-30]], SAME), "image 5: the image cannot be decoded"),
        (([*ENCODED[:5], png(np.zeros((3, 8, 4), np.uint8))], SAME), "image 5: the image is 4x8"),
        (([*ENCODED[:5], np.zeros(9)], SAME), "damaged pickle .* uint8 array"),
        (pickle.dumps((ENCODED, SAME))[:-200], "damaged pickle .* truncated"),
        (pickle.dumps((ENCODED, SAME)) + b"\n", "damaged pickle .* 1 bytes follow its end"),
        (b"\xff\xd8\xff\xe0 a picture", "damaged pickle at byte 1: opcode"),
    ],
)
def test_bad_pack_is_an_error_that_names_it(write, content, problem):
    with pytest.raises(DataError, match=rf"toy\.bin: {problem}"):
        read_pack(write(content, 2), 8)


def test_array_whose_shape_is_not_that_of_its_bytes(write):
    image = np.frombuffer(ENCODED[5], np.uint8)
    data = pickle.dumps(([*ENCODED[:5], image], SAME), 3)
    count = b"M" + len(image).to_bytes(2, "little") if len(image) > 255 else b"K" + bytes([len(image)])
    at = data.rindex(count + b"\x85")
    longer = data[: at + 1] + bytes([data[at + 1] ^ 1]) + data[at + 2 :]
    with pytest.raises(DataError, match=r"image 5: an array of shape"):
        read_pack(write(longer), 8)


def test_missing_pack(tmp_path):
    with pytest.raises(DataError, match=r"absent\.bin: cannot be read"):
        read_pack(tmp_path / "absent.bin", 8)


@settings(max_examples=120, deadline=None)
@given(edits, st.floats(0.5, 1), st.sampled_from([0, 2, 4, 5]), st.sampled_from([jpeg, png]))
def test_damaged_bytes_are_data_errors_or_still_a_pack(changes, keep, protocol, encode):
    images = [encode(FACES[0]), np.frombuffer(encode(FACES[1]), np.uint8), encode(FACES[2]), encode(FACES[3])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.bin"
        path.write_bytes(edited(pickle.dumps((images, [True, False]), protocol), changes, keep))
        try:
            pack = read_pack(path, 8)
        except DataError:
            return
        assert pack.images.shape == (2 * len(pack), 3, 8, 8)
        assert set(pack.same.tolist()) == {True, False}
