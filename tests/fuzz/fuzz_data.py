# SPDX-License-Identifier: Apache-2.0
"""Targets: sets and packs of faces, and pictures."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from fuzz_mutation import EXTREMES, Mutator
from fuzz_target import TEXT, Target, each
from PIL import Image
from writers import face, jpeg, pixels, png, public_pack, write_recordio

from fedface_flwr.data.images import decode, decode_photo
from fedface_flwr.data.open import open_image_set, open_pack
from fedface_flwr.data.packs import EncodedPack, read_pack
from fedface_flwr.data.recordio import RecordIOSet

SIZE = 8


def _recordio(root: Path) -> Sequence[Path]:
    pack = public_pack([0, 0, 1, 1, 2])
    pack[2] = face([0.0, 7.0], png(pixels(9)))
    folder = write_recordio(root / "set", pack, "3,8,8")
    return [folder / "train.rec", folder / "train.idx", folder / "property"]


def _read_recordio(root: Path) -> None:
    faces = RecordIOSet.open(root / "set")
    count = len(faces.labels)
    assert count == len(faces.keys) == len(faces.offsets) > 0
    assert 0 <= faces.labels.min() <= faces.labels.max() < faces.num_identities
    assert faces.num_identities <= (1 << 24) + 1
    assert (np.diff(faces.keys) > 0).all()
    opened = open_image_set(root / "set", SIZE, cache_dir=None)

    def image(index: int) -> None:
        assert opened.images(np.array([index])).shape == (1, 3, SIZE, SIZE)

    each([partial(image, index) for index in range(count)])


def _recordio_lengths(mutator: Mutator, data: bytes) -> bytes:
    """Change the words of a record's head, or its labels, and leave the magic numbers."""
    magic = data[:4]
    starts = [at for at in range(0, len(data) - 32, 4) if data[at : at + 4] == magic]
    at = starts[mutator.below(len(starts))] + 4 * (1 + mutator.below(8))
    value = EXTREMES[mutator.below(len(EXTREMES))] & 0xFFFFFFFF
    if mutator.below(2):
        (value,) = struct.unpack(
            "<I", struct.pack("<f", (-1.0, 0.5, 2.0, 1e9, float("nan"), 16777216.0)[mutator.below(6)])
        )
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


_IMAGES = [png(pixels(seed)) for seed in range(4)] + [jpeg(pixels(seed)) for seed in range(2)]
_SAME = [True, False, True]


def _pack(root: Path) -> Sequence[Path]:
    (root / "toy.bin").write_bytes(pickle.dumps((_IMAGES, _SAME), 4))
    return [root / "toy.bin"]


def _pack_seeds() -> list[bytes]:
    arrays = [np.frombuffer(data, np.uint8) for data in _IMAGES]
    contents = [(_IMAGES, _SAME), (arrays, np.array(_SAME).tolist()), (arrays, list(np.array(_SAME)))]
    return [pickle.dumps(content, protocol) for content in contents for protocol in range(6)]


def _read_pack(root: Path) -> None:
    pairs = read_pack(root / "toy.bin", SIZE)
    assert len(pairs.images) == 2 * len(pairs.same)
    encoded = EncodedPack.open(root / "toy.bin")
    each([partial(encoded.read, index) for index in range(len(encoded.images))])
    with_cache = open_pack(root / "toy.bin", SIZE, cache_dir=root / "cache")
    assert np.array_equal(with_cache.images, pairs.images)


def _picture_seeds(size: int = 16) -> list[bytes]:
    rows = np.kron(pixels(3, size // 4), np.ones((4, 4), np.uint8)).transpose(1, 2, 0)
    found = []
    for mode in ("RGB", "L", "LA", "P", "RGBA", "1", "I;16", "CMYK"):
        for kind in ("PNG", "JPEG"):
            file = io.BytesIO()
            picture = Image.fromarray(rows).convert("L" if mode == "I;16" else mode)
            picture = picture.convert("I").point(lambda x: x * 256).convert("I;16") if mode == "I;16" else picture
            if (kind == "PNG" and mode == "CMYK") or (kind == "JPEG" and mode not in ("RGB", "L", "CMYK")):
                continue
            more = {"progressive": mode == "L", "exif": _exif()} if kind == "JPEG" else {}
            picture.save(file, kind, **more)
            found.append(file.getvalue())
    file = io.BytesIO()
    Image.fromarray(rows).quantize(16).save(file, "PNG", transparency=bytes(range(16)))
    return [*found, file.getvalue()]


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    return exif


def _picture(root: Path) -> Sequence[Path]:
    (root / "face.img").write_bytes(_picture_seeds()[0])
    return [root / "face.img"]


def _read_picture(root: Path) -> None:
    path = root / "face.img"
    data = path.read_bytes()

    def photo() -> None:
        found = decode_photo(data, str(path))
        assert found.dtype == np.uint8
        assert found.ndim == 3
        assert found.shape[2] == 3

    def aligned() -> None:
        assert decode(data, SIZE, str(path)).shape == (3, SIZE, SIZE)

    each([photo, aligned])


def _picture_header(mutator: Mutator, data: bytes) -> bytes:
    """Change a PNG chunk and its checksum with it, or a JPEG's marker segments."""
    seeds = _PICTURES
    data = seeds[mutator.below(len(seeds))]
    if data[:4] != b"\x89PNG":
        markers = [at for at in range(len(data) - 1) if data[at] == 0xFF and data[at + 1] not in (0, 0xFF)]
        at = markers[mutator.below(len(markers))] + 1 + mutator.below(12)
        return data[:at] + Mutator.extreme(mutator, data[at : at + 16], ()) + data[at + 16 :]
    chunks, at = [], 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    place = mutator.below(len(chunks))
    kind, content = chunks[place]
    kind = (kind, b"tRNS", b"zTXt", b"acTL", b"iCCP", b"eXIf", b"PLTE", b"gAMA", b"pHYs")[mutator.below(9)]
    if mutator.below(3):
        content = mutator.mutate([content])
    chunks.insert(place + mutator.below(2), (kind, content))
    if mutator.below(2):
        del chunks[place]
    if kind == b"zTXt" and mutator.below(2):
        chunks[place] = (kind, b"k\0\0" + zlib.compress(bytes(80_000_000 if mutator.below(9) == 0 else 100)))
    parts = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    ]
    return data[:8] + b"".join(parts)


_PICTURES = _picture_seeds()


TARGETS = (
    Target("recordio", _recordio, _read_recordio, 1500, tailor=_recordio_lengths),
    Target("recordio-text", lambda root: _recordio(root)[1:], _read_recordio, 600, words=TEXT),
    Target("pack", _pack, _read_pack, 1200, seeds=_pack_seeds()),
    Target("picture", _picture, _read_picture, 1000, tailor=_picture_header, seeds=_PICTURES, memory=1 << 30),
)
