# SPDX-License-Identifier: Apache-2.0
"""Every form that pairs come in, by the forms' own descriptions, and what is said of files that break them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedface_flwr.data.alignment import TEMPLATE
from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.pictures import Embedded
from fedface_flwr.protocols.pairs import PairsBenchmark, from_options
from fedface_flwr.protocols.pairs_set import FilePictures, Pairs


def png(seed: int, width: int = 8, height: int = 8) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def draw(path: Path, seed: int = 0, width: int = 8, height: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(seed, width, height))
    return path


def pairs_of(root: Path, **options: object) -> Pairs:
    return from_options("toy", options, root).load()


def described(pairs: Pairs, root: Path) -> list[tuple[str, str, bool, int]]:
    """Left and right picture, kind and fold of each pair."""
    assert isinstance(pairs.pictures, FilePictures)
    names = [path.relative_to(root).as_posix() for path in pairs.pictures.files]
    assert len(set(names)) == len(names)
    rows = zip(pairs.left, pairs.right, pairs.same, pairs.fold, strict=True)
    return [(names[left], names[right], bool(same), int(fold)) for left, right, same, fold in rows]


# LFW


FOLDS = ["2\t1", "Ann_Lee\t1\t2", "Ann_Lee\t1\tBob\t3", "Bob\t3\t12", "Bob\t3\tAnn_Lee\t2"]


def write_lfw(root: Path, lines: list[str], extension: str = "jpg") -> Path:
    for name, number in (("Ann_Lee", 1), ("Ann_Lee", 2), ("Bob", 3), ("Bob", 12)):
        draw(root / "lfw" / name / f"{name}_{number:04d}.{extension}", number)
    (root / "pairs.txt").write_text("\n".join(lines) + "\n")
    return root


def test_lfw_in_folds(tmp_path: Path) -> None:
    write_lfw(tmp_path, FOLDS)
    pairs = pairs_of(tmp_path, format="lfw", file="pairs.txt", images="lfw")
    assert pairs.folding == "given"
    assert described(pairs, tmp_path / "lfw") == [
        ("Ann_Lee/Ann_Lee_0001.jpg", "Ann_Lee/Ann_Lee_0002.jpg", True, 0),
        ("Ann_Lee/Ann_Lee_0001.jpg", "Bob/Bob_0003.jpg", False, 0),
        ("Bob/Bob_0003.jpg", "Bob/Bob_0012.jpg", True, 1),
        ("Bob/Bob_0003.jpg", "Ann_Lee/Ann_Lee_0002.jpg", False, 1),
    ]


def test_lfw_in_one_set_deals_each_kind_into_folds(tmp_path: Path) -> None:
    same, differ = "Ann_Lee\t1\t2", "Ann_Lee\t1\tBob\t3"
    write_lfw(tmp_path, ["4", *[same] * 4, *[differ] * 4], "png")
    pairs = pairs_of(tmp_path, format="lfw", file="pairs.txt", images="lfw", extension=".png", folds=2)
    assert pairs.same.tolist() == [True] * 4 + [False] * 4
    assert pairs.fold.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert pairs.folding == "consecutive by kind"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([""], "empty"),
        (["ten 300"], "line 1: 'ten' is not a whole number"),
        (["2 1 1"], "is not the number of folds and of pairs"),
        (["0 1"], "line 1: '0' is not a whole number of at least 1"),
        (FOLDS[:-1], "3 pairs after the first line, which announces 4"),
        ([*FOLDS, FOLDS[-1]], "5 pairs after"),
        ([FOLDS[0], FOLDS[2], FOLDS[1], *FOLDS[3:]], r"line 2: .* is not NAME n1 n2"),
        ([*FOLDS[:-1], FOLDS[1]], "line 5: .* is not NAME1 n1 NAME2 n2"),
        ([*FOLDS[:-1], "Bob\t3\tAnn_Lee\t-2"], "line 5: '-2' is not a whole number"),
        ([*FOLDS[:-1], "Bob\t3\tAnn_Lee\t9"], r"line 5: there is no picture .*Ann_Lee_0009\.jpg"),
        ([*FOLDS[:-1], "Bob\t3\tAnn_Lee\t" + "9" * 5000], "is not a whole number"),
    ],
)
def test_lfw_lists_that_break_the_form(tmp_path: Path, lines: list[str], reason: str) -> None:
    write_lfw(tmp_path, lines)
    with pytest.raises(DataError, match=reason) as caught:
        pairs_of(tmp_path, format="lfw", file="pairs.txt", images="lfw")
    assert str(caught.value).startswith(f"toy: {tmp_path / 'pairs.txt'}")


# CFP


def write_cfp(root: Path, folds: Mapping[str, tuple[str, str]], protocol: str = "FP") -> Path:
    protocols = root / "cfp" / "Protocol"
    for letter, kind in (("F", "frontal"), ("P", "profile")):
        entries = [f"{at} ../Data/Images/00{at}/{kind}/01.jpg" for at in (1, 2)]
        for entry in entries:
            draw(protocols / entry.split()[1])
        protocols.mkdir(parents=True, exist_ok=True)
        (protocols / f"Pair_list_{letter}.txt").write_text(" \n".join(entries) + "\n")
    for name, (same, differ) in folds.items():
        fold = protocols / "Split" / protocol / name
        fold.mkdir(parents=True)
        (fold / "same.txt").write_text(same)
        (fold / "diff.txt").write_text(differ)
    return root


CFP_FOLDS = {"01": ("1,1\n", "1,2\n2,1\n"), "02": ("2,2\n", "2,1")}


def test_cfp_frontal_profile(tmp_path: Path) -> None:
    write_cfp(tmp_path, CFP_FOLDS)
    pairs = pairs_of(tmp_path, format="cfp", folder="cfp", protocol="FP")
    names = [path.resolve().relative_to(tmp_path / "cfp/Data/Images").as_posix() for path in pairs.pictures.files]
    assert [(names[left], names[right]) for left, right in zip(pairs.left, pairs.right, strict=True)] == [
        ("001/frontal/01.jpg", "001/profile/01.jpg"),
        ("001/frontal/01.jpg", "002/profile/01.jpg"),
        ("002/frontal/01.jpg", "001/profile/01.jpg"),
        ("002/frontal/01.jpg", "002/profile/01.jpg"),
        ("002/frontal/01.jpg", "001/profile/01.jpg"),
    ]
    assert pairs.same.tolist() == [True, False, False, True, False]
    assert pairs.fold.tolist() == [0, 0, 0, 1, 1]


def test_cfp_frontal_frontal_of_crops_elsewhere(tmp_path: Path) -> None:
    write_cfp(tmp_path, {"01": ("1,1", "1,2"), "02": ("2,2", "2,1")}, "FF")
    for at in (1, 2):
        draw(tmp_path / "crops" / f"00{at}" / "frontal" / "01.jpg")
    pairs = pairs_of(tmp_path, format="cfp", folder="cfp", protocol="FF", images="crops")
    assert described(pairs, tmp_path / "crops")[1] == ("001/frontal/01.jpg", "002/frontal/01.jpg", False, 0)


@pytest.mark.parametrize(
    ("folds", "reason"),
    [
        ({}, "expected folders 01, 02 and so on, one a fold, not none"),
        ({"01": ("1,1", "1,2")}, "not 01"),
        ({"01": ("1,1", "1,2"), "03": ("1,1", "1,2")}, "not 01, 03"),
        ({"01": ("1,1", "1,3"), "02": ("1,1", "1,2")}, r"diff\.txt: line 1: picture 3 is not in the list of 2"),
        ({"01": ("1;1", "1,2"), "02": ("1,1", "1,2")}, r"same\.txt: line 1: '1;1' is not a whole number"),
        ({"01": ("1,1,1", "1,2"), "02": ("1,1", "1,2")}, "is not two numbers with a comma between"),
        ({"01": ("", ""), "02": ("", "")}, "no pairs"),
        ({"01": ("1,1", ""), "02": ("2,2", "")}, "all of one kind"),
    ],
)
def test_cfp_folders_that_break_the_form(tmp_path: Path, folds: Mapping[str, tuple[str, str]], reason: str) -> None:
    write_cfp(tmp_path, folds)
    with pytest.raises(DataError, match=reason):
        pairs_of(tmp_path, format="cfp", folder="cfp", protocol="FP")


def test_a_cfp_list_that_repeats_a_number_or_lacks_a_file(tmp_path: Path) -> None:
    write_cfp(tmp_path, CFP_FOLDS)
    listed = tmp_path / "cfp/Protocol/Pair_list_P.txt"
    listed.write_text("1 a.jpg\n1 b.jpg\n")
    with pytest.raises(DataError, match=r"Pair_list_P\.txt: line 2: .* is not a new number"):
        pairs_of(tmp_path, format="cfp", folder="cfp", protocol="FP")
    listed.unlink()
    with pytest.raises(DataError, match=r"Pair_list_P\.txt: cannot be read"):
        pairs_of(tmp_path, format="cfp", folder="cfp", protocol="FP")


# CALFW and CPLFW


def write_calfw(root: Path, tokens: list[int]) -> Path:
    lines = [f"A_000{place % 2 + 1}.jpg {token}" for token in tokens for place in range(2)]
    for name in ("A_0001.jpg", "A_0002.jpg"):
        draw(root / "images" / name)
    (root / "pairs.txt").write_text("\n".join(lines))
    return root


def test_calfw_tells_the_folds_of_matching_pairs_only(tmp_path: Path) -> None:
    told = [fold for fold in range(1, 11) for _ in range(2)]
    write_calfw(tmp_path, [*told, *[0] * 20])
    pairs = pairs_of(tmp_path, format="calfw", file="pairs.txt", images="images")
    assert pairs.same.tolist() == [True] * 20 + [False] * 20
    assert pairs.fold.tolist() == [at // 2 for at in range(20)] * 2
    assert pairs.folding == "given for one person, consecutive for two"
    assert described(pairs, tmp_path / "images")[0] == ("A_0001.jpg", "A_0002.jpg", True, 0)


def test_without_told_folds_both_kinds_are_dealt(tmp_path: Path) -> None:
    write_calfw(tmp_path, [1, 0, 1, 0, 1, 0, 1, 0])
    pairs = pairs_of(tmp_path, format="calfw", file="pairs.txt", images="images", folds=2)
    assert pairs.fold.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert pairs.folding == "consecutive by kind"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 lines cannot make pairs"),
        ("A_0001.jpg 1\n", "1 line cannot make pairs"),
        ("A_0001.jpg 1\nA_0002.jpg 2\n", "line 1: the two lines of a pair end in 1 and 2"),
        ("A_0001.jpg\nA_0002.jpg 2\n", "line 1: 'A_0001.jpg' is not the name of a picture and a number"),
        ("A_0001.jpg 3\nA_0002.jpg 3\n", "folds up to 3 are named; there should be 10"),
        ("A_0001.jpg 1\nB_0002.jpg 1\n", "line 1: there is no picture"),
    ],
)
def test_calfw_lists_that_break_the_form(tmp_path: Path, text: str, reason: str) -> None:
    write_calfw(tmp_path, [1])
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(DataError, match=reason):
        pairs_of(tmp_path, format="calfw", file="pairs.txt", images="images")


# Plain lists and tables


@pytest.fixture
def album(tmp_path: Path) -> Path:
    for name in "abcd":
        draw(tmp_path / "images" / f"{name}.png", ord(name))
    return tmp_path


def test_a_plain_list_has_consecutive_folds(album: Path) -> None:
    (album / "list.txt").write_text("1 a.png b.png\n0 a.png c.png\n\n0 c.png d.png\n1 c.png d.png\n")
    pairs = pairs_of(album, format="list", file="list.txt", images="images", folds=2)
    assert described(pairs, album / "images") == [
        ("a.png", "b.png", True, 0),
        ("a.png", "c.png", False, 0),
        ("c.png", "d.png", False, 1),
        ("c.png", "d.png", True, 1),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 pairs cannot fill 10 folds"),
        ("1 a.png\n", "line 1: '1 a.png' is not 0 or 1 and two paths"),
        ("2 a.png b.png\n", "is not 0 or 1 and two paths"),
        ("1 a.png e.png\n", "line 1: there is no picture"),
        ("1 a.png b.png\n" * 9 + "0 a.png b.png\n", ""),
        ("1 a.png b.png\n" * 10, "all of one kind"),
        ("1 a.png b\0.png\n", "it holds zero bytes"),
        (f"1 a.png {'b' * 5000}.png\n", "line 1: there is no picture"),
    ],
)
def test_plain_lists_that_break_the_form(album: Path, text: str, reason: str) -> None:
    (album / "list.txt").write_text(text)
    if not reason:
        assert len(pairs_of(album, format="list", file="list.txt", images="images").same) == 10
        return
    with pytest.raises(DataError, match=reason):
        pairs_of(album, format="list", file="list.txt", images="images")


def test_a_table_with_folds_of_any_number_and_columns_in_any_order(album: Path) -> None:
    table = '\ufefffold,same,"left",right,remark\n7,TRUE,a.png,b.png,x\n3,0,a.png,c.png,"y, z"\n7,false,b.png,c.png,\n'
    (album / "pairs.csv").write_text(table, encoding="utf-8")
    pairs = pairs_of(album, format="csv", file="pairs.csv", images="images")
    assert described(pairs, album / "images") == [
        ("a.png", "b.png", True, 1),
        ("a.png", "c.png", False, 0),
        ("b.png", "c.png", False, 1),
    ]
    assert (pairs.folds, pairs.folding) == (2, "given")


def test_a_table_without_folds(album: Path) -> None:
    (album / "pairs.csv").write_text("left,right,same\n" + "a.png,b.png,1\na.png,c.png,0\n" * 3)
    pairs = pairs_of(album, format="csv", file="pairs.csv", images="images", folds=3)
    assert pairs.fold.tolist() == [0, 0, 1, 1, 2, 2]
    assert pairs.folding == "consecutive"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no column left or right or same"),
        ("left,right\na.png,b.png\n", "no column same"),
        ("left,right,same\n", "the table has no pairs"),
        ("left,right,same\na.png,b.png\n", "line 2: not as many fields"),
        ("left,right,same\na.png,b.png,1,1\n", "line 2: not as many fields"),
        ("left,right,same\na.png,b.png,yes\n", "line 2: same is 'yes'"),
        ("left,right,same\n,b.png,1\n", "line 2: a picture is not named"),
        ("left,right,same\na.png,z.png,1\n", "line 2: there is no picture"),
        ('left,right,same\n"a.png,b.png,1\n', "not CSV"),
        ("left,right,same,fold\na.png,b.png,1,x\n", "line 2: fold: 'x' is not a whole number"),
        ("left,right,same\na.png,b.png,1\n", "1 pair cannot fill 10 folds"),
    ],
)
def test_tables_that_break_the_form(album: Path, text: str, reason: str) -> None:
    (album / "pairs.csv").write_text(text)
    with pytest.raises(DataError, match=reason):
        pairs_of(album, format="csv", file="pairs.csv", images="images")


def test_a_list_with_folds_of_its_own_takes_no_number_of_folds(tmp_path: Path) -> None:
    own = r"pairs\.txt: has folds of its own; leave out the option folds"
    write_lfw(tmp_path, FOLDS)
    with pytest.raises(DataError, match=own):
        pairs_of(tmp_path, format="lfw", file="pairs.txt", images="lfw", folds=2)
    write_calfw(tmp_path, [*range(1, 11), *[0] * 10])
    assert pairs_of(tmp_path, format="calfw", file="pairs.txt", images="images", folds=None).folds == 10
    with pytest.raises(DataError, match=own):
        pairs_of(tmp_path, format="calfw", file="pairs.txt", images="images", folds=10)
    write_cfp(tmp_path, {"01": ("1,1", "1,2"), "02": ("2,2", "2,1")})
    with pytest.raises(ConfigError, match="no such option: folds"):
        pairs_of(tmp_path, format="cfp", folder=".", protocol="FP", folds=2)


def test_lists_without_folds_of_their_own_have_ten_unless_asked(tmp_path: Path) -> None:
    same, differ = "Ann_Lee\t1\t2", "Ann_Lee\t1\tBob\t3"
    write_lfw(tmp_path, ["10", *[same] * 10, *[differ] * 10])
    pairs = pairs_of(tmp_path, format="lfw", file="pairs.txt", images="lfw")
    assert pairs.fold.tolist() == [*range(10), *range(10)]
    write_calfw(tmp_path, [1, 0] * 10)
    pairs = pairs_of(tmp_path, format="calfw", file="pairs.txt", images="images")
    assert pairs.fold.tolist() == [fold for fold in range(10) for _ in range(2)]


def test_a_table_with_folds_takes_no_number_of_folds(album: Path) -> None:
    (album / "pairs.csv").write_text("left,right,same,fold\na.png,b.png,1,1\na.png,c.png,0,2\n")
    with pytest.raises(DataError, match="leave out the option folds"):
        pairs_of(album, format="csv", file="pairs.csv", images="images", folds=2)


def test_a_file_that_is_no_text(album: Path) -> None:
    (album / "pairs.csv").write_bytes(b"left,right,same\n\xff\xfe")
    with pytest.raises(DataError, match=r"not a text file in UTF-8 \(byte 16\)"):
        pairs_of(album, format="csv", file="pairs.csv", images="images")


# Packs


def write_pack(path: Path, same: list[bool]) -> Path:
    path.write_bytes(pickle.dumps(([png(at) for at in range(2 * len(same))], same)))
    return path


def test_a_pack_has_consecutive_folds(tmp_path: Path) -> None:
    write_pack(tmp_path / "toy.bin", [True, False, True, True, False])
    pairs = pairs_of(tmp_path, format="pack", file="toy.bin", folds=2)
    assert pairs.left.tolist() == [0, 2, 4, 6, 8]
    assert pairs.right.tolist() == [1, 3, 5, 7, 9]
    assert pairs.same.tolist() == [True, False, True, True, False]
    assert pairs.fold.tolist() == [0, 0, 0, 1, 1]
    data, where = pairs.pictures.read(3)
    assert where == f"{tmp_path / 'toy.bin'}: image 3"
    assert pairs.pictures.recipe(3) == b""
    pixels = pairs.pictures.pixels(data, 3, 8, where)
    expected = np.random.default_rng(3).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    np.testing.assert_array_equal(pixels, expected.transpose(2, 0, 1))


def test_a_damaged_pack_is_named_before_anything_is_embedded(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "toy.bin", [True, False])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"toy: .*toy\.bin: damaged pickle"):
        from_options("toy", {"format": "pack", "file": "toy.bin"}, tmp_path)


def test_real_lfw_in_folds(shared_dir: Path) -> None:
    pairs = pairs_of(shared_dir / "faces", format="pack", file="lfw.bin")
    assert (pairs.folds, len(pairs.pictures)) == (10, 12000)
    counts = np.bincount(2 * pairs.fold + pairs.same)
    assert counts.tolist() == [300] * 20


# Points


def points_table(root: Path, rows: Mapping[str, np.ndarray]) -> Path:
    head = ",".join(["picture", *(f"{axis}{at}" for at in range(1, 6) for axis in "xy")])
    lines = [",".join([name, *(f"{value:.4f}" for value in points.ravel())]) for name, points in rows.items()]
    (root / "points.csv").write_text("\n".join([head, *lines]))
    return root / "points.csv"


def test_pictures_that_are_not_square_need_points_and_are_aligned_by_them(tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="aligning needs opencv-python-headless")
    for name in ("a.png", "b.png"):
        draw(tmp_path / "images" / name, ord(name[0]), width=150, height=120)
    (tmp_path / "list.txt").write_text("1 a.png b.png\n0 a.png b.png\n")
    plain = {"format": "list", "file": "list.txt", "images": "images", "folds": 2}
    unaligned = pairs_of(tmp_path, **plain).pictures
    advice = r"align it first \(fedface-data align\), or give five points by the benchmark's option landmarks"
    with pytest.raises(DataError, match=rf"a\.png: the image is 150x120; aligned faces are square, so {advice}"):
        unaligned.pixels(*unaligned.read(0)[:1], 0, 112, unaligned.read(0)[1])
    # The template shifted by whole pixels: the crop is the same pixels, shifted back.
    points_table(tmp_path, {"a.png": TEMPLATE + np.array([20, 5]), "b.png": TEMPLATE + np.array([3, 1])})
    pictures = pairs_of(tmp_path, **plain, landmarks="points.csv").pictures
    data, where = pictures.read(0)
    whole = np.random.default_rng(ord("a")).integers(0, 256, (120, 150, 3), dtype=np.uint8)
    np.testing.assert_array_equal(pictures.pixels(data, 0, 112, where), whole[5:117, 20:132].transpose(2, 0, 1))
    assert pictures.recipe(0) != pictures.recipe(1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("picture,x1\na.png,1\n", "its first line names no column y1, x2"),
        ("{head}\na.png,1,2\n", "line 2: not as many fields"),
        ("{head}\na.png,1,2,3,4,5,6,7,8,9,nan\n", "line 2: 'nan' is not a finite number"),
        ("{head}\na.png,1,2,3,4,5,6,7,8,9,ten\n", "line 2: 'ten' is not a finite number"),
        ("{head}\na.png,1,2,3,4,5,6,7,8,9,10\n", r"no points of .*b\.png"),
    ],
)
def test_points_that_break_the_form(album: Path, text: str, reason: str) -> None:
    head = ",".join(["picture", *(f"{axis}{at}" for at in range(1, 6) for axis in "xy")])
    (album / "points.csv").write_text(text.replace("{head}", head))
    (album / "list.txt").write_text("1 a.png b.png\n0 a.png b.png\n")
    with pytest.raises(DataError, match=reason):
        pairs_of(album, format="list", file="list.txt", images="images", folds=2, landmarks="points.csv")


def test_points_that_fix_nothing_name_their_picture(album: Path) -> None:
    points_table(album, {"a.png": np.ones((5, 2)), "b.png": TEMPLATE})
    (album / "list.txt").write_text("1 a.png b.png\n0 a.png b.png\n")
    options = {"format": "list", "file": "list.txt", "images": "images", "folds": 2, "landmarks": "points.csv"}
    pictures = pairs_of(album, **options).pictures
    data, where = pictures.read(0)
    with pytest.raises(DataError, match=r"a\.png: the points .* are all the same"):
        pictures.pixels(data, 0, 112, where)


# Options


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "toy: option format is missing"),
        ({"format": "bin"}, "format='bin': must be one of pack, lfw, cfp, calfw, list, csv"),
        ({"format": "pack"}, "toy: option file is missing"),
        ({"format": "pack", "file": "absent.bin"}, "absent.bin is no file"),
        ({"format": "pack", "file": 7}, "file=7: must be text"),
        ({"format": "pack", "file": "a\0b"}, "must be text"),
        ({"format": "pack", "file": "toy.bin", "images": "."}, "no such option: images"),
        ({"format": "pack", "file": "toy.bin", "fold": 3}, "no such option: fold"),
        ({"format": "pack", "file": "toy.bin", "folds": 1}, "folds=1: must be a whole number from 2"),
        ({"format": "pack", "file": "toy.bin", "folds": True}, "folds=True"),
        ({"format": "pack", "file": "toy.bin", "flip": "yes"}, "flip='yes': must be true, false or both"),
        ({"format": "pack", "file": "toy.bin", "far_rules": ["exactly"]}, "far_rules=.*must list some of at most"),
        ({"format": "pack", "file": "toy.bin", "far_rules": []}, "far_rules=.*must list some of"),
        ({"format": "list", "file": "toy.bin", "images": "absent"}, "absent is no folder"),
        ({"format": "pack", "file": "a" * 5000}, "cannot be looked for"),
        ({"format": "cfp", "folder": ".", "protocol": "PP"}, "protocol='PP': must be one of FP, FF"),
    ],
)
def test_options_that_cannot_work(tmp_path: Path, options: dict[str, object], reason: str) -> None:
    write_pack(tmp_path / "toy.bin", [True, False] * 10)
    with pytest.raises(ConfigError, match=reason):
        from_options("toy", options, tmp_path)


# Running


def marked(vectors: np.ndarray) -> Callable[..., Embedded]:
    """An embedder that gives these vectors, the mirrored ones negated in their second half."""

    def embed(pictures: object, *, flip: bool, what: str) -> Embedded:
        mirrored = vectors.copy()
        mirrored[:, 1] *= -1
        return Embedded(vectors, mirrored if flip else None)

    return embed


def test_flip_adds_the_mirror_images_embeddings(tmp_path: Path) -> None:
    write_pack(tmp_path / "toy.bin", [True, False] * 2)
    options = {"format": "pack", "file": "toy.bin", "folds": 2, "flip": "both", "far_rules": "nearest"}
    benchmark = from_options("toy", options, tmp_path)
    assert isinstance(benchmark, PairsBenchmark)
    # Genuine pairs are opposite in y and alike in x; of impostors only x differs, so that the flip sets both right.
    genuine, impostor = [[1, 2], [1, -2]], [[1, 2], [-1, 2]]
    vectors = np.array([*genuine, *impostor] * 2, dtype=np.float32)
    outcome = benchmark.run(marked(vectors))
    auc = {f.conditions["flip"]: f.value for f in outcome.figures if f.metric == "AUC"}
    # Without flip the genuine distance is 3.2 and the impostors' 0.8; the sums leave x alone: 0 and 4.
    assert auc == {"none": 0.0, "added": 1.0}
    assert [curve.label for curve in outcome.curves] == ["flip none", "flip added"]
    assert {f.conditions.get("FAR rule") for f in outcome.figures} == {None, "nearest"}


def test_pairs_need_a_model_and_name_a_bad_embedding(tmp_path: Path) -> None:
    write_pack(tmp_path / "toy.bin", [True, False] * 2)
    benchmark = from_options("toy", {"format": "pack", "file": "toy.bin", "folds": 2, "flip": False}, tmp_path)
    with pytest.raises(ConfigError, match="toy: pairs of pictures need a model"):
        benchmark.run(None)
    vectors = np.ones((8, 2), dtype=np.float32)
    vectors[5] = 0
    with pytest.raises(DataError, match="toy: the embedding of picture 5 is zero"):
        benchmark.run(marked(vectors))
