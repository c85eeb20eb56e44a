# SPDX-License-Identifier: Apache-2.0
"""Every kind of fault that the fuzzer has found, each by a small file that showed it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fuzz_data import _PICTURES
from fuzz_models import _FLAT, _METADATA, onnx_model
from fuzz_protocols import _MATRICES
from fuzz_target import Fuzzer
from fuzz_targets import TARGETS
from safetensors.torch import save_file
from writers import part, public_pack, record

DEEP = b"[" * 100_000


def png_chunk(data: bytes, kind: bytes, content: bytes) -> bytes:
    """Put a chunk after a PNG picture's header."""
    import zlib

    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return data[:33] + struct.pack(">I", len(content)) + kind + content + checksum + data[33:]


def palette_with_alpha() -> bytes:
    return next(data for data in reversed(_PICTURES) if data[:4] == b"\x89PNG")


def damaged_exif() -> bytes:
    data = next(data for data in _PICTURES if b"Exif\0\0" in data)
    at = data.index(b"Exif\0\0") + 6
    return data[:at] + data[at : at + 8] + b"\xff\xff" + data[at + 10 :]


def parquet(image: pa.Array, label: pa.Array, metadata: bytes = b"{}") -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"image": image, "label": label}).replace_schema_metadata({"huggingface": metadata})
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def many_rows() -> bytes:
    """Eight million rows in some kilobytes."""
    rows = 1 << 23
    image = pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), pa.array([b"x"]))
    return parquet(image.cast(pa.binary()), pa.nulls(rows, pa.int8()).fill_null(0))


def weights(kind: torch.dtype) -> bytes:
    """A checkpoint with one tensor of another type."""
    import tempfile

    state = {name: tensor.clone() for name, tensor in _FLAT.module.state_dict().items()}
    name = next(name for name, tensor in state.items() if not tensor.ndim)
    state[name] = state[name].to(kind)
    with tempfile.TemporaryDirectory() as folder:
        save_file(state, Path(folder, "m"), {"format": "fedface-backbone-1", **_METADATA})
        return Path(folder, "m").read_bytes()


def float8(data: bytes) -> bytes:
    """Name the first int64 of a safetensors header float8, of as many bytes."""
    (length,) = struct.unpack_from("<Q", data)
    header = data[8 : 8 + length].replace(b'"dtype":"I64","shape":[3]', b'"dtype":"F8_E4M3","shape":[24]')
    assert header != data[8 : 8 + length]
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def overflowing() -> bytes:
    """Declare sizes whose product is 0 in 64 bits."""
    before = b"(4, 6), }"
    after = b"(4294967296, 4294967296), }"
    return _MATRICES[0].replace(before + (len(after) - len(before)) * b" ", after)


def of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], bytes]:
    """Return what changes a target's first valid file."""
    return lambda folder: change(TARGETS[name].build(folder)[0].read_bytes())


def content(data: bytes) -> Callable[[Path], bytes]:
    return lambda folder: data


def number_above_floats(data: bytes) -> bytes:
    assert b": 0.9\n" in data
    return data.replace(b": 0.9\n", b": 1" + 400 * b"0" + b"\n")


def number_for_tests(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "tests": 1}).encode()


IDENTITIES = "source-recordio"
FOUND: list[tuple[str, str, int, Callable[[Path], bytes]]] = [
    ("Pillow's UserWarning", "picture", 0, content(palette_with_alpha())),
    ("Pillow's warning of EXIF", "picture", 0, content(damaged_exif())),
    ("Pillow's IndexError", "picture", 0, content(png_chunk(_PICTURES[0], b"iCCP", b"x\0"))),
    ("int() of a digit that is none", IDENTITIES, 0, content("²\tann\n".encode())),
    ("int() of too many digits", IDENTITIES, 0, content(b"9" * 5000 + b"\tann\n")),
    ("an offset beyond all files", IDENTITIES, 2, content(b"1\t%d\n2\t0\n" % (2**63 - 1))),
    ("identities without end", "recordio-text", 1, content(b"%d,8,8" % 10**30)),
    ("a range without end", "verify-recordio", 0, of("recordio", lambda data: endless(data))),
    ("JSON too deep", "parquet", 0, content(parquet(pa.array([b"x"]), pa.array([0]), DEEP))),
    ("bytes(2 ** 40)", "parquet", 0, content(parquet(pa.array([{"bytes": 2**40}]), pa.array([0])))),
    ("bytes() of text", "parquet", 0, content(parquet(pa.array([{"bytes": "x"}]), pa.array([0])))),
    ("rows without end", "parquet", 0, content(many_rows())),
    ("a name too long", "tface-list", 0, content(b"x" * 300 + b"\t0\t0\t0\n")),
    ("a name too long", "sums", 0, content(b"0" * 64 + b"  " + b"b/" * 3000 + b"\n")),
    ("a device without end", "list", 0, content(b"/dev/zero 0\n")),
    ("too few pairs, nameless", "pairs-list", 0, content(b"1 a.png b.png\n")),
    ("too few pairs, nameless", "pairs-csv", 0, content(b"left,right,same\na.png,b.png,1\n")),
    ("too few pairs, nameless", "rfw", 0, content(b"m.0a\t1\t2\n")),
    ("one kind, nameless", "pairs-csv", 0, content(b"left,right,same,fold\na.png,b.png,1,1\n")),
    ("one kind, nameless", "rfw", 0, content(b"m.0a\t1\t2\n" * 10)),
    ("no mates, nameless", "megaface", 0, content(b'{"path": ["a/1", "a/2", "b/1", "b/2"], "id": [1, 2, 3, 4]}')),
    ("PyYAML's KeyError", "suite", 0, content(b"benchmarks: !!bool x")),
    ("PyYAML's IndexError", "suite", 0, content(b"benchmarks: !!int ''")),
    ("PyYAML's AttributeError", "suite", 0, content(b"benchmarks: !!timestamp x")),
    ("PyYAML's KeyError", "federation", 0, content(b"name: !!bool x")),
    ("PyYAML's ValueError", "federation", 0, content(b"name: !!float '.'")),
    ("NumPy's TokenError", "ijb-matrix", 0, content(_MATRICES[0].replace(b"(4, 6), }", b"(4, 6,    "))),
    ("zipfile's BadZipFile", "megaface-matrix", 0, content(b"PK\5\6" + bytes(60))),
    ("a size that overflows", "ijb-matrix", 0, content(overflowing())),
    ("a picture of 2 ** 62", "onnx", 0, content(onnx_model(("n", 3, 2**62, 2**62)))),
    ("a batch of 2 ** 40", "onnx", 0, content(onnx_model((2**40, 3, 4, 4)))),
    ("a counter that is complex", "safetensors", 0, content(weights(torch.complex64))),
    ("NumPy's AttributeError", "run-state", 0, of("run-state", float8)),
    ("NumPy's AttributeError", "silo-store", 0, of("silo-store", float8)),
    ("texts for figures", "ledger", 0, content(b'{"tests": {"a": {"lfw": "99"}}}')),
    ("JSON too deep", "ledger", 0, content(DEEP)),
    ("TOML too deep", "policy", 0, content(b"a = " + DEEP)),
    ("a number above all floats", "ledger", 0, content(b'{"tests": {"a": {"lfw": 1%s}}}' % (400 * b"0"))),
    ("a number above all floats", "results", 0, of("results", lambda data: data.replace(b"0.995", b"1" + 400 * b"0"))),
    ("a number above all floats", "run-config", 0, of("run-config", number_above_floats)),
    ("a number for an object", "run-folder", 0, of("run-folder", number_for_tests)),
    ("JSON too deep", "run-folder", 0, content(DEEP)),
    ("JSON too deep", "run-folder", 1, content(DEEP + b"\n")),
]  # fmt: skip


def endless(data: bytes) -> bytes:
    """Have a set's header announce sixteen million identities."""
    header = public_pack([0, 0, 1, 1, 2])[0]
    first = len(record(header))
    return part(0, header[:28] + struct.pack("<f", 16777216.0) + header[32:]) + data[first:]


@pytest.mark.parametrize(
    ("fault", "name", "place", "make"), FOUND, ids=[f"{name}: {fault}" for fault, name, *_ in FOUND]
)
def test_no_fault_comes_back(
    fuzzer: Fuzzer, tmp_path: Path, fault: str, name: str, place: int, make: Callable[[Path], bytes]
) -> None:
    found = fuzzer(name, place, make(tmp_path).hex())
    assert not found["faults"]
    assert found["read"] + found["refused"] == 1
