# SPDX-License-Identifier: Apache-2.0
"""Targets: the sources that data is converted from, and the files beside them."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_data import _recordio
from fuzz_mutation import Mutator
from fuzz_target import TEXT, Target, each
from source_writers import example, tf_record, write_tface
from writers import face, pixels, png, record

from fedface_flwr.dataprep.aligning import RawFaces
from fedface_flwr.dataprep.inspecting import inspect
from fedface_flwr.dataprep.pack import read_pairs
from fedface_flwr.dataprep.points import read_points
from fedface_flwr.dataprep.source import SourceOptions
from fedface_flwr.dataprep.sources import open_source
from fedface_flwr.dataprep.sums import read_sums
from fedface_flwr.dataprep.tfrecord import masked_crc
from fedface_flwr.dataprep.verifying import KINDS, unlisted, verify_structure, verify_sums
from fedface_flwr.reporting.bars import Reporter

_PNG = [png(pixels(seed)) for seed in range(4)]
QUIET = Reporter(quiet=True)


def source(path: str, **options: str) -> Callable[[Path], None]:
    """Return a reader of a source, of all of its pictures and of what there is to say of them."""

    def read(root: Path) -> None:
        opened = open_source(root / path, SourceOptions(**options))
        count = len(opened.labels)
        if count:
            assert opened.labels.min() >= 0
            assert opened.labels.max() < len(opened.identities)
        assert all(problem.startswith(str(root)) for problem in [*opened.problems, *opened.faults])
        json.dumps(opened.stamp())
        opened.key(0) if count else None
        each([partial(opened.read, index) for index in range(count)])

    return read


def _verify(root: Path) -> None:
    opened = open_source(root / "set", SourceOptions())
    inspect(opened, pixels=True, reporter=QUIET)
    for failed in verify_structure(opened, QUIET):
        assert failed.kind in KINDS
        assert failed.text


def _set_with_names(root: Path) -> Sequence[Path]:
    files = _recordio(root)
    (root / "set" / "identities.txt").write_text("0\tann\n1\tbob\n2\tcy\n")
    return [root / "set" / "identities.txt", *files]


def _tfrecord_content(root: Path) -> Sequence[Path]:
    records = [
        tf_record(example({"image": [data], "label": [label], "weight": [0.5]}))
        for data, label in zip(_PNG, (0, 0, 1, 2), strict=True)
    ]
    (root / "a.tfrecord").write_bytes(b"".join(records))
    return [root / "a.tfrecord"]


def _example(mutator: Mutator, data: bytes) -> bytes:
    """Damage what is in a record, and make its checksum anew."""
    contents, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        contents.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    place = mutator.below(len(contents))
    contents[place] = mutator.mutate(contents)
    lengths = [struct.pack("<Q", len(content)) for content in contents]
    if mutator.below(8) == 0:
        lengths[place] = struct.pack("<Q", (0, 2**31, 2**63 - 17, 2**64 - 1, 2**64 - 16)[mutator.below(5)])
    return b"".join(
        length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))
        for length, content in zip(lengths, contents, strict=True)
    )


def _tface(root: Path) -> Sequence[Path]:
    write_tface(root, "faces", [0, 0, 1, 1], 2)
    return [root / "faces.txt"]


def _tface_names(root: Path) -> Sequence[Path]:
    write_tface(root, "faces", [0, 0, 1, 1], 2)
    return [root / "faces" / "faces.index"]


def _pictures(root: Path, folder: str) -> None:
    (root / folder).mkdir()
    for number, data in enumerate(_PNG):
        (root / folder / f"{number}.png").write_bytes(data)


def _list(name: str, text: str) -> Callable[[Path], Sequence[Path]]:
    def build(root: Path) -> Sequence[Path]:
        _pictures(root, "raw")
        (root / name).write_text(text)
        return [root / name]

    return build


def _parquet_content(**options: object) -> bytes:
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["ann", "bob"]}}}}
    images = pa.array([{"bytes": data, "path": None} for data in _PNG])
    table = pa.table({"image": images, "label": pa.array([0, 0, 1, 1])})
    if options.get("plain"):
        table = pa.table({"image": pa.array(_PNG), "label": pa.array(["a", "b", "a", "b"])})
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=2, compression=str(options.get("compression", "snappy")))
    return file.getvalue()


def _parquet(root: Path) -> Sequence[Path]:
    (root / "faces.parquet").write_bytes(_parquet_content())
    return [root / "faces.parquet"]


def _odd_parquet(mutator: Mutator, data: bytes) -> bytes:
    """Return valid parquet whose columns are of other types."""
    kinds = [
        pa.int8(), pa.uint64(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.date64(),
        pa.timestamp("us", "Nowhere/Town"), pa.duration("ns"), pa.decimal128(9, 2), pa.list_(pa.int64()), pa.null(),
        pa.struct([("bytes", pa.int64())]), pa.struct([("bytes", pa.string())]), pa.struct([("bytes", pa.binary())]),
        pa.struct([("bytes", pa.list_(pa.int32()))]), pa.dictionary(pa.int32(), pa.string()), pa.time32("s"),
    ]  # fmt: skip
    values = [None, 0, 1, 2**31, 2**62, "a", "\0", b"x", _PNG[0], {"bytes": 2**40}, {"bytes": "x"}, {"bytes": _PNG[0]}]
    columns = {}
    for name in ("image", "label"):
        kind = kinds[mutator.below(len(kinds))]
        fitting: list[object] = []
        for value in values:
            try:
                pa.array([value], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                continue
            fitting.append(value)
        columns[name] = pa.array([fitting[mutator.below(len(fitting))] for _ in range(3)], kind)
    names = (["ann"], [], "ann", None, 5, [1], {})[mutator.below(7)]
    metadata = json.dumps({"info": {"features": {"label": {"names": names}}}}) if mutator.below(2) else "[" * 100_000
    table = pa.table(columns).replace_schema_metadata({"huggingface": metadata})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


_POINTS = "".join(
    f"{number}.png {' '.join(f'{30 + number + 8 * at}.5' for at in range(10))} 0.99\n" for number in range(4)
)


def _points(root: Path) -> Sequence[Path]:
    _pictures(root, "raw")
    (root / "points.txt").write_text(_POINTS)
    (root / "names.txt").write_text("".join(f"{number}.png\tperson {number % 2}\n" for number in range(4)))
    return [root / "points.txt", root / "names.txt"]


def _read_points(root: Path) -> None:
    found = read_points(root / "points.txt")
    assert found.points.shape == (len(found.names), 5, 2)
    assert np.isfinite(found.points).all()
    raw = RawFaces.open(root / "raw", root / "points.txt", root / "names.txt")
    assert len(raw.labels) == len(raw.outputs) == len(raw.faces.names)
    assert all(not output.startswith("/") and ".." not in output.split("/") for output in raw.outputs)


def _sums(root: Path) -> Sequence[Path]:
    _recordio(root)
    names = [f"set/{name}" for name in ("train.rec", "train.idx", "property")]
    lines = [f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}" for name in names[:2]]
    lines.append(f"MD5 ({names[2]}) = {hashlib.md5((root / names[2]).read_bytes()).hexdigest()}")
    (root / "sums").write_text("\n".join(lines) + "\n")
    return [root / "sums"]


def _read_sums(root: Path) -> None:
    sums = read_sums(root / "sums")
    for problem in verify_sums(root / "set", sums, root, QUIET):
        assert problem is None or problem.startswith("/")
    each([lambda: list(verify_sums(root / "set" / "train.rec", sums, root, QUIET))])
    unlisted(root / "set", sums, root)


def _pairs(root: Path) -> Sequence[Path]:
    _pictures(root, "raw")
    (root / "pairs").write_text("".join(f"{number % 2} {number % 4}.png {number // 4}.png\n" for number in range(12)))
    return [root / "pairs"]


def _read_pairs(root: Path) -> None:
    pairs = read_pairs(root / "pairs", root / "raw")
    assert len(pairs.left) == len(pairs.right) == len(pairs.same) == len(pairs.fold)


def _ranges(mutator: Mutator, data: bytes) -> bytes:
    """Change the range that the set's header gives, which is record 0, in its two labels."""
    values = (0.0, 1.0, 2.0, 6.0, 9.0, 16777216.0, 3e38, float("nan"), float("inf"), -1.0)
    chosen = [values[mutator.below(len(values))] for _ in range(2)]
    header = record(face([6.0, chosen[1]] if mutator.below(2) else chosen, b""))
    return header + data[len(header) :]


TARGETS = (
    Target("source-recordio", _set_with_names, source("set"), 800, words=(b"0\tx", b"\xc2\xb2\tx", b"7\n")),
    Target("verify-recordio", _recordio, _verify, 400, tailor=_ranges),
    Target("tfrecord", _tfrecord_content, source("a.tfrecord"), 700, tailor=_example),
    Target("tface-list", _tface, source("faces.txt"), 400, words=TEXT),
    Target("tface-index", _tface_names, source("faces"), 400, words=TEXT),
    Target("list", _list("l.txt", "raw/0.png 0\nraw/1.png\t0\n# x\nraw/2.png\tb c\n"), source("l.txt"), 400,
           words=TEXT),
    Target("lst", _list("l.lst", "0\t0.0\traw/0.png\n1\t1\traw/1.png\n"), source("l.lst"), 300, words=TEXT),
    Target("parquet", _parquet, source("faces.parquet"), 500, tailor=_odd_parquet,
           seeds=[_parquet_content(plain=True), _parquet_content(compression="zstd")]),
    Target("points", _points, _read_points, 400, words=TEXT),
    Target("sums", _sums, _read_sums, 400, words=(b"SHA256 (x) = ", b"\\", b"\\n", b"*", b"  ", b"0" * 64)),
    Target("pack-pairs", _pairs, _read_pairs, 300, words=(b"left,right,same", b"0 a b", b"2 1")),
)  # fmt: skip
