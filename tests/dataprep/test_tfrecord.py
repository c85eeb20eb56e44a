# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_writers import example, face_picture, slow_crc32c, tf_record, write_tface
from writers import edited, edits

from fedface_flwr.dataprep.source import SourceOptions
from fedface_flwr.dataprep.sources import open_source
from fedface_flwr.dataprep.tfrecord import crc32c, masked_crc, parse_example, record_places
from fedface_flwr.errors import DataError

PLAIN = SourceOptions()


@pytest.mark.parametrize(
    ("data", "crc"),
    # RFC 3720, B.4, and the check value of CRC-32C.
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc_of_published_examples(data, crc):
    assert crc32c(data) == crc


@given(st.binary(max_size=40))
def test_crc_agrees_bit_for_bit_with_the_slow_one(data):
    assert crc32c(data) == slow_crc32c(data)


@pytest.mark.parametrize("length", [4095, 4096, 4097, 4099, 8192, 8193, 9001])
def test_crc_over_several_blocks(length):
    data = (bytes(range(251)) * 40)[:length]
    assert crc32c(data) == slow_crc32c(data)


def test_masked_crc():
    crc = slow_crc32c(b"data")
    assert masked_crc(b"data") == ((crc >> 15 | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


values = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=3),
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_examples_are_read_as_protobuf_writes_them(features):
    assert parse_example(example(features), "here") == features


def test_integers_that_are_not_packed():
    int64_list = b"\x08\x05\x08\x96\x01"  # field 1, varint, twice: 5 and 150
    feature = b"\x1a" + bytes([len(int64_list)]) + int64_list
    entry = b"\x0a\x01n\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    assert parse_example(b"\x0a" + bytes([len(features)]) + features, "here") == {"n": [5, 150]}


@given(edits, st.floats(0, 1))
def test_damaged_example_is_a_data_error_or_still_a_mapping(changes, keep):
    message = example({"image": [b"picture" * 9], "label": [3], "box": [0.5, 1.5]})
    try:
        features = parse_example(edited(message, changes, keep), "here")
    except DataError as error:
        assert str(error).startswith("here: not a tf.train.Example")  # noqa: PT017
        return
    assert all(isinstance(key, str) and isinstance(listed, list) for key, listed in features.items())


@pytest.mark.parametrize("indexed", ["list", "index", "folder"])
def test_tface_shards_with_either_index(tmp_path, indexed):
    labels = [3, 3, 10, 2, 10, 2, 2]
    pictures = write_tface(tmp_path, "TFR-MS1M", labels, shard_size=3)
    folder = tmp_path / "TFR-MS1M"
    path = {"list": tmp_path / "TFR-MS1M.txt", "index": folder / "TFR-MS1M.index", "folder": folder}[indexed]
    source = open_source(path, PLAIN)
    assert source.kind == "tfrecord"
    assert [source.read(index)[0] for index in range(7)] == pictures
    # Numbers are ordered as numbers, names as text.
    names = ["2", "3", "10"] if indexed == "list" else ["person 10", "person 2", "person 3"]
    assert list(source.identities) == names
    told = [source.identities[label].removeprefix("person ") for label in source.labels]
    assert told == [str(label) for label in labels]
    assert source.key(4).startswith("TFR-MS1M-00001.tfrecord:")


def test_index_elsewhere_than_the_shards(tmp_path):
    pictures = write_tface(tmp_path / "data", "faces", [0, 1], shard_size=5)
    (tmp_path / "faces.txt").write_text((tmp_path / "data/faces.txt").read_text())
    source = open_source(tmp_path / "faces.txt", SourceOptions(root=tmp_path / "data"))
    assert source.read(1)[0] == pictures[1]
    with pytest.raises(DataError, match=r"no records; .*faces\.txt: line 1: there is no file .*faces-00000\.tfrecord"):
        open_source(tmp_path / "faces.txt", PLAIN)


@pytest.mark.parametrize(
    ("image", "label", "value", "identity"),
    [
        ("image/encoded", "image/class/label", [4], "4"),
        ("image", "label", [b"Ada"], "Ada"),
        ("photo", "who", [-7], "-7"),
    ],
)
def test_labels_in_the_examples(tmp_path, image, label, value, identity):
    picture = face_picture(0)
    content = tf_record(example({image: [picture], label: value, "height": [16]}))
    (tmp_path / "a.tfrecord").write_bytes(content * 2)
    own = image == "photo"
    options = SourceOptions(image=image, label=label) if own else PLAIN
    source = open_source(tmp_path / "a.tfrecord", options)
    assert list(source.identities) == [identity]
    assert source.labels.tolist() == [0, 0]
    assert source.read(1)[0] == picture
    if own:
        with pytest.raises(DataError, match=r"byte 0: no label in the feature label or image/class/label"):
            open_source(tmp_path / "a.tfrecord", PLAIN)


def test_damaged_records_are_named_and_the_others_kept(tmp_path):
    one = tf_record(example({"image": [face_picture(0)], "label": [0]}))
    content = bytearray(one * 3)
    content[len(one) + 40] ^= 1
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content)
    source = open_source(path, PLAIN)
    assert len(source.labels) == 2
    assert source.problems == [f"{path}: record at byte {len(one)}: damaged, the content's checksum does not agree"]
    path.write_bytes((one * 3)[:-5])
    source = open_source(path, PLAIN)
    assert len(source.labels) == 2
    assert source.problems == [f"{path}: no whole record at byte {2 * len(one)}; what follows cannot be read"]


def test_record_that_is_damaged_after_opening(tmp_path):
    write_tface(tmp_path, "faces", [0, 1], shard_size=5)
    source = open_source(tmp_path / "faces.txt", PLAIN)
    shard = tmp_path / "faces/faces-00000.tfrecord"
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=r"byte 0: no record starts at byte 0"):
        source.read(0)
    shard.unlink()
    with pytest.raises(DataError, match=r"cannot be read"):
        source.read(0)


def test_length_beyond_the_file_is_refused_before_it_is_read(tmp_path):
    length = struct.pack("<Q", 1 << 60)
    head = length + struct.pack("<I", masked_crc(length))
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces/faces-00000.tfrecord").write_bytes(head + bytes(100))
    (tmp_path / "faces.txt").write_text("faces\t0\t0\t1\n")
    source = open_source(tmp_path / "faces.txt", PLAIN)
    with pytest.raises(DataError, match="truncated"):
        source.read(0)


@pytest.mark.parametrize(
    "line", ["faces\t0\t0", "faces\tx\t0\t1", "faces\t0\t-1\t1", "faces 0 0 1", "faces\t0\t0\tname"]
)
def test_malformed_index_lines_are_named(tmp_path, line):
    write_tface(tmp_path, "faces", [0, 1], shard_size=5)
    with (tmp_path / "faces.txt").open("a") as file:
        file.write(line + "\n")
    source = open_source(tmp_path / "faces.txt", PLAIN)
    assert len(source.labels) == 2
    # Three columns are the other index's line, whose shard would lie beside the list.
    assert len(source.problems) == 1
    assert "faces.txt: line 3" in source.problems[0]


def test_folder_with_two_indices(tmp_path):
    write_tface(tmp_path, "faces", [0, 1], shard_size=5)
    (tmp_path / "faces/other.index").write_text("")
    with pytest.raises(DataError, match=r"has 2 \.index files"):
        open_source(tmp_path / "faces", PLAIN)


@given(edits, st.floats(0, 1))
def test_places_in_a_damaged_file_stay_inside_of_it(changes, keep):
    content = edited(tf_record(b"first") + tf_record(b"second one"), changes, keep)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        for offset, problem in record_places(file.fileno(), len(content), "here"):
            assert 0 <= offset < len(content)
            assert not problem or problem.startswith("here: no whole record")
