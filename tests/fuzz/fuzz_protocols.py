# SPDX-License-Identifier: Apache-2.0
"""Targets: IJB's meta files, MegaFace's lists and features, and matrices of features."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from fuzz_mutation import EXTREMES, Mutator, odd_values
from fuzz_target import TEXT, Target
from ijb_folder import write_small

from fedface_flwr.errors import DataError
from fedface_flwr.protocols import ijb, megaface
from fedface_flwr.protocols.ijb_features import BOTH, open_matrix
from fedface_flwr.protocols.megaface_features import FeatureFiles, load_matrix, read_feature
from fedface_flwr.protocols.megaface_lists import (
    distractor_noise,
    identities_of,
    probe_noise,
    read_list,
    rows_of,
)

_HEADERS = (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 6), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (4, 6), }",
    b"{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': True, 'shape': (4, 3), }",
)
_SHAPES = (
    *(b"(4,)|()|(0, 6)|(4, 0)|(-4, 6)|(4, -6)|(-4, -6)|(4.0, 6)|(True, 6)|('4', 6)|4|[4, 6]|(4, 6, 1)".split(b"|")),
    b"(4294967296, 4294967296)",
    b"(9223372036854775807, 2)",
    b"(1, 99999999999999999999)",
    b"(1000000000, 512)",
    b"(4611686018427387904, 4)",
    b"(" * 200 + b")" * 200,
    b"(" * 5000,
    b"-" * 5000 + b"4",
    b"__import__('os').system('true')",
    b"4 if True else 5",
    b"(4, 6)\n\nimport os",
    b"(4L, 6L)",
)
_TYPES = b"<f2 <f8 >f4 <f16 |O <i4 |b1 |S4 <U4 |V4 <c8 <M8[s] float32 f4,f4 (2,)f4 <f0 <f3 O8".split()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_header(mutator: Mutator, data: bytes) -> bytes:
    """Write a header with another shape or type before the same values."""
    (length,) = struct.unpack_from("<H", data, 8)
    header, values = data[10 : 10 + length].strip(), data[10 + length :]
    match mutator.below(4):
        case 0:
            shape = _SHAPES[mutator.below(len(_SHAPES))]
            start = header.index(b"'shape': ") + 9
            header = header[:start] + shape + b", }"
        case 1:
            header = header.replace(b"<f4", _TYPES[mutator.below(len(_TYPES))])
        case 2:
            header = header.replace(b"False", (b"True", b"1", b"None", b"'x'")[mutator.below(4)])
        case _:
            header = Mutator(mutator.rng, TEXT).mutate([header, *_HEADERS])
    version = 1 + mutator.below(4)
    size = struct.pack("<H" if version == 1 else "<I", (len(header) + 1) & 0xFFFF)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + b"\n" + values


def _npz(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, array)
    return file.getvalue()


_MATRIX = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
_MATRICES = [_npy(_MATRIX), _npy(_MATRIX.astype(np.float64)), _npy(np.asfortranarray(_MATRIX)), _npz(_MATRIX)]


def _ijb(*names: str) -> Callable[[Path], Sequence[Path]]:
    def build(root: Path) -> Sequence[Path]:
        small = write_small(root, subjects=4, dim=4)
        return [small.meta / f"ijbc_{name}" for name in names]

    return build


def _read_ijb(root: Path) -> None:
    options = {"protocol": "C", "meta": "meta", "features": "features.npy", "tasks": ["1:1", "1:N"]}
    outcome = ijb.from_options("bench", options | {"flags": ["N1D1F1"], "far_rules": "nearest"}, root).run(None)
    # A task that fails leaves the other its figures.
    for reason in outcome.failures.values():
        raise DataError(reason)
    assert outcome.figures


def _matrix(root: Path) -> Sequence[Path]:
    (root / "list.txt").write_text("a/1.jpg\na/2.jpg\nb/1.jpg\nb/2.jpg\n")
    (root / "matrix.npy").write_bytes(_MATRICES[0])
    return [root / "matrix.npy"]


def _read_ijb_matrix(root: Path) -> None:
    plain, mirrored = open_matrix(root / "matrix.npy", BOTH)
    assert mirrored is not None
    assert plain.shape == mirrored.shape
    assert np.asarray(plain).nbytes + np.asarray(mirrored).nbytes <= (root / "matrix.npy").stat().st_size


def _read_megaface_matrix(root: Path) -> None:
    found = load_matrix(root / "matrix.npy", read_list(root / "list.txt"))
    assert len(found) == 4
    assert np.allclose(np.linalg.norm(found, axis=1), 1)


_LISTS = {"path": ["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"], "id": ["a", "a", "b", 7]}
_JSON = (
    *(b'1e999|NaN|"\\ud800"|"\\u0000"|{}|[]|null|true|-0|{"a": 1, "a": 2}|"../x"|"/x"|[[]]'.split(b"|")),
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b"9" * 5000,
)  # fmt: skip


def _lists(root: Path) -> Sequence[Path]:
    (root / "probes.json").write_text(json.dumps(_LISTS, indent=1))
    (root / "probes.txt").write_text("\n".join(_LISTS["path"]) + "\n")
    (root / "noise.txt").write_text("# noise\n1.jpg\n")
    (root / "distractor_noise.txt").write_text("# noise\n1\ta/1.jpg\nx/b/1.jpg\n")
    return sorted(root.glob("*"))


def _odd_list(mutator: Mutator, data: bytes) -> bytes:
    return odd_values(mutator, json.dumps(_LISTS).encode())


def _read_lists(root: Path) -> None:
    listed, plain = read_list(root / "probes.json"), read_list(root / "probes.txt")
    assert len(identities_of(listed)) == len(listed.names) == len(set(listed.names)) > 0
    assert len(identities_of(plain)) == len(plain.names)
    assert len(probe_noise(root / "noise.txt", plain)) == len(plain.names)
    assert len(distractor_noise(root / "distractor_noise.txt", plain)) == len(plain.names)
    assert len(rows_of(listed, plain)) == len(listed.names)


def feature(values: Sequence[float], kind: int = 5, columns: int = 1) -> bytes:
    array = np.array(values, "<f4" if kind == 5 else "<f8")
    return struct.pack("<4i", len(values), columns, array.itemsize, kind) + array.tobytes()


def _features(root: Path) -> Sequence[Path]:
    (root / "list.txt").write_text("a/1.jpg\na/2.jpg\n")
    for number in (2, 1):
        (root / "a").mkdir(exist_ok=True)
        (root / "a" / f"{number}.jpg.bin").write_bytes(feature([1.0, 2.0, number, 4.0]))
    return [root / "a" / "1.jpg.bin"]


def _feature_header(mutator: Mutator, data: bytes) -> bytes:
    at, value = 4 * mutator.below(4), EXTREMES[mutator.below(len(EXTREMES))] & 0xFFFFFFFF
    values = np.frombuffer(data[16:], "<f4").copy()
    if mutator.below(3) == 0:
        values[mutator.below(len(values))] = (np.nan, np.inf, -np.inf, 0, 3e38)[mutator.below(5)]
        return data[:16] + values.tobytes()
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


def _read_features(root: Path) -> None:
    path = root / "a" / "1.jpg.bin"
    found = read_feature(path)
    assert 16 + found.nbytes == path.stat().st_size
    matrix = FeatureFiles(root, ".bin", read_list(root / "list.txt")).load()
    assert np.allclose(np.linalg.norm(matrix, axis=1), 1)


def _megaface(root: Path) -> Sequence[Path]:
    rng = np.random.default_rng(0)
    (root / "probes.json").write_text(json.dumps(_LISTS))
    (root / "distractors.txt").write_text("".join(f"x/{number}.jpg\n" for number in range(6)))
    (root / "some.txt").write_text("x/1.jpg\nx/4.jpg\n")
    np.save(root / "probes.npy", rng.normal(size=(4, 5)))
    np.save(root / "distractors.npy", rng.normal(size=(6, 5)))
    return [root / name for name in ("probes.json", "distractors.txt", "some.txt")]


def _read_megaface(root: Path) -> None:
    options = {f"{of}_features": f"{of}s.npy" for of in ("probe", "distractor")}
    options |= {"probes": "probes.json", "distractors": "distractors.txt"}
    listed = options | {"distractor_lists": ["some.txt"]}
    for chosen in (options, listed):
        assert megaface.from_options("bench", chosen, root).run(None).figures


TARGETS = (
    Target("ijb-faces", _ijb("face_tid_mid.txt", "name_5pts_score.txt"), _read_ijb, 400, words=TEXT),
    Target("ijb-pairs", _ijb("template_pair_label.txt"), _read_ijb, 250, words=TEXT),
    Target("ijb-galleries", _ijb("1N_gallery_G1.csv", "1N_probe_mixed.csv"), _read_ijb, 250, words=TEXT),
    Target("ijb-matrix", _matrix, _read_ijb_matrix, 800, tailor=npy_header, seeds=_MATRICES),
    Target("megaface-matrix", _matrix, _read_megaface_matrix, 500, tailor=npy_header, seeds=_MATRICES),
    Target("megaface-lists", _lists, _read_lists, 600, words=_JSON, tailor=_odd_list),
    Target("megaface-feature", _features, _read_features, 600, tailor=_feature_header,
           seeds=[feature([1, 2, 3], 6), feature([1, 2, 3])], memory=1 << 30),
    Target("megaface", _megaface, _read_megaface, 100, words=_JSON),
)  # fmt: skip
