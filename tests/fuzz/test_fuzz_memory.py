# SPDX-License-Identifier: Apache-2.0
"""Headers that announce far more than their file holds: memory taken stays near the file's size."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_protocols import _MATRICES, feature
from source_writers import example, tf_record
from writers import face, part, pixels, png

from fedface_flwr.data.images import decode, decode_photo
from fedface_flwr.data.matrices import map_matrix
from fedface_flwr.data.packs import read_pack
from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.dataprep.source import SourceOptions
from fedface_flwr.dataprep.sources import open_source
from fedface_flwr.dataprep.tfrecord import masked_crc
from fedface_flwr.errors import FedFaceError
from fedface_flwr.evaluation.embedder_store import EmbeddingStore
from fedface_flwr.evaluation.weights import read_state_file
from fedface_flwr.federation.run_state import load_state
from fedface_flwr.protocols.megaface_features import read_feature
from fedface_flwr.protocols.megaface_lists import read_list
from fedface_flwr.protocols.pairs_lfw import read_lfw_pairs
from fedface_flwr.protocols.suite import read_suite

SLACK = 3 << 20
"""Bytes for what any file costs: messages, tracebacks, a read of a table's first part."""


def peak(path: Path, content: bytes, read: Callable[[Path], object]) -> int:
    """Return the most memory that Python and NumPy took while a file was refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(FedFaceError, match=path.name):
            read(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def record_of(length: int, payload: bytes = b"") -> bytes:
    return part(0, payload)[:4] + struct.pack("<I", length & 0x1FFFFFFF) + payload


def read_record_file(path: Path) -> None:
    path.with_name("train.idx").write_text("0\t0\n")
    RecordIOSet.open(path.parent)


@pytest.mark.parametrize(
    "content",
    [
        record_of((1 << 29) - 1, face(0, png(pixels(0)))),
        part(0, struct.pack("<IfQQ", (1 << 32) - 1, 0, 0, 0)),
        part(0, struct.pack("<IfQQ", (1 << 30) - 1, 0, 0, 0) + bytes(64)),
        part(1, bytes(64)) + part(2, bytes(64))[:4] + struct.pack("<I", 3 << 29 | (1 << 29) - 1),
    ],
)
def test_records_that_announce_more_than_there_is(tmp_path: Path, content: bytes) -> None:
    assert peak(tmp_path / "set" / "train.rec", content, read_record_file) < SLACK


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04B" + struct.pack("<I", 2**32 - 1),
        b"\x80\x04\x8e" + struct.pack("<Q", 2**63),
        b"\x80\x04\x96" + struct.pack("<Q", 2**40),
        b"\x80\x04\x8d" + struct.pack("<Q", 2**62),
        b"\x80\x02T" + struct.pack("<i", -1),
        b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 2**32 - 1) + b"\x86.",
        b"(" * 100_000,
        b"(l" * 50_000,
        b"]q\0" + b"h\0a" * 20_000 + b".",
        b"\x80\x02" + b"I" + b"9" * 100_000 + b"\n.",
        b"\x8a\xff" + b"\x7f" * 255 + b".",
    ],
)
def test_pickles_that_announce_more_than_there_is(tmp_path: Path, content: bytes) -> None:
    # A list of one byte in the file is 64 in memory.
    assert peak(tmp_path / "x.bin", content, lambda path: read_pack(path, 8)) < SLACK + 100 * len(content)


@pytest.mark.parametrize(
    "shape",
    ["(1000000000000, 512)", "(4, 1000000000)", "(4294967296, 4294967296)", "(9223372036854775807, 2)", "(-1, 6)"],
)
def test_matrices_that_announce_more_than_there_is(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = _MATRICES[0][:8] + struct.pack("<H", len(header)) + header + bytes(96)
    assert peak(tmp_path / "m.npy", content, map_matrix) < SLACK


@pytest.mark.parametrize("rows", [2**31 - 1, -1, 1 << 28])
def test_features_that_announce_more_than_there_is(tmp_path: Path, rows: int) -> None:
    content = struct.pack("<i", rows) + feature([1.0, 2.0])[4:]
    assert peak(tmp_path / "f.bin", content, read_feature) < SLACK


def test_features_far_longer_than_any(tmp_path: Path) -> None:
    content = struct.pack("<4i", 1 << 22, 1, 4, 5) + bytes(4 << 22)
    assert peak(tmp_path / "f.bin", content, read_feature) < SLACK


@pytest.mark.parametrize("length", [2**31, 2**62, 2**64 - 17])
def test_tfrecords_that_announce_more_than_there_is(tmp_path: Path, length: int) -> None:
    masked_crc(b"the table is made once")
    head = struct.pack("<Q", length)
    content = head + struct.pack("<I", masked_crc(head)) + tf_record(example({"label": [1]}))
    source = lambda path: open_source(path, SourceOptions())  # noqa: E731
    assert peak(tmp_path / "a.tfrecord", content, source) < SLACK


_HUGE = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}'


@pytest.mark.parametrize("read", [read_state_file, load_state])
@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**62) + b"{}",
        struct.pack("<Q", 99_000_000) + b"{}",
        struct.pack("<Q", 80) + _HUGE.ljust(80) + bytes(4),
    ],
)
def test_tensors_that_announce_more_than_there_is(
    tmp_path: Path, content: bytes, read: Callable[[Path], object]
) -> None:
    assert peak(tmp_path / "m.safetensors", content, read) < SLACK


def test_stored_embeddings_that_announce_more_than_there_is(tmp_path: Path) -> None:
    said: list[str] = []
    for count, dim in ((2**60, 3), (2**64 - 1, 3), (1, 2**61), (0, 2**64 - 1)):
        (tmp_path / "x.embeddings").write_bytes(struct.pack("<8sQQ", b"FFEMBED1", count, dim) + bytes(64))
        tracemalloc.start()
        assert len(EmbeddingStore(tmp_path, 3, said.append)) == 0
        assert tracemalloc.get_traced_memory()[1] < SLACK
        tracemalloc.stop()
    assert len(said) == 4


def picture(side: int, *, bomb: bool = False) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [chunk(b"IHDR", header)]
    if bomb:
        chunks.append(chunk(b"zTXt", b"key\0\0" + zlib.compress(bytes(100 << 20), 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join([*chunks, chunk(b"IDAT", b""), chunk(b"IEND", b"")])


@pytest.mark.parametrize("content", [picture(65_000), picture(2**31 - 1), picture(8001), picture(8, bomb=True)])
def test_pictures_that_announce_more_than_there_is(tmp_path: Path, content: bytes) -> None:
    for read in (decode_photo, lambda data, where: decode(data, 8, where)):
        # Pillow takes at most 1 MiB of a compressed text apart before it says no.
        assert peak(tmp_path / "p.png", content, lambda path, read=read: read(content, str(path))) < 2 * SLACK


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b"1000000000 1000000000\n", lambda path: read_lfw_pairs(path, path.parent, "jpg", 10)),
        (b"999999999999999999 1\n" + b"a 1 2\n" * 20, lambda path: read_lfw_pairs(path, path.parent, "jpg", 10)),
        (b'{"path": ' + b"[" * 300_000, read_list),
        (b'{"path": [' + b"9" * 300_000 + b"]}", read_list),
        (b"benchmarks: " + b"[" * 500, read_suite),
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nbenchmarks: [*c]", read_suite),
        (b"#" * (2 << 20), read_suite),
    ],
)
def test_texts_that_announce_more_than_there_is(tmp_path: Path, content: bytes, read: Callable[[Path], object]) -> None:
    assert peak(tmp_path / "list.txt", content, read) < SLACK + 20 * len(content)
