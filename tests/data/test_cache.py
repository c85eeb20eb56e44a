# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from writers import face, pixels, png, public_pack, write_recordio

from fedface_flwr.data import cache
from fedface_flwr.data.cache import cached
from fedface_flwr.data.folder import FolderSet
from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.errors import DataError

LABELS = [0, 0, 1, 1, 1]
PIXELS = np.stack([pixels(index) for index in range(5)])


@pytest.fixture
def faces(tmp_path):
    return RecordIOSet.open(write_recordio(tmp_path / "silo", public_pack(LABELS), "2,8,8"))


def only_file(folder):
    (path,) = folder.iterdir()
    return path


def test_pixels_and_labels(faces, tmp_path):
    result = cached(faces, 8, tmp_path / "new" / "cache")
    assert (result.name, result.num_identities, result.labels.tolist()) == ("silo", 2, LABELS)
    indices = np.array([4, 0, 0, 2])
    images = result.images(indices)
    np.testing.assert_array_equal(images, PIXELS[indices])
    images[:] = 0
    np.testing.assert_array_equal(result.images(indices), PIXELS[indices])


def test_cache_of_several_chunks(faces, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_CHUNK", 2)
    np.testing.assert_array_equal(cached(faces, 8, tmp_path / "c").pixels, PIXELS)
    np.testing.assert_array_equal(cached(faces, 8, tmp_path / "c").pixels, PIXELS)


def test_file_is_one_that_numpy_opens(faces, tmp_path):
    cached(faces, 8, tmp_path / "c")
    np.testing.assert_array_equal(np.load(only_file(tmp_path / "c")), PIXELS)


def test_second_time_nothing_is_decoded(faces, tmp_path):
    cached(faces, 8, tmp_path / "c")
    before = only_file(tmp_path / "c").stat()
    records = faces.folder / "train.rec"
    stat = records.stat()
    records.write_bytes(bytes(stat.st_size))
    os.utime(records, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    np.testing.assert_array_equal(cached(faces, 8, tmp_path / "c").pixels, PIXELS)
    after = only_file(tmp_path / "c").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_another_size_has_a_file_of_its_own(faces, tmp_path):
    assert cached(faces, 4, tmp_path / "c").pixels.shape == (5, 3, 4, 4)
    assert cached(faces, 8, tmp_path / "c").pixels.shape == (5, 3, 8, 8)
    assert len(list((tmp_path / "c").iterdir())) == 2


@pytest.mark.parametrize("name", ["train.rec", "train.idx", "property"])
def test_changed_source_is_decoded_anew(faces, tmp_path, name):
    cached(faces, 8, tmp_path / "c")
    os.utime(faces.folder / name, ns=(1, 1))
    cached(faces, 8, tmp_path / "c")
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_changed_folder_is_decoded_anew(tmp_path):
    (tmp_path / "silo" / "ann").mkdir(parents=True)
    for seed in (0, 1):
        (tmp_path / "silo" / "ann" / f"{seed}.png").write_bytes(png(PIXELS[seed]))
        images = cached(FolderSet.open(tmp_path / "silo"), 8, tmp_path / "c").pixels
        np.testing.assert_array_equal(images, PIXELS[: seed + 1])


@pytest.mark.parametrize("damage", ["empty", "cut", "longer", "header", "pixel", "checksum"])
def test_damaged_file_is_rebuilt(faces, tmp_path, damage):
    cached(faces, 8, tmp_path / "c")
    path = only_file(tmp_path / "c")
    whole = path.read_bytes()
    content = bytearray(whole)
    place = {"header": 20, "pixel": len(content) // 2, "checksum": len(content) - 1}.get(damage)
    if place is not None:
        content[place] ^= 1
    path.write_bytes({"empty": b"", "cut": whole[:-50], "longer": whole + b"x"}.get(damage, bytes(content)))
    np.testing.assert_array_equal(cached(faces, 8, tmp_path / "c").pixels, PIXELS)
    assert path.read_bytes() == whole


def test_undecodable_picture_leaves_no_file(tmp_path):
    payloads = public_pack(LABELS)
    payloads[3] = face(1, b"junk")
    faces = RecordIOSet.open(write_recordio(tmp_path / "silo", payloads))
    with pytest.raises(DataError, match=r"train\.rec: record 3: the image cannot be decoded"):
        cached(faces, 8, tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_two_at_once(faces, tmp_path):
    barrier = threading.Barrier(2)
    results = []

    def build():
        barrier.wait()
        results.append(cached(faces, 8, tmp_path / "c"))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for result in results:
        np.testing.assert_array_equal(result.pixels, PIXELS)
    only_file(tmp_path / "c")
