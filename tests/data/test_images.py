# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from writers import edited, edits, jpeg, pixels, png

from fedface_flwr.data.images import PREPROCESSING, decode, flip, normalise, random_flip
from fedface_flwr.errors import DataError


def png_chunks(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_png_of_the_wanted_size_keeps_every_pixel_in_rgb_order():
    rows = b"\x00" + bytes([255, 0, 0, 0, 255, 0]) + b"\x00" + bytes([0, 0, 255, 9, 8, 7])
    expected = [[[255, 0], [0, 9]], [[0, 255], [0, 8]], [[0, 0], [255, 7]]]
    image = decode(png_chunks(2, 2, 8, 2, rows), 2, "x")
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, expected)


def test_jpeg_is_close_to_what_was_encoded():
    smooth = np.broadcast_to(np.linspace(0, 255, 32).astype(np.uint8), (3, 32, 32)).copy()
    assert np.abs(decode(jpeg(smooth), 32, "x").astype(int) - smooth).max() < 12


@pytest.mark.parametrize("encode", [png, jpeg])
def test_grey_picture_gets_three_equal_channels(encode):
    image = decode(encode(pixels(0, 16)[:1]), 16, "x")
    assert image.shape == (3, 16, 16)
    np.testing.assert_array_equal(image[0], image[1])
    np.testing.assert_array_equal(image[0], image[2])


def test_shrinking_averages_what_it_leaves_out():
    # One white column in four: plain bilinear sampling at a quarter of the size sees only black.
    stripes = np.zeros((3, 64, 64), dtype=np.uint8)
    stripes[..., ::4] = 255
    interior = decode(png(stripes), 16, "x")[:, 2:-2, 2:-2]
    assert np.abs(interior.astype(float) - 255 / 4).max() < 8


def test_resizing_keeps_a_constant_and_left_from_right():
    halves = np.zeros((3, 20, 20), dtype=np.uint8)
    halves[..., :10] = 200
    image = decode(png(halves), 10, "x")
    assert (image[..., :4] == 200).all()
    assert (image[..., 6:] == 0).all()


BAD = {
    "empty": b"",
    "text": b"not a picture at all",
    "gif": b"GIF89a" + bytes.fromhex("01000100800000ffffff0000002c00000000010001000002024401003b"),
    "jpeg cut in its header": jpeg(pixels(0))[:100],
    "jpeg cut in its data": jpeg(pixels(0, 64))[:-2000],
    "png cut": png(pixels(0))[:-40],
    "png of the signature only": png(pixels(0))[:8],
    "not square": png(np.zeros((3, 4, 8), np.uint8)),
    "16 bits": png_chunks(2, 2, 16, 0, (b"\x00" + bytes(4)) * 2),
    "12 GB declared": b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + bytes(40),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_bad_picture_is_an_error_that_names_it(data):
    with pytest.raises(DataError, match="pack: image 3: the image"):
        decode(data, 8, "pack: image 3")


def test_error_says_the_shape_of_a_picture_that_is_not_square():
    with pytest.raises(DataError, match="8x4"):
        decode(jpeg(np.zeros((3, 4, 8), np.uint8)), 8, "x")


@pytest.mark.filterwarnings("ignore:Palette images")
def test_palette_picture_with_alpha_gets_its_colours():
    file = io.BytesIO()
    picture = Image.new("P", (4, 4), color=0)
    picture.putpalette([17, 34, 51, 68, 85, 102])
    picture.putpixel((1, 0), 1)
    picture.save(file, "PNG", transparency=bytes([0, 128]))
    assert decode(file.getvalue(), 4, "x")[:, 0, :2].tolist() == [[17, 68], [34, 85], [51, 102]]


@settings(max_examples=300, deadline=None)
@given(edits, st.floats(0, 1), st.sampled_from([jpeg, png]))
def test_damaged_bytes_decode_to_the_right_shape_or_are_a_data_error(changes, keep, encode):
    try:
        image = decode(edited(encode(pixels(1, 16)), changes, keep), 8, "x")
    except DataError:
        return
    assert image.shape == (3, 8, 8)
    assert image.dtype == np.uint8


def test_normalise_maps_the_byte_range_to_minus_one_to_one():
    batch = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    result = normalise(batch)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.ravel(), torch.tensor([-1.0, -0.6, 1.0]))
    assert batch.ravel().tolist() == [0, 51, 255]


def test_metadata_is_what_normalise_does():
    assert PREPROCESSING.metadata() == {
        "colour_order": "RGB",
        "mean": "127.5",
        "scale": "127.5",
        "layout": "NCHW",
    }


def test_flip_mirrors_left_and_right_only():
    batch = torch.tensor([[1, 2], [3, 4]]).reshape(1, 1, 2, 2)
    assert flip(batch).ravel().tolist() == [2, 1, 4, 3]


def test_random_flip_flips_whole_images_as_its_generator_says():
    batch = torch.arange(400 * 12, dtype=torch.float32).reshape(400, 3, 2, 2)
    flipped = random_flip(batch, torch.Generator().manual_seed(5))
    mirrored = batch.flip(3)
    chosen = [bool((a == b).all()) for a, b in zip(flipped, mirrored, strict=True)]
    for own, source, mirror, taken in zip(flipped, batch, mirrored, chosen, strict=True):
        torch.testing.assert_close(own, mirror if taken else source, rtol=0, atol=0)
    assert 150 < sum(chosen) < 250
    again = random_flip(batch, torch.Generator().manual_seed(5))
    torch.testing.assert_close(again, flipped, rtol=0, atol=0)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_random_flip_at_the_ends_of_its_range(probability):
    batch = torch.rand(50, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    result = random_flip(batch, torch.Generator().manual_seed(0), probability)
    torch.testing.assert_close(result, batch.flip(3) if probability else batch, rtol=0, atol=0)


def test_random_flip_draws_one_number_an_image():
    generator, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    random_flip(torch.zeros(7, 3, 2, 2), generator, 0.1)
    torch.rand(7, generator=other)
    assert torch.rand(1, generator=generator) == torch.rand(1, generator=other)
