# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
from source_writers import face_picture

from fedface_flwr.data.packs import read_pack
from fedface_flwr.dataprep.command import main
from fedface_flwr.dataprep.pack import _encoded
from fedface_flwr.dataprep.pictures import Prepared
from fedface_flwr.reporting.bars import Reporter


def pack(*arguments: object) -> int:
    return main(["pack", *map(str, arguments)])


def csv_pairs(folder: Path, pairs: int = 12, column: list[int] | None = None) -> Path:
    """Pairs of pictures 2i and 2i + 1, every second one matching."""
    for index in range(2 * pairs):
        (folder / f"{index}.jpg").write_bytes(face_picture(index))
    rows = [f"{2 * pair}.jpg,{2 * pair + 1}.jpg,{pair % 2}" for pair in range(pairs)]
    head = "left,right,same"
    if column is not None:
        head, rows = head + ",fold", [f"{row},{fold}" for row, fold in zip(rows, column, strict=True)]
    (folder / "pairs.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder / "pairs.csv"


def test_pairs_are_read_back_by_pickle_and_by_us(tmp_path, capsys):
    assert pack(csv_pairs(tmp_path), tmp_path / "gate.bin") == 0
    assert capsys.readouterr().out == f"{tmp_path}/gate.bin: 12 pairs, 6 matching, 16 px\n"
    content = (tmp_path / "gate.bin").read_bytes()
    # As insightface reads packs, and as Python would by default.
    for loaded in (pickle.loads(content, encoding="bytes"), pickle.loads(content)):
        images, same = loaded
        assert images == [face_picture(index) for index in range(24)]
        assert same == [bool(pair % 2) for pair in range(12)]
        assert {type(image) for image in images} == {bytes}
        assert {type(value) for value in same} == {bool}
    assert {opcode.proto for opcode, _, _ in pickletools.genops(content)} <= {0, 1, 2, 3}
    own = read_pack(tmp_path / "gate.bin", 16)
    assert own.same.tolist() == [bool(pair % 2) for pair in range(12)]


def test_pack_of_several_thousand_pictures(tmp_path):
    for index in range(2):
        (tmp_path / f"{index}.jpg").write_bytes(face_picture(index))
    rows = [f"{pair % 2}.jpg,{pair % 3 % 2}.jpg,{pair % 2}" for pair in range(1250)]
    (tmp_path / "pairs.csv").write_text("\n".join(["left,right,same", *rows]))
    assert pack(tmp_path / "pairs.csv", tmp_path / "gate.bin") == 0
    images, same = pickle.loads((tmp_path / "gate.bin").read_bytes())
    assert len(same) == 1250
    assert images == [face_picture(number) for pair in range(1250) for number in (pair % 2, pair % 3 % 2)]


def test_fold_column_orders_the_pairs(tmp_path):
    column = [1, 0] * 6
    assert pack(csv_pairs(tmp_path, column=column), tmp_path / "gate.bin") == 0
    images, same = pickle.loads((tmp_path / "gate.bin").read_bytes())
    order = sorted(range(12), key=lambda pair: (column[pair], pair))
    assert same == [bool(pair % 2) for pair in order]
    assert images[::2] == [face_picture(2 * pair) for pair in order]


def test_lfw_pairs_in_the_order_of_their_folds(tmp_path):
    seeds = iter(range(100))
    for name in ("Ada", "Bo"):
        (tmp_path / name).mkdir()
        for number in (1, 2, 3):
            (tmp_path / name / f"{name}_{number:04d}.jpg").write_bytes(face_picture(next(seeds)))
    lines = ["2\t1", "Ada\t1\t2", "Ada\t3\tBo\t1", "Bo\t2\t3", "Bo\t1\tAda\t2"]
    (tmp_path / "pairs.txt").write_text("\n".join(lines) + "\n")
    assert pack(tmp_path / "pairs.txt", tmp_path / "lfw.bin") == 0
    images, same = pickle.loads((tmp_path / "lfw.bin").read_bytes())
    assert same == [True, False, True, False]
    assert images == [face_picture(seed) for seed in (0, 1, 2, 3, 4, 5, 3, 1)]


def test_list_of_pairs_with_pictures_elsewhere(tmp_path):
    (tmp_path / "pictures").mkdir()
    csv_pairs(tmp_path / "pictures")
    lines = [f"{pair % 2} {2 * pair}.jpg {2 * pair + 1}.jpg" for pair in range(12)]
    (tmp_path / "ann.txt").write_text("\n".join(lines))
    assert pack(tmp_path / "ann.txt", tmp_path / "gate.bin", "--images", tmp_path / "pictures") == 0
    images, _ = pickle.loads((tmp_path / "gate.bin").read_bytes())
    assert images == [face_picture(index) for index in range(24)]


def test_real_pack_taken_apart_and_built_again(shared_dir, tmp_path):
    real = pickle.loads((shared_dir / "faces/age_gap.bin").read_bytes(), encoding="bytes")
    chosen = [pair for kind in (True, False) for pair in range(len(real[1])) if real[1][pair] == kind][::40]
    images = [real[0][number] for pair in chosen for number in (2 * pair, 2 * pair + 1)]
    same = [real[1][pair] for pair in chosen]
    for index, image in enumerate(images):
        (tmp_path / f"{index}.jpg").write_bytes(image)
    rows = [f"{2 * pair}.jpg,{2 * pair + 1}.jpg,{int(bool(value))}" for pair, value in enumerate(same)]
    (tmp_path / "pairs.csv").write_text("\n".join(["left,right,same", *rows]))
    assert pack(tmp_path / "pairs.csv", tmp_path / "gate.bin") == 0
    again = pickle.loads((tmp_path / "gate.bin").read_bytes())
    assert again == (images, [bool(value) for value in same])


def test_resized(tmp_path):
    path = csv_pairs(tmp_path)
    (tmp_path / "3.jpg").write_bytes(face_picture(3, size=32))
    assert pack(path, tmp_path / "gate.bin", "--size", 16) == 0
    assert read_pack(tmp_path / "gate.bin", 16).images.shape == (24, 3, 16, 16)
    images, _ = pickle.loads((tmp_path / "gate.bin").read_bytes())
    assert [image == face_picture(index) for index, image in enumerate(images)] == [index != 3 for index in range(24)]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "3.jpg").write_bytes(b"x"), "3.jpg: the image cannot be decoded"),
        (lambda folder: (folder / "3.jpg").unlink(), "there is no picture"),
        (lambda folder: (folder / "3.jpg").write_bytes(face_picture(3, size=32)), "pair 1: a picture of side 32"),
        (lambda folder: (folder / "pairs.csv").write_text("left,right\n"), "no column same"),
        (lambda folder: (folder / "pairs.csv").write_text(""), "empty"),
        (lambda folder: (folder / "pairs.csv").write_bytes(b"\xff\xfe\0"), "not a text file"),
        (lambda folder: (folder / "gate.bin").write_text("mine"), "exists already"),
    ],
)
def test_nothing_is_written_when_something_is_wrong(tmp_path, capsys, spoil, problem):
    path = csv_pairs(tmp_path)
    spoil(tmp_path)
    before = sorted(entry.name for entry in tmp_path.iterdir())
    assert pack(path, tmp_path / "gate.bin") == 1
    assert problem in capsys.readouterr().err
    if problem != "exists already":
        assert pack(path, tmp_path / "new/deep/gate.bin") == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_pairs_of_one_kind(tmp_path, capsys):
    path = csv_pairs(tmp_path)
    path.write_text(path.read_text().replace(",0\n", ",1\n"))
    assert pack(path, tmp_path / "gate.bin") == 1
    assert "12 pairs, all of one kind" in capsys.readouterr().err


def test_short_and_long_pictures_have_their_own_opcodes(tmp_path):
    contents = [bytes(length) for length in (0, 255, 256, 70000)]
    sides: list[int] = []
    items = list(_encoded(lambda index: Prepared(contents[index], 8), 4, sides, Reporter()))
    assert [pickle.loads(b"\x80\x03" + item + b".") for item in items] == contents
    assert np.unique(sides).tolist() == [8]
