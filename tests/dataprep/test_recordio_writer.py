# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writers import MAGIC, face, jpeg, part, pixels, public_pack, record, write_recordio

from fedface_flwr.data import recordio_writer
from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.data.recordio_writer import Records, complete, framed, grouped_keys, header_record, payload
from fedface_flwr.errors import DataError


def write_set(folder: Path, images: list[bytes], labels: list[int], side: int = 8) -> Path:
    folder.mkdir()
    offsets, content = [], header_record()
    for image in images:
        offsets.append(len(content))
        content += framed(payload(image))
    (folder / "train.rec").write_bytes(content)
    zeros = np.zeros(len(labels), dtype=np.int64)
    complete(folder, len(content), Records(np.array(offsets), zeros, zeros), np.array(labels), side)
    return folder


def index_of(folder: Path) -> dict[int, int]:
    return dict(map(int, line.split("\t")) for line in (folder / "train.idx").read_text().splitlines())


def stored(folder: Path, key: int) -> tuple[int, float, int, int, bytes]:
    """Flag, label, id and id2 of a record in one part, and what follows, by the format's description."""
    data, at = (folder / "train.rec").read_bytes(), index_of(folder)[key]
    magic, word = struct.unpack_from("<II", data, at)
    assert (magic, word >> 29) == (0xCED7230A, 0)
    content = data[at + 8 : at + 8 + (word & 0x1FFFFFFF)]
    return (*struct.unpack_from("<IfQQ", content), content[24:])


@given(st.lists(st.sampled_from([MAGIC, MAGIC[:1], MAGIC[1:], b"abcd", b"x", b"\x0a\x23"]), max_size=9))
def test_framing_agrees_with_a_writer_by_the_formats_description(pieces):
    content = b"".join(pieces)
    assert framed(content) == record(content)


def test_framing_by_hand():
    assert framed(b"abcde") == MAGIC + b"\x05\0\0\0" + b"abcde\0\0\0"
    whole = b"abcd" + MAGIC + MAGIC + b"ef"
    assert framed(whole) == part(1, b"abcd") + part(2, b"") + part(3, b"ef")
    assert framed(b"x" + MAGIC) == part(0, b"x" + MAGIC)
    assert framed(MAGIC) == part(1, b"") + part(3, b"")


def test_record_that_is_too_long(monkeypatch):
    monkeypatch.setattr(recordio_writer, "_LONGEST", 7)
    assert len(framed(bytes(7))) == 16
    with pytest.raises(DataError, match="8 bytes is too long"):
        framed(bytes(8))


@given(st.lists(st.integers(0, 4), max_size=20))
def test_keys_follow_the_identities(labels):
    keys = grouped_keys(np.array(labels, dtype=np.int64))
    expected = sorted(range(len(labels)), key=lambda index: (labels[index], index))
    assert [int(keys[index]) for index in expected] == list(range(1, len(labels) + 1))


def test_set_in_the_form_of_the_public_packs(tmp_path):
    images = [jpeg(pixels(seed)) for seed in range(5)]
    folder = write_set(tmp_path / "set", images, [1, 0, 2, 0, 1])
    assert (folder / "property").read_text() == "3,8,8\n"
    assert list(index_of(folder)) == list(range(9))
    assert index_of(folder)[0] == 0
    assert stored(folder, 0) == (2, 0.0, 0, 0, struct.pack("<2f", 6, 9))
    # Identity 0 has pictures 1 and 3, identity 1 has 0 and 4, identity 2 has 2.
    for key, (label, picture) in enumerate([(0, 1), (0, 3), (1, 0), (1, 4), (2, 2)], 1):
        assert stored(folder, key) == (0, label, key, 0, images[picture])
    for key, bounds in {6: (1, 3), 7: (3, 5), 8: (5, 6)}.items():
        assert stored(folder, key) == (2, 0.0, key, 0, struct.pack("<2f", *bounds))
    data = (folder / "train.rec").read_bytes()
    assert len(data) % 4 == 0
    assert len(data) == index_of(folder)[8] + 8 + 32


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.sampled_from([MAGIC, b"abcd", b"xyz"]), min_size=1, max_size=5)),
        min_size=1,
        max_size=12,
    )
)
def test_what_is_written_is_read_back(faces):
    numbers = sorted({label for label, _ in faces})
    labels = [numbers.index(label) for label, _ in faces]
    images = [b"".join(pieces) for _, pieces in faces]
    with tempfile.TemporaryDirectory() as folder:
        written = RecordIOSet.open(write_set(Path(folder) / "set", images, labels))
        order = sorted(range(len(labels)), key=lambda index: (labels[index], index))
        assert written.num_identities == len(numbers)
        assert written.labels.tolist() == [labels[index] for index in order]
        assert [written.read(index)[0] for index in range(len(order))] == [images[index] for index in order]


def test_equal_to_an_independent_writers_file(tmp_path):
    labels = [0, 0, 1, 2, 2]
    public = public_pack(labels)
    images = [public[key][24:] for key in range(1, 6)]
    ours = write_set(tmp_path / "ours", images, labels)
    # The other writer gives every record one id; ours gives it its key.
    theirs = {key: content[:8] + struct.pack("<Q", key) + content[16:] for key, content in public.items()}
    other = write_recordio(tmp_path / "theirs", theirs)
    for name in ("train.rec", "train.idx"):
        assert (ours / name).read_bytes() == (other / name).read_bytes()


def test_completing_again_changes_nothing(tmp_path):
    folder = write_set(tmp_path / "set", [b"one", b"three", MAGIC * 2], [1, 0, 1])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    labels = np.array([1, 0, 1])
    offsets = np.array([index_of(folder)[key] for key in grouped_keys(labels)])
    for appended in (Records(offsets, labels * 0, labels * 0), Records(offsets, labels, grouped_keys(labels))):
        complete(folder, index_of(folder)[4], appended, labels, 8)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_more_records_than_the_header_can_number(tmp_path, monkeypatch):
    monkeypatch.setattr(recordio_writer, "LARGEST_NUMBER", 5)
    write_set(tmp_path / "fits", [b"a", b"b"], [0, 1])
    with pytest.raises(DataError, match=r"3 pictures of 2 identities need keys above 5.*split the set"):
        write_set(tmp_path / "set", [b"a", b"b", b"c"], [0, 1, 1])


def test_no_picture(tmp_path):
    (tmp_path / "train.rec").write_bytes(header_record())
    with pytest.raises(DataError, match="no picture"):
        complete(tmp_path, 40, Records(*[np.array([], dtype=np.int64)] * 3), np.array([], dtype=np.int64), 8)


def test_payload_is_what_the_readers_tests_call_a_face():
    assert payload(b"picture", label=3, key=7) == face(3, b"picture")
