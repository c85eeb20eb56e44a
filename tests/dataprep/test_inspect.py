# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from source_writers import face_picture, face_pixels, write_tface, write_tree
from writers import edited, edits, encoded, png, public_pack, write_recordio

from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.dataprep.colour import guess, red_over_blue
from fedface_flwr.dataprep.command import main
from fedface_flwr.dataprep.names import Identities, Names, digests, first_repeated, repeats


def inspected(capsys: pytest.CaptureFixture[str], path: Path, *more: str, code: int = 0) -> dict[str, Any]:
    assert main(["inspect", str(path), "--json", *more]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_counts_of_a_folder(tmp_path, capsys):
    labels = [0, 0, 0, 1, 2, 2, 2, 2]
    written = write_tree(tmp_path / "faces", labels)
    (tmp_path / "faces/id-001/large.png").write_bytes(face_picture(50, 32, "PNG"))
    (tmp_path / "faces/id-001/grey.jpg").write_bytes(encoded(face_pixels(51)[:1], "JPEG"))
    seen = inspected(capsys, tmp_path / "faces")
    assert (seen["kind"], seen["images"], seen["identities"]) == ("folder", 10, 3)
    assert seen["per_identity"] == {
        "min": 3,
        "median": 3.0,
        "mean": pytest.approx(10 / 3),
        "max": 4,
        "histogram": {"1": 0, "2-3": 2, "4-7": 1},
    }
    assert seen["formats"] == {"JPEG": 9, "PNG": 1}
    assert seen["sizes"] == {"16x16": 9, "32x32": 1}
    assert seen["modes"] == {"RGB": 9, "L": 1}
    assert seen["broken"] == []
    extra = (face_picture(50, 32, "PNG"), encoded(face_pixels(51)[:1], "JPEG"))
    assert seen["bytes"] == sum(map(len, [*written, *extra]))
    assert (seen["pairs"], seen["not_square"], seen["pixel_duplicates"]) == ({}, 0, None)


def test_duplicates_by_bytes_by_pixels_and_across_identities(tmp_path, capsys):
    root = tmp_path / "faces"
    write_tree(root, [0, 0, 1], kind="PNG")
    (root / "id-000/copy.png").write_bytes(face_picture(0, kind="PNG"))
    (root / "id-001/other.png").write_bytes(face_picture(1, kind="PNG"))
    recoded = io.BytesIO()
    Image.open(io.BytesIO(face_picture(2, kind="PNG"))).save(recoded, "PNG", compress_level=0)
    (root / "id-001/recoded.png").write_bytes(recoded.getvalue())
    seen = inspected(capsys, root, "--pixels")
    assert seen["duplicates"] == {
        "groups": [["id-000/0000.png", "id-000/copy.png"], ["id-000/0001.png", "id-001/other.png"]],
        "extra": 2,
        "across": [["id-000: id-000/0001.png", "id-001: id-001/other.png"]],
    }
    assert seen["pixel_duplicates"]["groups"][-1] == ["id-001/0002.png", "id-001/recoded.png"]
    assert seen["pixel_duplicates"]["extra"] == 3


def test_every_broken_picture_is_named_and_the_scan_goes_on(tmp_path, capsys):
    root = tmp_path / "faces"
    write_tree(root, [0, 0, 1, 1])
    (root / "id-000/0001.jpg").write_bytes(face_picture(1)[:200])
    (root / "id-001/0002.jpg").write_bytes(b"")
    (root / "id-001/oblong.jpg").write_bytes(encoded(np.zeros((3, 8, 24), dtype=np.uint8), "JPEG"))
    (root / "id-001/readme.md").write_text("x")
    seen = inspected(capsys, root, code=1)
    assert (seen["images"], seen["not_square"]) == (3, 1)
    assert [text.split(": ")[0].rsplit("/")[-1] for text in seen["broken"]] == ["0001.jpg", "0002.jpg"]
    assert [text.split(": ")[0].rsplit("/")[-1] for text in seen["faults"]] == ["readme.md"]
    assert main(["inspect", str(root)]) == 1
    text = capsys.readouterr().out
    assert "broken      2" in text
    assert "faults      1" in text
    assert "not square  1" in text


def test_damaged_recordio(tmp_path, capsys):
    folder = write_recordio(tmp_path / "pack", public_pack([0, 0, 1, 1, 2]), "3,8,8")
    content = bytearray((folder / "train.rec").read_bytes())
    offsets = dict(map(int, line.split()) for line in (folder / "train.idx").read_text().splitlines())
    content[offsets[2]] ^= 1
    content[offsets[4] + 8 + 24 + 20] ^= 1
    content[offsets[5] + 8 + 4 : offsets[5] + 8 + 8] = b"\0\0\xc0\x7f"
    (folder / "train.rec").write_bytes(content)
    (folder / "property").write_text("three")
    seen = inspected(capsys, folder, code=1)
    assert (seen["images"], seen["identities"]) == (2, 2)
    problems = ["record 2: no record starts", "record 5: its label is not", "record 4: the image cannot be"]
    assert all(part in text for part, text in zip(problems, seen["broken"], strict=True))
    # Of identity 2 the only picture is lost.
    faults = ["property", "record 8: the keys 5 to 5 are not of one identity"]
    assert all(part in text for part, text in zip(faults, seen["faults"], strict=True))


@pytest.mark.parametrize("bad", ["header", "index beyond", "cut"])
def test_recordio_damaged_where_it_begins_and_ends(tmp_path, capsys, bad):
    folder = write_recordio(tmp_path / "pack", public_pack([0, 0, 1]), "2,8,8")
    content = bytearray((folder / "train.rec").read_bytes())
    offsets = dict(map(int, line.split()) for line in (folder / "train.idx").read_text().splitlines())
    if bad == "header":
        content[8 + 24 : 8 + 28] = b"\0\0\0\0"
    if bad == "cut":
        content = content[: offsets[3] + 50]
    if bad == "index beyond":
        (folder / "train.idx").write_text((folder / "train.idx").read_text().replace(f"3\t{offsets[3]}", "3\t999999"))
    (folder / "train.rec").write_bytes(content)
    seen = inspected(capsys, folder, code=1)
    assert seen["images"] == (3 if bad == "header" else 2)
    if bad == "header":
        # With it the identities' ranges are not known to be such, but they are no broken pictures.
        assert (seen["broken"], len(seen["faults"])) == ([], 1)
        assert "record 0" in seen["faults"][0]
    else:
        assert len(seen["broken"]) == 1
        assert "record 3" in seen["broken"][0]


@given(edits, st.floats(0.3, 1), st.sampled_from(["train.rec", "train.idx", "property"]))
def test_recordio_with_any_damage_ends_with_a_verdict(tmp_path_factory, changes, keep, name):
    folder = write_recordio(tmp_path_factory.mktemp("pack"), public_pack([0, 0, 1]), "2,8,8")
    path = folder / name
    path.write_bytes(edited(path.read_bytes(), changes, keep))
    assert main(["inspect", str(folder), "--quiet"]) in (0, 1)
    assert main(["verify", str(folder), "--quiet"]) in (0, 1)


def test_tface_shards(tmp_path, capsys):
    write_tface(tmp_path, "faces", [0, 0, 1], shard_size=2)
    seen = inspected(capsys, tmp_path / "faces.txt")
    assert (seen["kind"], seen["images"], seen["identities"]) == ("tfrecord", 3, 2)


def test_verification_pack(tmp_path, capsys):
    images = [png(face_pixels(seed)) for seed in (0, 1, 2, 2, 0, 3)]
    images[5] = images[5][:40]
    (tmp_path / "gate.bin").write_bytes(pickle.dumps((images, [True, False, True])))
    seen = inspected(capsys, tmp_path / "gate.bin", code=1)
    assert seen["pairs"] == {"matching": 2, "differing": 1, "identical": 1}
    assert (seen["identities"], seen["per_identity"], seen["images"]) == (0, {}, 5)
    assert seen["broken"][0].startswith(f"{tmp_path}/gate.bin: image 5: ")
    assert seen["duplicates"]["groups"] == [["0", "4"], ["2", "3"]]
    assert main(["inspect", str(tmp_path / "gate.bin")]) == 1
    assert "1 pair shows one picture twice" in capsys.readouterr().out


def swapped(data: bytes) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[:, :, ::-1].copy()).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("name", ["celeba", "fiw", "lag"])
def test_colour_order_of_real_faces(shared_dir, tmp_path, capsys, name):
    faces = RecordIOSet.open(shared_dir / "faces" / name)
    for order, change in (("RGB", bytes), ("BGR", swapped)):
        for index in range(0, len(faces.labels), len(faces.labels) // 150):
            path = tmp_path / order / str(index) / "a.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(change(faces.read(index)[0]))
        colour = inspected(capsys, tmp_path / order)["colour"]
        assert (colour["order"], colour["sureness"]) == (order, "sure")


@pytest.mark.parametrize(
    ("differences", "order", "sureness"),
    [
        ([30.0] * 20, "RGB", "sure"),
        ([-30.0] * 20, "BGR", "sure"),
        ([30.0] * 17 + [-9.0] * 3, "RGB", "likely"),
        ([30.0] * 9 + [-9.0] * 11, "BGR", "unsure"),
        ([30.0] * 19, "unknown", "unsure"),
        ([0.5] * 200 + [30.0] * 19, "grey", "sure"),
        ([0.5] * 5, "grey", "unsure"),
        ([], "unknown", "unsure"),
    ],
)
def test_guesses(differences, order, sureness):
    found = guess(differences)
    assert (found.order, found.sureness, found.looked_at) == (order, sureness, len(differences))


def test_red_over_blue_is_of_the_middle():
    pixels = np.zeros((3, 8, 8), dtype=np.uint8)
    pixels[0, 2:6, 2:6], pixels[2, 2:6, 2:6] = 90, 40
    pixels[2, :2] = 255
    assert red_over_blue(pixels) == 50


def test_text_for_people(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0] * 3 + [1] * 9 + [2] * 8)
    for number in range(8):
        (tmp_path / f"faces/id-001/copy-{number}.jpg").write_bytes(face_picture(number))
    assert main(["inspect", str(tmp_path / "faces")]) == 0
    text = capsys.readouterr().out
    assert "images      28 (" in text
    assert "of each     min 3, median 8, mean 9.3, max 17 images" in text
    assert f"8-15 {'#' * 40} 1\n" in text
    assert "duplicates  8 by equal bytes, in 8 groups" in text
    assert "across      3 of the groups are under several identities" in text
    assert "and 3 more (--all lists them)" in text
    assert main(["inspect", str(tmp_path / "faces"), "--all"]) == 0
    assert capsys.readouterr().out.count(" = ") == 11


def test_names_cannot_drive_the_terminal(tmp_path, capsys):
    (tmp_path / "faces" / "one").mkdir(parents=True)
    (tmp_path / "faces/one/\x1b[2J.jpg").write_bytes(b"x")
    assert main(["inspect", str(tmp_path / "faces")]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"\x1b[2J.jpg" in out


@given(st.lists(st.text(max_size=6)))
def test_names_are_kept(names):
    kept = Names(names)
    assert list(kept) == names
    assert kept[1:] == names[1:]
    assert first_repeated(kept) == next((name for name in names if names.count(name) > 1), None)


@given(st.lists(st.sampled_from(["10", "9", "-3", "b", "a"])))
def test_identities_are_numbered_in_order(seen):
    identities = Identities()
    for name in seen:
        identities.append(name)
    labels, names = identities.numbered()
    numeric = not set(seen) & {"a", "b"}
    assert names == sorted(set(seen), key=int if numeric else str)
    assert [names[label] for label in labels] == seen


@given(st.lists(st.binary(max_size=2)))
def test_groups_of_equals(items):
    groups = [group.tolist() for group in repeats(digests(items, len(items)))]
    expected: dict[bytes, list[int]] = {}
    for index, item in enumerate(items):
        expected.setdefault(item, []).append(index)
    assert groups == [group for group in expected.values() if len(group) > 1]
