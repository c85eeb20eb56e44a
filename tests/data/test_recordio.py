# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import multiprocessing
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers import MAGIC, edited, edits, face, part, pixels, png, public_pack, write_recordio

from fedface_flwr.data.images import decode
from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.errors import DataError

A, B, C = b"first", b"second!", b"third one"


@pytest.mark.parametrize(
    ("name", "identities", "images"), [("celeba", 256, 4585), ("fiw", 603, 5802), ("lag", 703, 2088)]
)
def test_real_packs(shared_dir, name, identities, images):
    faces = RecordIOSet.open(shared_dir / "faces" / name)
    assert (faces.name, faces.num_identities, len(faces.labels)) == (name, identities, images)
    assert np.unique(faces.labels).tolist() == list(range(identities))
    for index in (0, images // 2, images - 1):
        assert decode(*faces.read(index)[:1], 112, "x").std() > 10


def test_real_identity_records_agree_with_the_labels(shared_dir):
    folder = shared_dir / "faces" / "lag"
    faces = RecordIOSet.open(folder)
    data = (folder / "train.rec").read_bytes()
    offsets = dict(map(int, line.split()) for line in (folder / "train.idx").read_text().splitlines())
    for identity in (0, 350, 702):
        at = offsets[len(faces.labels) + 1 + identity]
        start, stop = (int(value) for value in struct.unpack_from("<2f", data, at + 8 + 24))
        assert np.flatnonzero(faces.labels == identity).tolist() == list(range(start - 1, stop - 1))


def test_real_file_of_other_tools_without_header(shared_dir):
    folder = shared_dir / "formats" / "recordio"
    faces = RecordIOSet.open(folder)
    listed = [line.split("\t") for line in (folder / "train.lst").read_text().splitlines()]
    assert faces.num_identities == 2
    assert dict(zip(faces.keys.tolist(), faces.labels.tolist(), strict=True)) == {
        int(key): int(label) for key, label, _ in listed
    }
    assert all(faces.read(index)[0].startswith(b"\xff\xd8") for index in range(8))


def test_header_and_identity_records_are_no_pictures(tmp_path):
    faces = RecordIOSet.open(write_recordio(tmp_path / "silo", public_pack([0, 0, 1, 2, 2]), "3,8,8"))
    assert (faces.name, faces.num_identities) == ("silo", 3)
    assert faces.labels.tolist() == [0, 0, 1, 2, 2]
    for index in range(5):
        data, where = faces.read(index)
        assert data == png(pixels(index))
        assert where == f"{tmp_path}/silo/train.rec: record {index + 1}"


def test_records_come_in_the_order_of_their_keys(tmp_path):
    faces = RecordIOSet.open(write_recordio(tmp_path, {9: face(1, A), 3: face(0, B), 5: face(4, C)}))
    assert faces.labels.tolist() == [0, 4, 1]
    assert [faces.read(index)[0] for index in range(3)] == [B, C, A]
    assert faces.num_identities == 5


def test_first_of_several_labels_is_the_identity(tmp_path):
    payloads = {0: face([2, 5], A), 1: face([1, 0.5, 9.25], B), 2: face(0, C)}
    faces = RecordIOSet.open(write_recordio(tmp_path, payloads))
    assert faces.labels.tolist() == [2, 1, 0]
    assert [faces.read(index)[0] for index in range(3)] == [A, B, C]


def test_property_may_declare_more_identities_than_there_are(tmp_path):
    assert RecordIOSet.open(write_recordio(tmp_path, {0: face(1, A)}, "7,112,112")).num_identities == 7


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([MAGIC, b"abcd", b"x", b"\x0a\x23"]), min_size=1, max_size=8))
def test_picture_that_holds_the_magic_number_is_put_together_again(pieces):
    image = b"".join(pieces)
    with tempfile.TemporaryDirectory() as folder:
        faces = RecordIOSet.open(write_recordio(Path(folder), {0: face(3, A), 1: face(2, image), 2: face(1, B)}))
        assert faces.labels.tolist() == [3, 2, 1]
        assert [faces.read(index)[0] for index in range(3)] == [A, image, B]


def test_magic_number_inside_of_the_labels(tmp_path):
    payload = face([1, struct.unpack("<f", MAGIC)[0]], A)
    faces = RecordIOSet.open(write_recordio(tmp_path, {1: payload}))
    assert (faces.labels.tolist(), faces.read(0)[0]) == ([1], A)


def test_reads_from_threads_and_forked_processes(tmp_path):
    labels = list(range(40))
    faces = RecordIOSet.open(write_recordio(tmp_path, {key: face(key, b"%d" % key * 99) for key in labels}))
    expected = [b"%d" % key * 99 for key in labels] * 5
    with ThreadPoolExecutor(4) as threads:
        assert [data for data, _ in threads.map(faces.read, labels * 5)] == expected
    with multiprocessing.get_context("fork").Pool(2) as processes:
        assert [data for data, _ in processes.map(faces.read, labels * 5, chunksize=7)] == expected


def test_set_survives_pickling(tmp_path):
    faces = RecordIOSet.open(write_recordio(tmp_path, {0: face(0, A)}))
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        assert processes.apply(faces.read, (0,))[0] == A


@pytest.mark.parametrize(
    ("label", "declared"),
    [
        (-1, None),
        (0.5, None),
        (float("nan"), None),
        (float("inf"), None),
        (3e38, None),
        (2, "2,8,8"),
        ([7, 0], "7,8,8"),
    ],
)
def test_label_that_is_no_identity(tmp_path, label, declared):
    write_recordio(tmp_path, {4: face(0, A), 6: face(label, B), 8: face(label, C)}, declared)
    with pytest.raises(DataError, match=r"train\.rec: record 6: .*label is not"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("name", ["train.rec", "train.idx"])
def test_missing_file(tmp_path, name):
    write_recordio(tmp_path, {0: face(0, A)})
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{name}: no such file"):
        RecordIOSet.open(tmp_path)


def test_empty_files(tmp_path):
    write_recordio(tmp_path, {0: face(0, A)})
    (tmp_path / "train.rec").write_bytes(b"")
    with pytest.raises(DataError, match=r"train\.rec: record 0: the index points outside of its 0 bytes"):
        RecordIOSet.open(tmp_path)
    (tmp_path / "train.idx").write_bytes(b"")
    with pytest.raises(DataError, match=r"train\.idx: the index is empty"):
        RecordIOSet.open(tmp_path)


def test_header_without_pictures(tmp_path):
    write_recordio(tmp_path, public_pack([]))
    with pytest.raises(DataError, match="holds no images"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("line", ["1", "1\t0\t0", "one\t0", "1\t0x10", "1\t1.5", "", "-1\t0", "1\t-4", f"1\t{1 << 63}"])
def test_malformed_index_line(tmp_path, line):
    write_recordio(tmp_path, {0: face(0, A), 2: face(0, B)})
    index = tmp_path / "train.idx"
    first, last = index.read_text().splitlines()
    index.write_text(f"{first}\n{line}\n{last}\n")
    with pytest.raises(DataError, match=r"train\.idx: line 2 is not"):
        RecordIOSet.open(tmp_path)


def test_key_given_twice(tmp_path):
    write_recordio(tmp_path, {0: face(0, A), 5: face(0, B)})
    with (tmp_path / "train.idx").open("a") as file:
        file.write("5\t0\n")
    with pytest.raises(DataError, match=r"train\.idx: key 5 occurs more than once"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("offset", [1 << 40, (1 << 63) - 1, -7])
def test_index_that_points_outside_of_the_file(tmp_path, offset):
    write_recordio(tmp_path, {0: face(0, A), 5: face(0, B)})
    size = (tmp_path / "train.rec").stat().st_size
    (tmp_path / "train.idx").write_text(f"0\t0\n5\t{offset if offset > 0 else size + offset}\n")
    with pytest.raises(DataError, match=rf"train\.rec: record 5: the index points outside of its {size} bytes"):
        RecordIOSet.open(tmp_path)


def test_index_that_points_into_a_record(tmp_path):
    write_recordio(tmp_path, {0: face(0, A), 5: face(0, B)})
    (tmp_path / "train.idx").write_text("0\t0\n5\t12\n")
    with pytest.raises(DataError, match=r"train\.rec: record 5: no record starts"):
        RecordIOSet.open(tmp_path)


def test_index_that_points_at_a_later_part(tmp_path):
    write_recordio(tmp_path, {1: face(0, b"abcd" + MAGIC + b"efgh")})
    first = 8 + 24 + 4
    (tmp_path / "train.idx").write_text(f"1\t0\n2\t{first}\n")
    with pytest.raises(DataError, match=r"record 2: part of kind 3 at byte 36 is out of order"):
        RecordIOSet.open(tmp_path)


def test_header_that_counts_more_pictures_than_the_index(tmp_path):
    payloads = public_pack([0, 1, 1])
    del payloads[2]
    write_recordio(tmp_path, payloads)
    with pytest.raises(DataError, match=r"train\.idx: record 2 is missing; the header has 3"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("bounds", [[0, 4], [2.5, 4], [4, 2], [float("nan"), 4], [2, float("inf")], [3e38, 3.1e38]])
def test_header_that_is_no_range(tmp_path, bounds):
    write_recordio(tmp_path, {**public_pack([0, 1]), 0: face(bounds, b"")})
    with pytest.raises(DataError, match=r"the header's identity records|is missing"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("content", ["", "3", "3,112", "3,112,112,3", "a,b,c", "0,112,112", "-3,112,112", "\xff"])
def test_malformed_property(tmp_path, content):
    write_recordio(tmp_path, {0: face(0, A)}, content)
    with pytest.raises(DataError, match=r"property: not 'identities,height,width'"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("cut", [1, 5, 8, 20])
def test_truncated_last_record(tmp_path, cut):
    write_recordio(tmp_path, {0: face(0, A), 3: face(0, bytes(range(48)))})
    records = tmp_path / "train.rec"
    records.write_bytes(records.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"train\.rec: record 3: truncated"):
        RecordIOSet.open(tmp_path)


def test_record_truncated_between_its_parts(tmp_path):
    write_recordio(tmp_path, {3: face(0, b"abcd" + MAGIC + b"efgh")})
    records = tmp_path / "train.rec"
    records.write_bytes(records.read_bytes()[: 8 + 24 + 4])
    with pytest.raises(DataError, match=r"train\.rec: record 3: truncated"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("at", [0, 3])
def test_wrong_magic_number(tmp_path, at):
    write_recordio(tmp_path, {0: face(0, A), 3: face(0, B)})
    records = tmp_path / "train.rec"
    content = bytearray(records.read_bytes())
    second = content.index(MAGIC, 1)
    content[second + at] ^= 0x40
    records.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.rec: record 3: no record starts .*wrong magic"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "0 bytes are too few"),
        (face(0, b"")[:20], "20 bytes are too few"),
        (struct.pack("<IfQQ", 9, 0, 0, 0) + b"abcd", "its 9 labels do not fit"),
        (struct.pack("<IfQQ", 0xFFFFFFFF, 0, 0, 0) + b"abcd", "its 4294967295 labels do not fit"),
        (face(0, b""), "holds no image"),
    ],
)
def test_payload_that_holds_no_picture(tmp_path, payload, problem):
    write_recordio(tmp_path, {1: face(0, A), 3: payload})
    with pytest.raises(DataError, match=rf"train\.rec: record 3: {problem}"):
        RecordIOSet.open(tmp_path)


@pytest.mark.parametrize("kinds", [(1, 0), (1, 1), (1, 4), (4, 0), (2, 3)])
def test_parts_out_of_order(tmp_path, kinds):
    write_recordio(tmp_path, {1: face(0, A)})
    (tmp_path / "train.rec").write_bytes(part(kinds[0], face(0, b"abcd")) + part(kinds[1], b"efgh"))
    with pytest.raises(DataError, match=r"train\.rec: record 1: part of kind . at byte \d+ is out of order"):
        RecordIOSet.open(tmp_path)


def test_file_damaged_after_it_was_opened(tmp_path):
    faces = RecordIOSet.open(write_recordio(tmp_path, {0: face(0, A), 3: face(0, B)}))
    (tmp_path / "train.rec").write_bytes(b"")
    with pytest.raises(DataError, match=r"train\.rec: record 3: truncated"):
        faces.read(1)


@settings(max_examples=150, deadline=None)
@given(edits, st.floats(0, 1), st.sampled_from(["train.rec", "train.idx", "property"]))
def test_damaged_files_are_data_errors_or_still_consistent(changes, keep, name):
    with tempfile.TemporaryDirectory() as folder:
        payloads = public_pack([0, 0, 1])
        payloads[2] = face(0, b"abcd" + MAGIC + b"efgh" + MAGIC + b"ijkl")
        path = write_recordio(Path(folder), payloads, "2,8,8") / name
        path.write_bytes(edited(path.read_bytes(), changes, keep))
        try:
            faces = RecordIOSet.open(Path(folder))
        except DataError:
            return
        assert ((faces.labels >= 0) & (faces.labels < faces.num_identities)).all()
        for index in range(len(faces.labels)):
            assert faces.read(index)[0]
