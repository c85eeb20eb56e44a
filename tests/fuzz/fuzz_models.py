# SPDX-License-Identifier: Apache-2.0
"""Targets: weights in every form that they are evaluated or exported from, and stored embeddings."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from fuzz_mutation import EXTREMES, Mutator
from fuzz_target import TEXT, Target
from onnx import TensorProto, helper, numpy_helper

from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.backbones import open_backbone
from fedface_flwr.evaluation.embedder_store import EmbeddingStore
from fedface_flwr.evaluation.stored import open_weights
from fedface_flwr.federation.checkpoint import load_backbone, save_backbone
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.training.flat import FlatModel

_SIZE, _DIMS = 16, 4
_METADATA = {
    "architecture": "IR-18",
    "width": "1",
    "input_size": str(_SIZE),
    "embedding": str(_DIMS),
    **PREPROCESSING.metadata(),
}
_KINDS = [
    "F64",
    "F32",
    "F16",
    "BF16",
    "I64",
    "I32",
    "I16",
    "I8",
    "U8",
    "U16",
    "U32",
    "U64",
    "BOOL",
    "F8_E4M3",
    "F8_E5M2",
    "C64",
    "X",
]


def _flat() -> FlatModel:
    # Threads, once started, would be missing in a child process.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return FlatModel(IRBackbone(18, width=1, input_size=_SIZE, embedding=_DIMS))


_FLAT = _flat()


def _checkpoint(root: Path) -> Sequence[Path]:
    save_backbone(root / "model.safetensors", _FLAT.layout, _FLAT.state(), _METADATA)
    return [root / "model.safetensors"]


def safetensors_header(mutator: Mutator, data: bytes) -> bytes:
    """Change the JSON that says what the tensors are, and its length with it."""
    (length,) = struct.unpack_from("<Q", data)
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    name = names[mutator.below(len(names))]
    entry = header[name]
    match mutator.below(7):
        case 0:
            text = Mutator(mutator.rng, TEXT).mutate([data[8 : 8 + length]])
            return struct.pack("<Q", len(text)) + text + values
        case 1:
            entry["dtype"] = _KINDS[mutator.below(len(_KINDS))]
        case 2:
            kind = mutator.below(3)
            entry["dtype"] = ("F16", "BF16", "F8_E4M3")[kind]
            entry["shape"] = [*entry["shape"], 2 if kind < 2 else 4]
        case 3:
            entry["shape"] = [[], [0], [0, 2**40], [2**40, 0], [2**62, 8], [-1], [1e9], entry["shape"][::-1]][
                mutator.below(8)
            ]
            entry["data_offsets"] = [entry["data_offsets"][0]] * 2 if mutator.below(2) else entry["data_offsets"]
        case 4:
            place = mutator.below(2)
            entry["data_offsets"][place] = EXTREMES[mutator.below(len(EXTREMES))]
        case 5:
            about = header.setdefault("__metadata__", {})
            key = sorted(about)[mutator.below(len(about))] if about else "format"
            about[key] = ("", "9999", "-1", "²", "1e3", "x" * 3000, "[" * 100_000, "{}", "\0", "112")[mutator.below(10)]
        case _:
            header[("", "\0", "a.b", f"{name}.x", "stages.0.99999999.conv", "é" * 200)[mutator.below(6)]] = header.pop(
                name
            )
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values


def _read_weights(name: str) -> Callable[[Path], None]:
    def read(root: Path) -> None:
        stored = open_weights(root / name)
        assert stored.digest
        kind = stored.network.architecture
        assert sum(tensor.numel() for tensor in stored.network.module.state_dict().values()) < 100_000
        images = np.zeros((1, 3, kind.input_size, kind.input_size), np.uint8)
        if kind.input_size <= 64:
            assert open_backbone(root / name, device="cpu").embed(images).shape == (1, kind.embedding)

    return read


def _read_checkpoint(root: Path) -> None:
    model, metadata = load_backbone(root / "model.safetensors", _FLAT.layout)
    assert len(model.values) == _FLAT.layout.num_values
    assert metadata["format"]


def _state_dict(root: Path) -> Sequence[Path]:
    torch.save(dict(_FLAT.module.state_dict()), root / "model.pth")
    return [root / "model.pth"]


class Spawns:
    """Unpickled by the standard library, it runs a program."""

    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, ("true",)


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


_CONTENTS = (
    *(None, 5, "x", [], {}, {1: 2}, {"state_dict": {}}, {"state_dict": {"a": 1}}, [torch.ones(2)]),
    *({"layer1.0.bn1.weight": torch.ones(2)}, {"body.0.res_layer.0.weight": torch.ones(0)}),
    {"layer1.0.bn1.weight": torch.ones(1).expand(2**40)},
    {"layer1.0.bn1.weight": torch.ones(3).to_sparse()},
    {"layer1.0.bn1.weight": _quantized()},
    {"a": torch.ones(3, device="meta")},
    {"a": torch.ones(3, dtype=torch.complex64), "b": torch.ones(3).to(torch.float8_e4m3fn)},
    {"a": torch.nn.Parameter(torch.ones(3))},
    {"a": Spawns()},
)


def torch_pickle(mutator: Mutator, data: bytes) -> bytes:
    """Damage a record of the archive, such as the pickle in it, whose checksums then stay right; or save odd things."""
    if mutator.below(4) == 0:
        file = io.BytesIO()
        torch.save(_CONTENTS[mutator.below(len(_CONTENTS))], file)
        data = file.getvalue()
        if mutator.below(2):
            return data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    names = [name for name in records if name.endswith(("data.pkl", "version", "byteorder", ".format_version"))]
    names += [name for name in records if name.endswith("data.pkl")] * 9
    name = names[mutator.below(len(names))]
    if mutator.below(9) == 0:
        records[name] = pickle.dumps(_CONTENTS[mutator.below(4)], mutator.below(6))
    else:
        records[name] = mutator.mutate([records[name]])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if mutator.below(9) == 0 else zipfile.ZIP_STORED) as archive:
        for entry, content in records.items():
            archive.writestr(entry, content)
    return file.getvalue()


def onnx_model(
    shape: Sequence[int | str] = ("n", 3, 4, 4), *, nodes: Sequence[onnx.NodeProto] = (), dims: int = 3
) -> bytes:
    """Return a graph that gives the mean colour, and first of all ``nodes``, which go from ``in`` to ``mid``."""
    mean = helper.make_node("ReduceMean", ["mid" if nodes else "in", "axes"], ["embedding"], keepdims=0)
    graph = helper.make_graph(
        [*nodes, mean],
        "graph",
        [helper.make_tensor_value_info("in", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [shape[0], dims])],
        [numpy_helper.from_array(np.array([2, 3], np.int64), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(model.SerializeToString())


def _onnx(root: Path) -> Sequence[Path]:
    (root / "model.onnx").write_bytes(onnx_model())
    return [root / "model.onnx"]


def _odd_onnx(mutator: Mutator, data: bytes) -> bytes:
    """Return a graph with another shape, or with a step before that wants another amount of memory."""
    sides = (0, 1, 3, 4, 112, 2**15, 2**20, 2**31, 2**62, -1, "n", "")
    shape = [sides[mutator.below(len(sides))] if mutator.below(3) == 0 else side for side in ("n", 3, 4, 4)]
    if mutator.below(3):
        return mutator.mutate([onnx_model(shape)]) if mutator.below(3) == 0 else onnx_model(shape)
    times = (0, 1, 2, 100, 2**31)[mutator.below(5)]
    repeats = numpy_helper.from_array(np.array([1, 1, times, times], np.int64))
    steps = (
        [helper.make_node("Constant", [], ["r"], value=repeats), helper.make_node("Tile", ["in", "r"], ["mid"])],
        [helper.make_node("Sub", ["in", "in"], ["mid"])],
        [helper.make_node("If", ["in"], ["mid"])],
        [helper.make_node("Identity", ["mid"], ["mid"])],
        [helper.make_node("Mine", ["in"], ["mid"], domain="example.org")],
    )
    return onnx_model(shape, nodes=steps[mutator.below(len(steps))])


def _read_onnx(root: Path) -> None:
    backbone = open_backbone(root / "model.onnx", device="cpu")
    images = np.zeros((1, 3, backbone.input_size, backbone.input_size), np.uint8)
    assert backbone.embed(images).shape == (1, backbone.dim)


_ROWS = {bytes([at]) * 16: np.arange(3, dtype=np.float32) + at for at in range(5)}


def _embeddings(root: Path) -> Sequence[Path]:
    store = EmbeddingStore(root / "cache", 3, lambda line: None)
    for key, row in _ROWS.items():
        store.put(key, row)
    store.flush()
    return list((root / "cache").iterdir())


def _embeddings_head(mutator: Mutator, data: bytes) -> bytes:
    """Change the head, and the checksum with it."""
    at = 8 * mutator.below(3)
    body = data[:at] + struct.pack("<Q", EXTREMES[mutator.below(len(EXTREMES))] & 2**64 - 1) + data[at + 8 : -16]
    return body + hashlib.blake2b(body, digest_size=16).digest()


def _read_embeddings(root: Path) -> None:
    said: list[str] = []
    store = EmbeddingStore(root / "cache", 3, said.append)
    if len(said) == 1:
        assert len(store) == 0
        raise DataError(said[0])
    assert len(store) in (0, 5)
    for key, row in _ROWS.items():
        found = store.get(key)
        assert found is None or np.array_equal(found, row)


TARGETS = (
    Target("safetensors", _checkpoint, _read_weights("model.safetensors"), 250, tailor=safetensors_header),
    Target("checkpoint", _checkpoint, _read_checkpoint, 300, tailor=safetensors_header),
    Target("state-dict", _state_dict, _read_weights("model.pth"), 250, tailor=torch_pickle, memory=1 << 30),
    Target("onnx", _onnx, _read_onnx, 250, tailor=_odd_onnx, memory=1 << 30),
    Target("embedding-cache", _embeddings, _read_embeddings, 800, tailor=_embeddings_head),
)
