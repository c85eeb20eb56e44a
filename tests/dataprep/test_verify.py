# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from source_writers import face_picture, write_tree
from writers import encoded, face, pixels, png, public_pack, write_recordio

from fedface_flwr.dataprep.command import main
from fedface_flwr.dataprep.sums import read_sums
from fedface_flwr.errors import DataError

PROGRAMS = {"sha256": "sha256sum", "md5": "md5sum", "blake2b": "b2sum", "sha1": "sha1sum", "sha512": "sha512sum"}


def verified(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    code = main(["verify", *map(str, arguments)])
    return code, capsys.readouterr().out.splitlines()


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_recordio(tmp_path / "pack", public_pack([0, 0, 1, 2]), "3,8,8")


@pytest.mark.parametrize("algorithm", sorted(PROGRAMS))
def test_sums_are_those_of_the_usual_programs(tmp_path, pack, algorithm, capsys):
    program = PROGRAMS[algorithm]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    (pack / "back\\slash").write_text("x")
    (pack / "deep").mkdir()
    (pack / "deep/line\nbreak").write_text("y")
    assert main(["sums", str(pack), "--algorithm", algorithm]) == 0
    ours = pack / f"{algorithm.upper()}SUMS"
    assert capsys.readouterr().out == f"{ours}: 5 checksums\n"
    checked = subprocess.run(
        [program, "-c", "--strict", ours.name], cwd=pack, capture_output=True, text=True, check=True
    )
    assert checked.stdout.count(": OK") == 5
    names = sorted(str(path.relative_to(pack)) for path in pack.rglob("*") if path.is_file() and path != ours)
    theirs = subprocess.run([program, *names], cwd=pack, capture_output=True, text=True, check=True)
    assert sorted(ours.read_text().splitlines()) == sorted(theirs.stdout.splitlines())
    for option in ([], ["--tag"]):
        listed = subprocess.run([program, *option, *names], cwd=pack, capture_output=True, text=True, check=True)
        (tmp_path / "theirs").write_text(listed.stdout)
        whole = f"{pack}: 4 pictures whole, 0 of 5 checksums wrong"
        assert verified(capsys, pack, "--sums", tmp_path / "theirs") == (0, [whole])


def test_sum_of_one_file(tmp_path, capsys):
    (tmp_path / "gate.bin").write_bytes(b"x")
    assert main(["sums", str(tmp_path / "gate.bin")]) == 0
    assert (tmp_path / "gate.bin.sha256").read_text() == (
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  gate.bin\n"
    )


def test_changed_and_missing_files(pack, capsys):
    assert main(["sums", str(pack), "-o", str(pack.parent / "SUMS")]) == 0
    capsys.readouterr()
    whole = f"{pack}: 4 pictures whole, 0 of 3 checksums wrong"
    assert verified(capsys, pack, "--sums", pack.parent / "SUMS") == (0, [whole])
    (pack / "property").write_text("3,8,8 \n")
    code, lines = verified(capsys, pack, "--sums", pack.parent / "SUMS")
    assert code == 1
    assert lines[0] == f"FAILED {pack}/property: not the file that the checksum was made of (sha256 or blake2s)"
    (pack / "property").unlink()
    code, lines = verified(capsys, pack, "--sums", pack.parent / "SUMS")
    assert code == 1
    assert lines == [
        f"FAILED {pack.parent}/property: missing; the checksum file lists property, which is looked for in {pack} or "
        f"{pack.parent}",
        f"{pack}: 1 failed: 0 broken, 0 not square, 0 faults, 1 of 3 checksums wrong",
    ]


def test_files_that_have_no_checksum_are_mentioned(pack, capsys):
    assert main(["sums", str(pack)]) == 0
    sums = pack / "SHA256SUMS"
    sums.write_text("".join(line for line in sums.open() if "train.rec" not in line))
    capsys.readouterr()
    code, lines = verified(capsys, pack, "--sums", sums)
    assert (code, lines[0]) == (0, f"warning: {pack}/train.rec: has no checksum")


def test_only_the_packs_own_line_counts(shared_dir, tmp_path, capsys):
    real = shared_dir / "faces/age_gap.bin"
    (tmp_path / "gate.bin").write_bytes(real.read_bytes())
    subprocess.run("md5sum gate.bin > MD5SUMS", shell=True, cwd=tmp_path, check=True)
    with (tmp_path / "MD5SUMS").open("a") as file:
        file.write(f"{'0' * 32} *other.bin\n")
    pack = tmp_path / "gate.bin"
    whole = f"{pack}: 3,184 pictures whole, 0 of 1 checksum wrong"
    assert verified(capsys, pack, "--sums", tmp_path / "MD5SUMS") == (0, [whole])
    with pack.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    code, lines = verified(capsys, pack, "--sums", tmp_path / "MD5SUMS")
    assert code == 1
    assert lines[0] == f"FAILED {pack}: not the file that the checksum was made of (md5)"
    (tmp_path / "MD5SUMS").write_text(f"{'0' * 32} *other.bin\n")
    assert main(["verify", str(pack), "--sums", str(tmp_path / "MD5SUMS")]) == 1
    assert "no line for it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no checksums"),
        ("abc\n", "line 1: not a checksum and a file's name"),
        ("abcd  name\n", r"line 1: abcd\.\.\. is no checksum of"),
        (f"SHA256 (name) = {'0' * 32}\n", "line 1: 0000000000000000"),
        (f"{'0' * 32}  a\n{'g' * 32}  b\n", "line 2: not a checksum"),
        (f"{'0' * 32}  a\0b\n", "line 1: a file's name cannot hold a zero byte"),
    ],
)
def test_malformed_checksum_files(tmp_path, text, problem):
    (tmp_path / "SUMS").write_text(text)
    with pytest.raises(DataError, match=problem):
        read_sums(tmp_path / "SUMS")


def test_which_algorithms_a_digest_may_be_of(tmp_path):
    lines = ["0" * 64 + "  a b", "F" * 128 + " *b", f"BLAKE2b (c (1)) = {'0' * 128}", f"SHA256 (d) = {'0' * 64}"]
    (tmp_path / "SUMS").write_text("# made by hand\n\n" + "\r\n".join(lines) + "\r\n")
    sums = read_sums(tmp_path / "SUMS")
    assert [entry.name for entry in sums] == ["a b", "b", "c (1)", "d"]
    assert sums[1].digest == "f" * 128
    expected = [("sha256", "blake2s"), ("sha512", "blake2b"), ("blake2b",), ("sha256",)]
    assert [entry.algorithms for entry in sums] == expected


def test_whole_sets(shared_dir, tmp_path, capsys):
    for name, count in (("celeba", 4585), ("lag", 2088)):
        path = shared_dir / "faces" / name
        assert verified(capsys, path) == (0, [f"{path}: {count:,} pictures whole"])
    write_tree(tmp_path / "faces", [0, 1])
    assert verified(capsys, tmp_path / "faces") == (0, [f"{tmp_path}/faces: 2 pictures whole"])


def test_every_fault_of_a_set_is_told(tmp_path, capsys):
    payloads = public_pack([0, 0, 1, 1, 2])
    payloads[2] = face(0, png(pixels(0, 16)))
    payloads[4] = face(1, b"no picture")
    # Identity 1 claims a picture of identity 0; identity 2's record is a picture.
    payloads[7] = face([2, 5], b"")
    payloads[8] = face(2, face_picture(1))
    folder = write_recordio(tmp_path / "pack", payloads, "3,9,9")
    code, lines = verified(capsys, folder)
    assert code == 1
    told = [
        "record 7: the keys 2 to 4 are not of one identity",
        "record 8: not an identity's range",
        "record 4: the image cannot be decoded",
        "property: declares 9x9, but",
        "pictures differ in size: 8x8 as",
    ]
    assert all(part in line for part, line in zip(told, lines, strict=False))
    assert lines[-1] == f"{folder}: 5 failed: 1 broken, 0 not square, 4 faults"


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        (struct.pack("<2f", 1, 2), "the identity records cover 4 of 5 pictures"),
        (struct.pack("<2f", 1.5, 2), "the bounds 1.5 and 2.0 are no keys"),
        (struct.pack("<2f", 3, 1), "the keys 3 to 0 are not of one identity"),
    ],
)
def test_wrong_ranges(tmp_path, capsys, bounds, told):
    payloads = public_pack([0, 0, 1, 1, 2])
    payloads[6] = payloads[6][:24] + bounds
    folder = write_recordio(tmp_path / "pack", payloads, "3,8,8")
    code, lines = verified(capsys, folder)
    assert code == 1
    assert any(told in line for line in lines)


def test_identity_record_that_is_missing(tmp_path, capsys):
    payloads = public_pack([0, 1])
    del payloads[4]
    code, lines = verified(capsys, write_recordio(tmp_path / "pack", payloads))
    assert code == 1
    assert "record 4: missing in train.idx, as are 0 more" in lines[0]


def test_header_that_claims_millions_of_identities(tmp_path, capsys):
    payloads = public_pack([0, 1])
    payloads[0] = face([3, 1 << 24], b"")
    code, lines = verified(capsys, write_recordio(tmp_path / "pack", payloads))
    assert code == 1
    assert len(lines) == 2
    assert f"record 5: missing in train.idx, as are {(1 << 24) - 6} more" in lines[0]


def test_set_that_is_damaged_as_a_whole(tmp_path, capsys):
    folder = write_recordio(tmp_path / "pack", public_pack([0, 1]))
    (folder / "train.idx").write_text("0\tzero\n")
    code, lines = verified(capsys, folder)
    assert code == 1
    assert lines[0] == f"FAILED {folder}/train.idx: line 1 is not 'key<TAB>offset'; make the index anew"


def test_three_commands_count_the_same_things(tmp_path, capsys):
    """A pack cut off within its identity records holds every picture; one more is broken and one not square."""
    labels = [0, 0, 1, 1, 2, 2, 3]
    payloads = public_pack(labels)
    payloads[2] = face(0, b"no picture")
    payloads[4] = face(1, encoded(np.zeros((3, 8, 24), dtype=np.uint8), "PNG"))
    folder = write_recordio(tmp_path / "pack", payloads, "4,8,8")
    offsets = dict(map(int, line.split()) for line in (folder / "train.idx").read_text().splitlines())
    with (folder / "train.rec").open("r+b") as file:
        file.truncate(offsets[9] + 4)
    # Record 9 is cut and 10 and 11 are gone; 8 is whole.
    code, lines = verified(capsys, folder)
    assert (code, lines[-1]) == (1, f"{folder}: 5 failed: 1 broken, 1 not square, 3 faults")
    assert [key for key in (9, 10, 11) if any(f"record {key}: truncated" in line for line in lines)] == [9, 10, 11]
    assert main(["inspect", str(folder), "--json"]) == 1
    seen = json.loads(capsys.readouterr().out)
    assert (seen["images"], len(seen["broken"]), seen["not_square"], len(seen["faults"])) == (6, 1, 1, 3)
    assert main(["convert", str(folder), str(tmp_path / "set")]) == 1
    assert "record 9: truncated" in (error := capsys.readouterr().err)
    assert "(and 2 more); convert --skip-broken passes over this" in error
    assert main(["convert", str(folder), str(tmp_path / "set"), "--skip-broken"]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/set: 5 images of 4 identities, 8 px; 2 pictures left out and 3 faults passed over, "
        f"see {tmp_path}/set/broken.txt\n"
    )
    assert len((tmp_path / "set/broken.txt").read_text().splitlines()) == 5
    assert verified(capsys, tmp_path / "set") == (0, [f"{tmp_path}/set: 5 pictures whole"])


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ("2,9,9", "declares 9x9, but .*train.rec: record 1 is 8x8"),
        ("3,8,8", "declares 3 identities, but the labels are those of 2"),
        ("1,8,8", "declares 1 identity, but the labels are those of 2"),
        ("2;8;8", "not 'identities,height,width'"),
    ],
)
def test_three_commands_count_a_wrong_property_alike(tmp_path, capsys, declared, told):
    folder = write_recordio(tmp_path / "pack", public_pack([0, 0, 1]), declared)
    code, lines = verified(capsys, folder)
    assert (code, lines[-1]) == (1, f"{folder}: 1 failed: 0 broken, 0 not square, 1 fault")
    assert re.match(rf"FAILED {folder}/property: {told}", lines[0])
    assert main(["inspect", str(folder), "--json"]) == 1
    seen = json.loads(capsys.readouterr().out)
    assert [f"FAILED {fault}" for fault in seen["faults"]] == lines[:-1]
    for command in (["convert"], ["split", "--parts", "2"]):
        assert main([command[0], str(folder), str(tmp_path / "set"), *command[1:]]) == 1
        assert f"{seen['faults'][0]}; convert --skip-broken passes over this" in capsys.readouterr().err
    assert main(["convert", str(folder), str(tmp_path / "set"), "--skip-broken"]) == 0
    assert "; 1 fault passed over, see " in capsys.readouterr().out
    assert (tmp_path / "set/broken.txt").read_text() == f"{seen['faults'][0]}\n"
    assert (tmp_path / "set/property").read_text() == "2,8,8\n"


def test_identities_that_were_lost_with_their_pictures_are_no_second_fault(tmp_path, capsys):
    payloads = {1: face(0, png(pixels(0))), 2: face(1, b"")}
    code, lines = verified(capsys, write_recordio(tmp_path / "pack", payloads, "2,8,8"))
    assert (code, len(lines)) == (1, 2)
    assert "record 2: holds no image" in lines[0]


def test_files_are_named_as_the_set_was(tmp_path, capsys, monkeypatch):
    payloads = public_pack([0, 0, 1, 1])
    payloads[1], payloads[2] = face(0, b"no picture"), face(0, b"")
    write_recordio(tmp_path / "pack", payloads, "2,9,9")
    monkeypatch.chdir(tmp_path)
    _, lines = verified(capsys, "pack")
    assert len(lines) > 3
    assert all(line.startswith("FAILED pack/") for line in lines[:-1])
    assert str(tmp_path) not in "".join(lines)
    assert main(["convert", "pack", "set", "--skip-broken"]) == 0
    assert all(line.startswith("pack/") for line in Path("set/broken.txt").read_text().splitlines())
    assert str(tmp_path) not in Path("set/broken.txt").read_text()


def test_one_of_a_thing_is_not_several(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0])
    assert main(["sums", str(tmp_path / "faces")]) == 0
    assert main(["verify", str(tmp_path / "faces"), "--sums", str(tmp_path / "faces/SHA256SUMS")]) == 0
    assert main(["convert", str(tmp_path / "faces"), str(tmp_path / "set")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/faces/SHA256SUMS: 1 checksum",
        f"{tmp_path}/faces: 1 picture whole, 0 of 1 checksum wrong",
        f"{tmp_path}/set: 1 image of 1 identity, 16 px",
    ]


def test_no_command_is_a_usage_error(capsys):
    for line in ("", "convert a", "split a b --parts 1", "convert a b --size 9999", "convert a b --size big"):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code == 2
    capsys.readouterr()
