# SPDX-License-Identifier: Apache-2.0
"""The files that a network leaves in, and the way back, by which they are checked."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation import onnx_backbone
from fedface_flwr.evaluation.backbones import TorchBackbone
from fedface_flwr.evaluation.onnx_backbone import OnnxBackbone
from fedface_flwr.evaluation.pictures import Backbone
from fedface_flwr.evaluation.stored import Stored, open_weights
from fedface_flwr.export.onnx_file import INPUT, write_onnx
from fedface_flwr.federation.checkpoint import save_backbone
from fedface_flwr.federation.tensor_file import write_tensors
from fedface_flwr.models.public import export_state, import_state
from fedface_flwr.models.public_names import Dialect
from fedface_flwr.training.flat import FlatModel

FORMATS = ("onnx", "insightface", "tface", "safetensors")
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Target:
    """What is to be written.

    Attributes
    ----------
    format : str
        One of ``FORMATS``.
    inside : bool
        Whether an ONNX graph takes pixels and normalises them itself.
    opset : int
        Of an ONNX graph.
    tensors : str
        ``.safetensors`` or ``.pth``: the container of a state dict under public names.
    """

    format: str
    inside: bool
    opset: int
    tensors: str

    @classmethod
    def of(cls, out: Path, format_name: str | None, preprocessing: str, opset: int) -> Target:
        """Tell the format by the file's ending where it is not given.

        Raises
        ------
        ConfigError
            If ending and format do not go together.
        """
        endings = {"onnx": (".onnx",), "safetensors": (".safetensors",)}
        chosen = format_name or {".onnx": "onnx", ".safetensors": "safetensors"}.get(out.suffix)
        if chosen is None:
            raise ConfigError(f"{out}: its ending does not tell the format; give --format {'|'.join(FORMATS)}")
        allowed = endings.get(chosen, (".pth", ".pt", ".safetensors"))
        if out.suffix not in allowed:
            raise ConfigError(f"{out}: format {chosen} is written to a file that ends in {' or '.join(allowed)}")
        return cls(chosen, preprocessing == "inside", opset, out.suffix)


def write_model(stored: Stored, target: Target, path: Path) -> None:
    """Write a network.

    Raises
    ------
    ConfigError
        If a package is missing or an option cannot work.
    DataError
        If the format has no tensor for a part of the network.
    StateError
        If the disk does not take it.
    """
    if target.format == "onnx":
        metadata = onnx_metadata(stored, target)
        write_onnx(stored.network, path, inside=target.inside, opset=target.opset, metadata=metadata)
    elif target.format == "safetensors":
        flat = FlatModel(stored.network.architecture.build())
        flat.module.load_state_dict(stored.network.module.state_dict())
        save_backbone(path, flat.layout, flat.state(), checkpoint_metadata(stored))
    else:
        state = export_state(stored.network, Dialect(target.format))
        if target.tensors == ".safetensors":
            write_tensors(path, {name: tensor.numpy() for name, tensor in state.items()}, {})
        else:
            # By way of memory, for an archive keeps the name of the file that it was written to.
            buffer = io.BytesIO()
            torch.save(state, buffer)
            path.write_bytes(buffer.getvalue())


def reopen(stored: Stored, target: Target, path: Path, batch_size: int) -> Backbone:
    """Open what :func:`write_model` has written, as a reader who knows only the file and its input size."""
    if target.format == "onnx":
        return OnnxBackbone.open(path, device=_CPU, batch_size=batch_size)
    public = target.format != "safetensors"
    size = stored.network.architecture.input_size if public else None
    again = open_weights(path, kind=target.format, input_size=size)
    return TorchBackbone(again, device=_CPU, precision="float32", batch_size=batch_size)


def weights_digests(stored: Stored) -> frozenset[str]:
    """Return the digest of a network's weights, and those that an export under each public dialect's names has.

    These have another topology and therefore other tensors, though they embed the same.
    """
    size, found = stored.network.architecture.input_size, {stored.digest}
    for dialect in (Dialect.INSIGHTFACE, Dialect.TFACE):
        try:
            state = export_state(stored.network, dialect)
        except DataError:
            continue
        network = import_state(state, where=stored.title, dialect=dialect, input_size=size)
        found.add(replace(stored, network=network).digest)
    return frozenset(found)


def checkpoint_metadata(stored: Stored) -> dict[str, str]:
    """Return the metadata of a checkpoint of ours: a run's own, or what is known of public weights."""
    kind = stored.network.architecture
    own = {
        "architecture": kind.name,
        "width": str(kind.width),
        "input_size": str(kind.input_size),
        "embedding": str(kind.embedding),
        **PREPROCESSING.metadata(),
        "method": f"imported from {stored.dialect} names",
    }
    known = {key: value for key, value in stored.metadata.items() if key != "format"}
    topology = {"conv_shortcuts": kind.conv_shortcuts, "last_affine": kind.last_affine}
    return {**own, **known, **{key: "true" for key, value in topology.items() if value}}


def onnx_metadata(stored: Stored, target: Target) -> Mapping[str, str]:
    """Return an ONNX file's ``metadata_props``."""
    return {
        "format": onnx_backbone.FORMAT,
        "preprocessing": "inside" if target.inside else "outside",
        "input": INPUT,
        "output": onnx_backbone.OUTPUT,
        **checkpoint_metadata(stored),
        "weights_sha256": stored.digest,
    }
