# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from source_writers import face_picture, face_pixels, write_tface, write_tree
from writers import MAGIC, encoded, face, public_pack, write_recordio

from fedface_flwr.data.images import decode
from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.dataprep.command import main
from fedface_flwr.dataprep.records import RecordIOSource
from fedface_flwr.errors import DataError


def convert(*arguments: object) -> int:
    return main(["convert", *map(str, arguments)])


def names(folder: Path) -> list[str]:
    return [line.split("\t")[1] for line in (folder / "identities.txt").read_text().splitlines()]


def pictures(faces: RecordIOSet) -> list[bytes]:
    return [faces.read(index)[0] for index in range(len(faces.labels))]


def write_parquet(path: Path, columns: dict[str, pa.Array], names: list[str] | None = None, rows: int = 3) -> None:
    table = pa.table(columns)
    if names is not None:
        features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)


def image_column(pictures: list[bytes | None]) -> pa.Array:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": picture, "path": f"{at}.jpg"} for at, picture in enumerate(pictures)], kind)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_folder_of_pictures_is_read_back_byte_for_byte(tmp_path, kind, capsys):
    labels = [2, 0, 2, 1, 0, 0]
    written = write_tree(tmp_path / "faces", labels, kind=kind)
    (tmp_path / "faces/.hidden").write_text("passed over")
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert capsys.readouterr().out == f"{tmp_path}/set: 6 images of 3 identities, 16 px\n"
    faces = RecordIOSet.open(tmp_path / "set")
    assert pictures(faces) == written
    assert faces.labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert names(tmp_path / "set") == ["id-000", "id-001", "id-002"]
    assert (tmp_path / "set/property").read_text() == "3,16,16\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faces", "set"]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == [
        "identities.txt",
        "origin.json",
        "property",
        "train.idx",
        "train.rec",
    ]


@pytest.mark.parametrize("name", ["celeba", "fiw", "lag"])
def test_real_packs_are_written_as_they_are(shared_dir, tmp_path, name):
    real = shared_dir / "faces" / name
    assert convert(real, tmp_path / "set") == 0
    for file in ("train.rec", "train.idx", "property"):
        assert (tmp_path / "set" / file).read_bytes() == (real / file).read_bytes()


def test_real_file_without_header_gets_one(shared_dir, tmp_path):
    real = shared_dir / "formats/recordio"
    assert convert(real, tmp_path / "set") == 0
    before, after = RecordIOSet.open(real), RecordIOSet.open(tmp_path / "set")
    order = np.argsort(before.labels, kind="stable")
    assert after.labels.tolist() == before.labels[order].tolist()
    assert pictures(after) == [before.read(int(index))[0] for index in order]


def test_recordio_with_gaps_in_its_labels(tmp_path):
    payloads = {7: face(5, face_picture(0)), 2: face([3, 9.5], face_picture(1)), 9: face(5, face_picture(2))}
    assert convert(write_recordio(tmp_path / "gaps", payloads), tmp_path / "set") == 0
    faces = RecordIOSet.open(tmp_path / "set")
    assert faces.labels.tolist() == [0, 1, 1]
    assert pictures(faces) == [face_picture(1), face_picture(0), face_picture(2)]
    assert names(tmp_path / "set") == ["3", "5"]


def test_identities_names_outlive_a_second_conversion(tmp_path):
    write_tree(tmp_path / "faces", [4, 8, 8])
    assert convert(tmp_path / "faces", tmp_path / "once") == 0
    assert convert(tmp_path / "once", tmp_path / "twice") == 0
    for file in ("train.rec", "train.idx", "property", "identities.txt"):
        assert (tmp_path / "twice" / file).read_bytes() == (tmp_path / "once" / file).read_bytes()


def test_picture_that_holds_the_magic_number(tmp_path):
    picture = face_picture(0)
    comment = b"\xff\xfe" + (2 + 20).to_bytes(2, "big") + b"ab" + MAGIC * 4 + b"cd"
    picture = picture[:2] + comment + picture[2:]
    assert any(picture[at : at + 4] == MAGIC for at in range(0, len(picture), 4))
    (tmp_path / "faces/one").mkdir(parents=True)
    (tmp_path / "faces/one/a.jpg").write_bytes(picture)
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert pictures(RecordIOSet.open(tmp_path / "set")) == [picture]


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_list_of_pictures(tmp_path, separator):
    labels = ["10", "9", "10", "9", "-1"]
    for index, _ in enumerate(labels):
        (tmp_path / f"a b {index}.jpg").write_bytes(face_picture(index))
    lines = [f"a b {index}.jpg{separator}{label}\n" for index, label in enumerate(labels)]
    (tmp_path / "list.txt").write_text("# path and label\n\n" + "".join(lines))
    assert convert(tmp_path / "list.txt", tmp_path / "set") == 0
    faces = RecordIOSet.open(tmp_path / "set")
    assert names(tmp_path / "set") == ["-1", "9", "10"]
    assert faces.labels.tolist() == [0, 1, 1, 2, 2]
    assert pictures(faces) == [face_picture(index) for index in (4, 1, 3, 0, 2)]
    # Records stay in the list's order, so a large list is read and written in one go; only keys are grouped.
    offsets = [int(line.split("\t")[1]) for line in (tmp_path / "set/train.idx").read_text().splitlines()]
    assert sorted(range(1, 6), key=lambda key: offsets[key]) == [4, 2, 5, 3, 1]


def test_list_as_mxnet_writes_it(tmp_path):
    (tmp_path / "pictures").mkdir()
    for index in range(3):
        (tmp_path / f"pictures/{index}.jpg").write_bytes(face_picture(index))
    text = "0\t1.000000\t0.jpg\n1\t0.000000\t1.jpg\n5\t1\t2.jpg\n"
    (tmp_path / "train.lst").write_text(text)
    assert convert(tmp_path / "train.lst", tmp_path / "set", "--root", tmp_path / "pictures") == 0
    assert pictures(RecordIOSet.open(tmp_path / "set")) == [face_picture(index) for index in (1, 0, 2)]


def test_tface_shards(tmp_path):
    written = write_tface(tmp_path, "faces", [1, 0, 1, 0], shard_size=3)
    assert convert(tmp_path / "faces.txt", tmp_path / "set") == 0
    assert pictures(RecordIOSet.open(tmp_path / "set")) == [written[index] for index in (1, 3, 0, 2)]


def test_hugging_face_files_with_class_names(tmp_path):
    labels = [1, 0, 1, 2, 0, 1, 2]
    own = [face_picture(index) for index in range(7)]
    for number, rows in enumerate((slice(0, 4), slice(4, 7))):
        columns = {"image": image_column(own[rows]), "label": pa.array(labels[rows])}
        write_parquet(tmp_path / f"hub/data/train-{number:05d}-of-00002.parquet", columns, ["Ada", "Bo", "Cy"])
    assert convert(tmp_path / "hub", tmp_path / "set") == 0
    faces = RecordIOSet.open(tmp_path / "set")
    assert names(tmp_path / "set") == ["Ada", "Bo", "Cy"]
    order = sorted(range(7), key=lambda index: (labels[index], index))
    assert pictures(faces) == [own[index] for index in order]


def test_parquet_with_columns_of_ones_own(tmp_path):
    own = [face_picture(index) for index in range(2)]
    write_parquet(
        tmp_path / "a.parquet", {"jpeg": pa.array(own), "who": pa.array(["b", "a"]), "label": pa.array([0, 0])}
    )
    fields = ("--image-field", "jpeg", "--label-field", "who")
    assert convert(tmp_path / "a.parquet", tmp_path / "set", *fields) == 0
    assert pictures(RecordIOSet.open(tmp_path / "set")) == own[::-1]
    assert names(tmp_path / "set") == ["a", "b"]


def test_parquet_of_many_batches(tmp_path):
    own = [face_picture(index % 5) + bytes([index % 251]) for index in range(1200)]
    columns = {"image": image_column(own), "label": pa.array([index % 3 for index in range(1200)])}
    write_parquet(tmp_path / "a.parquet", columns, rows=700)
    assert convert(tmp_path / "a.parquet", tmp_path / "set") == 0
    expected = [own[index] for identity in range(3) for index in range(identity, 1200, 3)]
    assert pictures(RecordIOSet.open(tmp_path / "set")) == expected


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (
            {"photo": pa.array([b"x"]), "label": pa.array([0])},
            r"no column image or .*it has photo, label.*--image-field",
        ),
        ({"image": pa.array([b"x"]), "who": pa.array([0])}, r"no column label or .*--label-field"),
        ({"image": pa.array(["x"]), "label": pa.array([0])}, r"column image is string; pictures are struct"),
        ({"image": pa.array([b"x"]), "label": pa.array([None], pa.int64())}, r"row 0: None in column label|no rows"),
        ({"image": image_column([None]), "label": pa.array([0])}, r"row 0: the row holds no bytes, only a path"),
    ],
)
def test_parquet_that_cannot_be_used(tmp_path, capsys, columns, problem):
    write_parquet(tmp_path / "a.parquet", columns)
    assert convert(tmp_path / "a.parquet", tmp_path / "set") == 1
    assert_error(capsys, problem)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("damage", ["cut", "overwritten", "text"])
def test_damaged_parquet(tmp_path, capsys, damage):
    path = tmp_path / "a.parquet"
    write_parquet(path, {"image": image_column([face_picture(0)] * 9), "label": pa.array([0] * 9)})
    content = path.read_bytes()
    damaged = {"cut": content[:-20], "overwritten": content[:4] + b"\xff" * 300 + content[304:], "text": b"no parquet"}
    path.write_bytes(damaged[damage])
    assert convert(path, tmp_path / "set") == 1
    assert_error(capsys, r"a\.parquet")
    assert not (tmp_path / "set").exists()


def assert_error(capsys: pytest.CaptureFixture[str], pattern: str) -> None:
    """The command said one line, beginning with its name."""
    captured = capsys.readouterr()
    assert captured.err.startswith("fedface-data: ")
    assert captured.err.count("\n") == 1
    assert re.search(pattern, captured.err), captured.err


def test_resized_and_encoded_anew(tmp_path):
    write_tree(tmp_path / "faces", [0, 1], size=32)
    (tmp_path / "faces/id-000/small.jpg").write_bytes(face_picture(5, size=16))
    assert convert(tmp_path / "faces", tmp_path / "set", "--size", 16) == 0
    faces = RecordIOSet.open(tmp_path / "set")
    stored = pictures(faces)
    assert stored[1] == face_picture(5, size=16)
    with Image.open(io.BytesIO(stored[0])) as picture:
        assert (picture.format, picture.size) == ("JPEG", (16, 16))
    wanted = decode(face_picture(0, size=32), 16, "here").astype(int)
    assert np.abs(decode(stored[0], 16, "here") - wanted).mean() < 3
    assert convert(tmp_path / "faces", tmp_path / "small", "--size", 16, "--quality", 30) == 0
    small = pictures(RecordIOSet.open(tmp_path / "small"))
    assert all(len(few) < len(many) for few, many in zip(small, stored, strict=True))
    with Image.open(io.BytesIO(small[0])) as picture:
        assert picture.layer[0][1:3] == (1, 1)  # colours at full resolution


def test_red_and_blue_exchanged(tmp_path):
    (tmp_path / "faces/one").mkdir(parents=True)
    (tmp_path / "faces/one/a.png").write_bytes(encoded(face_pixels(0)[::-1], "PNG"))
    assert convert(tmp_path / "faces", tmp_path / "set", "--exchange-colours") == 0
    (mended,) = pictures(RecordIOSet.open(tmp_path / "set"))
    assert np.abs(decode(mended, 16, "here").astype(int) - face_pixels(0)).mean() < 3


def test_names_that_are_not_utf8(tmp_path, capsys):
    folder = os.fsencode(tmp_path) + b"/caf\xe9/id-\xff"
    os.makedirs(folder)
    for name, data in ((b"a\xfe.jpg", face_picture(0)), (b"b\n\xfe.jpg", b"broken")):
        with open(folder + b"/" + name, "wb") as file:
            file.write(data)
    source = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    assert convert(source, tmp_path / "set") == 1
    assert r"id-\udcff/b\n\udcfe.jpg: the image cannot be decoded" in capsys.readouterr().err
    assert convert(source, tmp_path / "set", "--skip-broken") == 0
    assert names(tmp_path / "set") == [r"id-\udcff"]
    assert r"b\n\udcfe.jpg" in (tmp_path / "set/broken.txt").read_text()
    assert main(["split", source, str(tmp_path / "parts"), "--parts", "2"]) == 1
    assert main(["inspect", source, "--json"]) == 1
    capsys.readouterr()
    assert convert(source, tmp_path / "set", "--skip-broken") == 0
    assert "was there already" in capsys.readouterr().out


def test_grey_and_transparent_pictures(tmp_path):
    (tmp_path / "faces/one").mkdir(parents=True)
    grey = encoded(face_pixels(0)[:1], "JPEG")
    (tmp_path / "faces/one/grey.jpg").write_bytes(grey)
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert pictures(RecordIOSet.open(tmp_path / "set")) == [grey]


def test_pictures_of_two_sizes_need_one(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0, 1])
    (tmp_path / "faces/id-001/large.jpg").write_bytes(face_picture(5, size=32))
    assert convert(tmp_path / "faces", tmp_path / "set") == 1
    assert_error(capsys, r"picture 2 of the source is 32x32, those before it 16x16; .*--size")


def broken_tree(root: Path) -> Path:
    write_tree(root, [0, 0, 1, 1, 2])
    (root / "id-000/0001.jpg").write_bytes(face_picture(1)[:300])
    (root / "id-002/0004.jpg").write_bytes(b"")
    oblong = np.zeros((3, 8, 16), dtype=np.uint8)
    (root / "id-001/0003.jpg").write_bytes(encoded(oblong, "JPEG"))
    (root / "id-001/notes.txt").write_text("x")
    (root / "stray.jpg").write_bytes(face_picture(9))
    (root / "id-003").mkdir()
    return root


def test_broken_picture_stops_the_conversion(tmp_path, capsys):
    root = broken_tree(tmp_path / "faces")
    assert convert(root, tmp_path / "set") == 1
    assert_error(capsys, r"notes\.txt: not a .* picture; convert, hide or remove it \(and 2 more\)$")
    (root / "id-001/notes.txt").unlink()
    assert convert(root, tmp_path / "set") == 1
    assert_error(capsys, r"id-003: the identity has no pictures; remove the folder \(and 1 more\)$")
    assert main(["split", str(root), str(tmp_path / "parts"), "--parts", "2"]) == 1
    assert_error(capsys, r"id-003: the identity has no pictures; remove the folder \(and 1 more\)$")
    (root / "id-003").rmdir()
    assert convert(root, tmp_path / "set") == 1
    assert_error(capsys, r"stray\.jpg: a stray file .*; move it away, or hide it by a dot before its name$")
    (root / "stray.jpg").unlink()
    assert convert(root, tmp_path / "set") == 1
    assert_error(capsys, r"id-000/0001\.jpg: the image cannot be decoded .* --skip-broken")
    assert not (tmp_path / "set").exists()


def test_broken_pictures_left_out(tmp_path, capsys):
    root = broken_tree(tmp_path / "faces")
    assert convert(root, tmp_path / "set", "--skip-broken") == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/set: 2 images of 2 identities, 16 px; 3 pictures left out and 3 faults passed over, "
        f"see {tmp_path}/set/broken.txt\n"
    )
    faces = RecordIOSet.open(tmp_path / "set")
    assert pictures(faces) == [face_picture(0), face_picture(2)]
    assert names(tmp_path / "set") == ["id-000", "id-001"]
    listed = (tmp_path / "set/broken.txt").read_text()
    for part in (
        "notes.txt",
        "stray.jpg",
        "id-003: the identity",
        "0001.jpg: the image",
        "0003.jpg: the image is 16x8",
    ):
        assert part in listed
    assert listed.count("\n") == 6


def test_the_same_damage_gets_the_same_text_and_one_advice(tmp_path, capsys):
    (tmp_path / "faces/one").mkdir(parents=True)
    (tmp_path / "faces/one/a.jpg").write_bytes(b"no picture")
    (tmp_path / "faces/one/b.jpg").write_bytes(face_picture(1))
    (tmp_path / "faces/one/c.jpg").write_bytes(face_picture(2)[:300])
    assert convert(tmp_path / "faces", tmp_path / "set") == 1
    assert capsys.readouterr().err == (
        f"fedface-data: {tmp_path}/faces/one/a.jpg: the image cannot be decoded (not a whole JPEG or PNG picture); "
        "remove or replace it; --skip-broken leaves such pictures out\n"
    )
    for name in ("once", "again"):
        assert convert(tmp_path / "faces", tmp_path / name, "--skip-broken") == 0
    listed = (tmp_path / "once/broken.txt").read_text()
    assert listed == (tmp_path / "again/broken.txt").read_text()
    assert "0x" not in listed


def test_nothing_left(tmp_path, capsys):
    (tmp_path / "faces/one").mkdir(parents=True)
    (tmp_path / "faces/one/a.jpg").write_bytes(b"x")
    assert convert(tmp_path / "faces", tmp_path / "new/deep/set", "--skip-broken") == 1
    assert_error(capsys, "not one picture is left for this set$")
    assert [path.name for path in tmp_path.iterdir()] == ["faces"]


@pytest.mark.parametrize(
    "command", [["convert"], ["split", "--parts", "2"], ["split", "--parts", "2", "--by", "image"]], ids=" ".join
)
@pytest.mark.parametrize("fault", ["broken", "stray", "two sizes"])
def test_refused_command_leaves_nothing(tmp_path, capsys, command, fault):
    root = tmp_path / "faces"
    write_tree(root, [0, 0, 1, 1])
    match fault:
        case "broken":
            (root / "id-001/0003.jpg").write_bytes(b"x")
        case "stray":
            (root / "notes.txt").write_text("x")
        case "two sizes":
            (root / "id-001/0003.jpg").write_bytes(face_picture(3, size=32))
    (tmp_path / "there").mkdir()
    for dest in ("there/set", "new/deep/set"):
        assert main([command[0], str(root), str(tmp_path / dest), *command[1:]]) == 1
        assert "kept" not in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faces", "there"]
    assert list((tmp_path / "there").iterdir()) == []


def test_damaged_recordio_salvaged(tmp_path, capsys):
    payloads = public_pack([0, 0, 1, 2])
    folder = write_recordio(tmp_path / "pack", payloads, "3,8,8")
    content = bytearray((folder / "train.rec").read_bytes())
    offsets = dict(map(int, line.split()) for line in (folder / "train.idx").read_text().splitlines())
    content[offsets[2]] ^= 1
    (folder / "train.rec").write_bytes(content)
    assert convert(folder, tmp_path / "set") == 1
    assert_error(capsys, r"train\.rec: record 2: no record starts .*--skip-broken")
    assert convert(folder, tmp_path / "set", "--skip-broken") == 0
    faces = RecordIOSet.open(tmp_path / "set")
    assert pictures(faces) == [payloads[key][24:] for key in (1, 3, 4)]
    assert faces.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), "no pictures; expected one folder"),
        (lambda path: path.write_text(""), "no line of the list"),
        (lambda path: path.write_text("nothing-but-a-path\n"), "no line of the list"),
        (lambda path: path.write_bytes(bytes(range(256)) * 9), "lists?|line 1|no line"),
    ],
)
def test_source_that_is_none(tmp_path, capsys, make, problem):
    make(tmp_path / "source")
    assert convert(tmp_path / "source", tmp_path / "set") == 1
    assert_error(capsys, problem)


def test_malformed_line_of_a_list(tmp_path, capsys):
    (tmp_path / "a.jpg").write_bytes(face_picture(0))
    (tmp_path / "list.txt").write_text("a.jpg 0\na.jpg\n\t1\n")
    assert convert(tmp_path / "list.txt", tmp_path / "set") == 1
    assert_error(capsys, r"list\.txt: line 2: not a path and a label \(and 1 more\)")


def test_parquet_without_pyarrow(tmp_path, capsys, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert convert(tmp_path / "a.parquet", tmp_path / "set") == 1
    assert_error(capsys, r"needs pyarrow; install fedface-flwr\[tools\]")


def test_no_progress_without_a_terminal(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0, 1])
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert capsys.readouterr().err == ""


def test_listed_file_that_is_not_there(tmp_path, capsys):
    (tmp_path / "list.txt").write_text("a.jpg 0\n")
    assert convert(tmp_path / "list.txt", tmp_path / "set") == 1
    assert_error(capsys, r"a\.jpg: cannot be read \(No such file")


def test_verification_pack_is_no_training_set(shared_dir, tmp_path, capsys):
    assert convert(shared_dir / "faces/age_gap.bin", tmp_path / "set") == 1
    assert_error(capsys, "has pairs, not identities")


def test_destination_that_is_taken(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0])
    (tmp_path / "set").mkdir()
    (tmp_path / "set/mine.txt").write_text("kept")
    assert convert(tmp_path / "faces", tmp_path / "set") == 1
    assert_error(capsys, "exists already")
    assert (tmp_path / "set/mine.txt").read_text() == "kept"
    (tmp_path / "set/mine.txt").unlink()
    assert convert(tmp_path / "faces", tmp_path / "set") == 0


def test_finished_conversion_is_not_done_again(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0, 1])
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    stat = (tmp_path / "set/train.rec").stat()
    capsys.readouterr()
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert capsys.readouterr().out.endswith("16 px (was there already)\n")
    assert (tmp_path / "set/train.rec").stat() == stat
    assert convert(tmp_path / "faces", tmp_path / "set", "--quality", 50) == 1
    assert_error(capsys, "exists already")


def remove(path: Path) -> None:
    path.unlink()


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


@pytest.mark.parametrize("change", [remove, grow])
@pytest.mark.parametrize("name", ["train.rec", "train.idx", "property", "identities.txt"])
def test_finished_set_that_has_lost_a_file_is_said_to(tmp_path, capsys, name, change):
    write_tree(tmp_path / "faces", [0, 1])
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert main(["sums", str(tmp_path / "set")]) == 0
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    change(tmp_path / "set" / name)
    capsys.readouterr()
    assert convert(tmp_path / "faces", tmp_path / "set") == 1
    assert_error(capsys, rf"set: this command made it before, .*: {name}; remove the folder, and the command makes")


def test_finished_split_that_has_lost_a_part_is_said_to(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0, 1])
    arguments = ["split", str(tmp_path / "faces"), str(tmp_path / "parts"), "--parts", "2", "--name", "part"]
    assert main(arguments) == 0
    (tmp_path / "parts/part-2/train.rec").unlink()
    capsys.readouterr()
    assert main(arguments) == 1
    assert_error(capsys, r"another size: part-2/train\.rec;")


def test_set_of_before_sizes_were_recorded(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0, 1])
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    origin = json.loads((tmp_path / "set/origin.json").read_text())
    del origin["files"], origin["result"]["faults"]
    (tmp_path / "set/origin.json").write_text(json.dumps(origin))
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert capsys.readouterr().out.endswith("(was there already)\n")


def test_looking_at_sets_and_converting_them_does_without_torch(tmp_path):
    write_tree(tmp_path / "faces", [0, 1])
    lines = [
        ["--help"],
        ["inspect", str(tmp_path / "faces")],
        ["convert", str(tmp_path / "faces"), str(tmp_path / "set")],
    ]
    code = f"""
import sys
from fedface_flwr import entry
codes = []
for line in {lines!r}:
    sys.argv = ["fedface-data", *line]
    try:
        codes.append(entry.data())
    except SystemExit as ended:
        codes.append(ended.code)
assert codes == [0, 0, 0], codes
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "set/train.rec").is_file()


def test_names_that_would_break_the_sidecars_lines(tmp_path):
    for name in ("tab\tname", "line\nname", "plain é"):
        (tmp_path / "faces" / name).mkdir(parents=True)
        (tmp_path / "faces" / name / "a.jpg").write_bytes(face_picture(len(name)))
    assert convert(tmp_path / "faces", tmp_path / "set") == 0
    assert names(tmp_path / "set") == [r"line\nname", "plain é", r"tab\tname"]


def test_malformed_sidecar(tmp_path):
    folder = write_recordio(tmp_path / "pack", public_pack([0, 1]))
    (folder / "identities.txt").write_text("0\tAda\nBo\n")
    with pytest.raises(DataError, match=r"identities\.txt: line 2 is not 'label<TAB>name'"):
        RecordIOSource.open(folder)
