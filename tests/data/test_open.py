# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from writers import face, pixels, png, public_pack, write_recordio

from fedface_flwr.data import open as opening
from fedface_flwr.data.cache import CachedSet
from fedface_flwr.data.decoding import StreamedSet
from fedface_flwr.data.open import open_image_set
from fedface_flwr.errors import DataError


def folder_silo(root):
    for index, identity in enumerate(["ann", "ann", "zoe"]):
        (root / identity).mkdir(parents=True, exist_ok=True)
        (root / identity / f"{index}.png").write_bytes(png(pixels(index)))
    return root


def recordio_silo(root):
    return write_recordio(root, public_pack([0, 0, 1]), "2,8,8")


@pytest.mark.parametrize("make", [folder_silo, recordio_silo])
@pytest.mark.parametrize("kept", [False, True])
def test_both_formats_with_and_without_cache(tmp_path, make, kept):
    faces = open_image_set(make(tmp_path / "silo"), 8, cache_dir=tmp_path / "c" if kept else None)
    assert (faces.name, faces.num_identities, faces.labels.tolist()) == ("silo", 2, [0, 0, 1])
    indices = np.array([2, 0, 2])
    np.testing.assert_array_equal(faces.images(indices), np.stack([pixels(index) for index in indices]))
    assert faces.images(np.array([], dtype=np.int64)).shape == (0, 3, 8, 8)
    assert (tmp_path / "c").exists() == kept


def test_set_above_the_largest_cache_is_streamed(tmp_path, monkeypatch):
    root = folder_silo(tmp_path / "silo")
    monkeypatch.setattr(opening, "_LARGEST_CACHE", 3 * 3 * 8 * 8)
    assert isinstance(open_image_set(root, 8, cache_dir=tmp_path / "c"), CachedSet)
    assert isinstance(open_image_set(root, 9, cache_dir=tmp_path / "c"), StreamedSet)


@pytest.mark.parametrize("name", ["celeba", "fiw", "lag"])
def test_real_silos(shared_dir, name):
    faces = open_image_set(shared_dir / "faces" / name, 28, cache_dir=None)
    images = faces.images(np.arange(0, len(faces.labels), 97))
    assert images.shape[1:] == (3, 28, 28)
    assert images.std(axis=(1, 2, 3)).min() > 5


def test_missing_folder(tmp_path):
    with pytest.raises(DataError, match="silo: no such folder"):
        open_image_set(tmp_path / "silo", 8, cache_dir=None)


@pytest.mark.parametrize("name", ["train.rec", "train.idx"])
def test_half_a_recordio_set_is_not_taken_for_a_folder(tmp_path, name):
    (recordio_silo(tmp_path / "silo") / name).unlink()
    with pytest.raises(DataError, match=f"{name}: no such file"):
        open_image_set(tmp_path / "silo", 8, cache_dir=None)


def test_undecodable_picture_is_found_when_asked_for_without_cache(tmp_path):
    write_recordio(tmp_path / "silo", {0: face(0, png(pixels(0))), 4: face(0, b"junk")})
    faces = open_image_set(tmp_path / "silo", 8, cache_dir=None)
    assert len(faces.images(np.array([0]))) == 1
    with pytest.raises(DataError, match=r"train\.rec: record 4: the image cannot be decoded"):
        faces.images(np.array([0, 1]))
    with pytest.raises(DataError, match=r"train\.rec: record 4: the image cannot be decoded"):
        open_image_set(tmp_path / "silo", 8, cache_dir=tmp_path / "c")
