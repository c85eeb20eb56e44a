# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fedface_flwr.data.alignment import TEMPLATE, align
from fedface_flwr.data.images import decode
from fedface_flwr.data.open import open_image_set
from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.dataprep.command import main
from fedface_flwr.dataprep.points import read_points
from fedface_flwr.errors import DataError

pytest.importorskip("cv2")

SHIFT = np.array([31.0, 17.0])


def photograph(seed: int) -> npt.NDArray[np.uint8]:
    """A smooth RGB photograph of 180 x 220 pixels, (height, width, 3)."""
    coarse = np.random.default_rng(seed).integers(60, 200, (9, 11, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((220, 180), Image.Resampling.BILINEAR))


def save(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=98, subsampling=0) if path.suffix == ".jpg" else Image.fromarray(
        pixels
    ).save(path)


def numbers(points: npt.NDArray[np.float64]) -> list[str]:
    return [f"{value:.4f}" for value in points.ravel()]


def raw_faces(root: Path, names: list[str]) -> Path:
    """Pictures with the template's points, shifted; return the file of points."""
    for seed, name in enumerate(names):
        save(root / name, photograph(seed))
    lines = [" ".join([name, *numbers(TEMPLATE + SHIFT), "0.99"]) for name in names]
    (root.parent / "points.txt").write_text("\n".join(lines) + "\n")
    return root.parent / "points.txt"


def test_tree_of_aligned_faces(tmp_path, capsys):
    names = ["ada/1.jpg", "ada/2.png", "bo/deep/1.jpg"]
    points = raw_faces(tmp_path / "raw", names)
    assert main(["align", str(tmp_path / "raw"), str(points), str(tmp_path / "faces"), "--quality", "100"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/faces: 3 aligned faces\n"
    found = sorted(str(path.relative_to(tmp_path / "faces")) for path in (tmp_path / "faces").rglob("*.jpg"))
    assert found == ["ada/1.jpg", "ada/2.jpg", "bo/deep/1.jpg"]
    for seed, name in enumerate(found):
        data = (tmp_path / "faces" / name).read_bytes()
        with Image.open(io.BytesIO(data)) as picture:
            assert (picture.size, picture.mode) == ((112, 112), "RGB")
        # Points shifted by whole pixels cut a window out of the photograph; colours stay in their order.
        window = photograph(seed)[17 : 17 + 112, 31 : 31 + 112].transpose(2, 0, 1).astype(int)
        assert np.abs(decode(data, 112, name) - window).mean() < 1.5


def test_faces_into_recordio(tmp_path):
    points = raw_faces(tmp_path / "raw", ["b/1.jpg", "a/1.jpg", "b/2.jpg"])
    arguments = ["align", str(tmp_path / "raw"), str(points), str(tmp_path / "set"), "--to", "recordio", "--size", "96"]
    assert main(arguments) == 0
    faces = RecordIOSet.open(tmp_path / "set")
    assert faces.labels.tolist() == [0, 1, 1]
    assert (tmp_path / "set/property").read_text() == "2,96,96\n"
    assert (tmp_path / "set/identities.txt").read_text() == "0\ta\n1\tb\n"
    saved = np.asarray(Image.open(tmp_path / "raw/a/1.jpg"))
    expected = align(saved, TEMPLATE + SHIFT, 96).astype(int)
    assert np.abs(decode(faces.read(0)[0], 96, "here") - expected).mean() < 2


def celeba(root: Path) -> tuple[Path, Path]:
    """Three pictures with list_landmarks_align_celeba.txt and identity_CelebA.txt."""
    names = ["000001.jpg", "000002.jpg", "000003.jpg"]
    for seed, name in enumerate(names):
        save(root / "img_align_celeba" / name, photograph(seed))
    heads = [f"{part}_{axis}" for part in ("lefteye", "righteye", "nose", "leftmouth", "rightmouth") for axis in "xy"]
    rows = ["  ".join([name, *(str(round(float(v))) for v in (TEMPLATE + SHIFT).ravel())]) for name in names]
    (root / "landmarks.txt").write_text("\n".join(["3", " ".join(heads), *rows]) + "\n")
    (root / "identity_CelebA.txt").write_text("000001.jpg 2880\n000002.jpg 2937\n000003.jpg 2880\n")
    return root / "landmarks.txt", root / "identity_CelebA.txt"


def test_celebas_files(tmp_path):
    points, identities = celeba(tmp_path)
    arguments = ["align", str(tmp_path / "img_align_celeba"), str(points)]
    assert main([*arguments, str(tmp_path / "flat")]) == 0
    assert sorted(path.name for path in (tmp_path / "flat").glob("*.jpg")) == ["000001.jpg", "000002.jpg", "000003.jpg"]
    assert main([*arguments, str(tmp_path / "tree"), "--identities", str(identities)]) == 0
    found = sorted(str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*.jpg"))
    assert found == ["2880/000001.jpg", "2880/000003.jpg", "2937/000002.jpg"]
    assert main([*arguments, str(tmp_path / "set"), "--identities", str(identities), "--to", "recordio"]) == 0
    assert RecordIOSet.open(tmp_path / "set").labels.tolist() == [0, 0, 1]


def test_flat_pictures_have_no_identity(tmp_path, capsys):
    points, identities = celeba(tmp_path)
    arguments = ["align", str(tmp_path / "img_align_celeba"), str(points), str(tmp_path / "set"), "--to", "recordio"]
    assert main(arguments) == 1
    assert "name their identities by --identities" in capsys.readouterr().err
    identities.write_text("000001.jpg 1\n")
    assert main([*arguments, "--identities", str(identities)]) == 1
    assert "no identity for 000002.jpg" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["folder", "recordio"])
def test_broken_pictures_are_left_out_and_listed(tmp_path, target, capsys):
    names = [f"a/{number}.jpg" for number in range(5)]
    points = raw_faces(tmp_path / "raw", names)
    (tmp_path / "raw/a/1.jpg").write_bytes(b"no picture")
    (tmp_path / "raw/a/3.jpg").unlink()
    with points.open("a") as file:
        file.write("a/9.jpg 1 2 3\n")
    lines = points.read_text().splitlines()
    lines[4] = "a/4.jpg " + " ".join(["5"] * 10)
    points.write_text("\n".join(lines) + "\n")
    arguments = ["align", str(tmp_path / "raw"), str(points), str(tmp_path / "out"), "--to", target]
    assert main(arguments) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/out: 2 aligned faces; 4 pictures left out, see {tmp_path}/out/broken.txt\n"
    )
    listed = (tmp_path / "out/broken.txt").read_text().splitlines()
    assert [text.split(": ")[0].rsplit("/", 1)[-1] for text in listed] == ["points.txt", "1.jpg", "3.jpg", "4.jpg"]
    assert "line 6: not a name and five points" in listed[0]
    assert "are all the same" in listed[3]
    assert json.loads((tmp_path / "out/origin.json").read_text())["result"] == {"images": 2, "broken": 4}
    assert main([*arguments[:3], str(tmp_path / "strict"), "--to", target, "--strict"]) == 1
    assert "line 6" in capsys.readouterr().err
    points.write_text("\n".join(lines[:5]) + "\n")
    assert main([*arguments[:3], str(tmp_path / "strict"), "--to", target, "--strict"]) == 1
    error = capsys.readouterr().err
    assert "1.jpg: the image cannot be decoded" in error
    assert "; without --strict such pictures are left out" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "points.txt", "raw"]


def test_what_align_writes_every_command_and_training_take(tmp_path, capsys):
    names = [f"{name}/{number}.jpg" for name in ("ada", "bo") for number in range(3)]
    points = raw_faces(tmp_path / "raw", names)
    (tmp_path / "raw/bo/2.jpg").write_bytes(b"no picture")
    faces = tmp_path / "faces"
    assert main(["align", str(tmp_path / "raw"), str(points), str(faces)]) == 0
    assert main(["sums", str(faces)]) == 0
    assert main(["sums", str(faces), "--algorithm", "md5"]) == 0
    (faces / "property").write_text("2,112,112\n")
    beside = {path.name for path in faces.iterdir() if path.is_file()}
    assert beside == {"origin.json", "broken.txt", "SHA256SUMS", "MD5SUMS", "property"}
    assert main(["inspect", str(faces)]) == 0
    assert main(["verify", str(faces), "--sums", str(faces / "SHA256SUMS")]) == 0
    assert main(["convert", str(faces), str(tmp_path / "set")]) == 0
    assert main(["split", str(faces), str(tmp_path / "parts"), "--parts", "2"]) == 0
    assert open_image_set(faces, 112, cache_dir=None).labels.tolist() == [0, 0, 0, 1, 1]
    assert main(["align", str(tmp_path / "raw"), str(points), str(faces)]) == 0
    assert capsys.readouterr().out.endswith("(was there already)\n")


@pytest.mark.parametrize("pictures", [3, 17], ids=["few", "many in a folder"])
def test_finished_tree_that_has_lost_a_picture_is_said_to(tmp_path, capsys, pictures):
    points = raw_faces(tmp_path / "raw", [f"ada/{number}.jpg" for number in range(pictures)])
    arguments = ["align", str(tmp_path / "raw"), str(points), str(tmp_path / "faces")]
    assert main(arguments) == 0
    assert main(arguments) == 0
    (tmp_path / "faces/ada/2.jpg").unlink()
    capsys.readouterr()
    assert main(arguments) == 1
    assert f"another size: {'ada/2.jpg' if pictures == 3 else 'ada/'}; remove the folder" in capsys.readouterr().err


def test_nothing_left(tmp_path, capsys):
    points = raw_faces(tmp_path / "raw", ["a/1.jpg"])
    (tmp_path / "raw/a/1.jpg").write_bytes(b"x")
    assert main(["align", str(tmp_path / "raw"), str(points), str(tmp_path / "out")]) == 1
    assert "not one face could be aligned" in (error := capsys.readouterr().err)
    assert "kept" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["points.txt", "raw"]


@pytest.mark.parametrize("name", ["../out.jpg", "/etc/a.jpg", "a/../../b.jpg"])
def test_names_that_lead_out_of_the_tree(tmp_path, capsys, name):
    points = raw_faces(tmp_path / "raw", ["a/1.jpg"])
    points.write_text(points.read_text().replace("a/1.jpg", name))
    assert main(["align", str(tmp_path / "raw"), str(points), str(tmp_path / "out")]) == 1
    assert "leads out of the folder" in capsys.readouterr().err


def test_two_faces_of_one_place(tmp_path, capsys):
    points = raw_faces(tmp_path / "raw", ["a/1.jpg", "a/1.png"])
    assert main(["align", str(tmp_path / "raw"), str(points), str(tmp_path / "out")]) == 1
    assert "two faces would become a/1.jpg" in capsys.readouterr().err


def test_photograph_is_turned_upright_first(tmp_path):
    points = raw_faces(tmp_path / "raw", ["a/1.jpg"])
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side; to be turned clockwise
    Image.fromarray(np.rot90(photograph(0)).copy()).save(tmp_path / "raw/a/1.jpg", quality=98, exif=exif)
    assert main(["align", str(tmp_path / "raw"), str(points), str(tmp_path / "out")]) == 0
    window = photograph(0)[17 : 17 + 112, 31 : 31 + 112].transpose(2, 0, 1).astype(int)
    assert np.abs(decode((tmp_path / "out/a/1.jpg").read_bytes(), 112, "x") - window).mean() < 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.jpg 1 2 3 4 5 6 7 8 9 10\n", ["a.jpg"]),
        ("a.jpg 1 2 3 4 5 6 7 8 9 10 0.5\n", ["a.jpg"]),
        ("name,lx,ly,rx,ry,nx,ny,mlx,mly,mrx,mry,score\na b.jpg,1,2,3,4,5,6,7,8,9,10,.5\n", ["a b.jpg"]),
        ("a b.jpg\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10\n", ["a b.jpg"]),
        ("# made by hand\n\na.jpg,1, 2,3,4,5,6,7,8,9,1e1\n", ["a.jpg"]),
    ],
)
def test_forms_of_points(tmp_path, text, names):
    (tmp_path / "points").write_text(text)
    points = read_points(tmp_path / "points")
    assert list(points.names) == names
    assert points.points.tolist() == [[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]]
    assert points.problems == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("b.jpg 1 2 3 4 5 6 7 8 9", "line 2: not a name and five points"),
        ("b.jpg 1 2 3 4 5 6 7 8 9 10 11 12", "line 2: not a name and five points"),
        ("b.jpg 1 2 3 4 5 6 7 8 9 ten", "line 2: not a name and five points"),
        ("b.jpg 1 2 3 4 5 6 7 8 9 nan", "line 2: b.jpg has points that are no finite numbers"),
        ("b.jpg inf 2 3 4 5 6 7 8 9 10", "line 2: b.jpg has points that are no finite numbers"),
    ],
)
def test_malformed_points(tmp_path, line, problem):
    (tmp_path / "points").write_text(f"a.jpg 1 2 3 4 5 6 7 8 9 10\n{line}\nc.jpg 1 2 3 4 5 6 7 8 9 10\n")
    points = read_points(tmp_path / "points")
    assert list(points.names) == ["a.jpg", "c.jpg"]
    assert points.problems == [f"{tmp_path}/points: {problem}"]


@pytest.mark.parametrize("content", [b"", b"5\n", b"a.jpg 1 2\n", bytes(range(256)) * 4])
def test_file_without_points(tmp_path, content):
    (tmp_path / "points").write_bytes(content)
    with pytest.raises(DataError, match="no line has a name and five points"):
        read_points(tmp_path / "points")
