# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from writers import jpeg, pixels, png

from fedface_flwr.data.folder import FolderSet
from fedface_flwr.errors import DataError


@pytest.fixture
def root(tmp_path):
    for name, data in {
        "zoe/b.PNG": png(pixels(0)),
        "zoe/a.jpg": jpeg(pixels(1)),
        "ann/x.jpeg": jpeg(pixels(2)),
    }.items():
        path = tmp_path / "silo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "silo"


def test_identities_and_pictures_come_in_the_order_of_their_names(root):
    faces = FolderSet.open(root)
    assert faces.name == "silo"
    assert faces.num_identities == 2
    assert faces.labels.tolist() == [0, 1, 1]
    assert list(faces.files) == [root / "ann/x.jpeg", root / "zoe/a.jpg", root / "zoe/b.PNG"]
    assert faces.read(1) == (jpeg(pixels(1)), str(root / "zoe/a.jpg"))


def test_hidden_entries_are_ignored(root):
    (root / ".DS_Store").write_text("x")
    (root / ".cache").mkdir()
    (root / "ann" / ".thumbs").write_text("x")
    assert FolderSet.open(root).labels.tolist() == [0, 1, 1]


def test_root_without_identities(tmp_path):
    with pytest.raises(DataError, match=f"{tmp_path}: no identities"):
        FolderSet.open(tmp_path)


def test_root_that_is_no_folder(tmp_path):
    with pytest.raises(DataError, match="absent: not a folder"):
        FolderSet.open(tmp_path / "absent")


def test_identity_without_pictures(root):
    (root / "mia").mkdir()
    with pytest.raises(DataError, match="mia: the identity has no pictures"):
        FolderSet.open(root)


def test_stray_file_beside_the_identities(root):
    (root / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"notes\.txt: a stray file .*; move it away, or hide it"):
        FolderSet.open(root)


@pytest.mark.parametrize("name", ["origin.json", "broken.txt", "property", "SHA256SUMS", "MD5SUMS", "identities.txt"])
def test_what_commands_put_beside_the_identities_is_passed_over(root, name):
    (root / name).write_text("x")
    assert FolderSet.open(root).labels.tolist() == [0, 1, 1]
    # Beside pictures it has no business, and as a folder it is an identity.
    (root / name).rename(root / "zoe" / name)
    with pytest.raises(DataError, match=f"zoe/{name}: not a"):
        FolderSet.open(root)
    (root / "zoe" / name).unlink()
    (root / name).mkdir()
    (root / name / "a.jpg").write_bytes(jpeg(pixels(3)))
    assert FolderSet.open(root).num_identities == 3


@pytest.mark.parametrize("name", ["notes.txt", "face.bmp"])
def test_file_of_another_kind_among_the_pictures(root, name):
    (root / "zoe" / name).write_text("x")
    with pytest.raises(DataError, match=rf"zoe/{name}: not a \.jpg"):
        FolderSet.open(root)


def test_folder_named_like_a_picture(root):
    (root / "zoe" / "more.jpg").mkdir()
    with pytest.raises(DataError, match=r"more\.jpg: not a"):
        FolderSet.open(root)


def test_picture_that_is_gone_when_read(root):
    faces = FolderSet.open(root)
    (root / "ann/x.jpeg").unlink()
    with pytest.raises(DataError, match=r"x\.jpeg: cannot be read"):
        faces.read(0)
