# SPDX-License-Identifier: Apache-2.0
"""A network out of a run's folder, a checkpoint or a public state dict."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedface_flwr.config import Config, from_container
from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.weights import GLOBAL, choose_checkpoint, read_state_file, run_of
from fedface_flwr.federation.checkpoint import FORMAT
from fedface_flwr.models.public import import_state
from fedface_flwr.models.public_names import Dialect, dialect_of
from fedface_flwr.models.topology import Network
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.yaml_file import parse_yaml

KINDS = ("auto", "run", "safetensors", "onnx", "state-dict", "insightface", "tface")


@dataclass(frozen=True)
class Stored:
    """A network out of a file.

    Attributes
    ----------
    network : Network
        The weights.
    title : str
        File or folder, without where it lies, and model.
    dialect : Dialect
        Whose names the file has.
    metadata : mapping of str to str
        What the checkpoint says of itself; empty for public weights.
    run : Path or None
        The folder of the run, or of the half of it, that left the checkpoint.
    silo : str
        Whose own model of that run it is; empty for the global one.
    """

    network: Network
    title: str
    dialect: Dialect
    metadata: Mapping[str, str]
    run: Path | None
    silo: str

    @property
    def description(self) -> str:
        """What it is, in one line."""
        kind = self.network.architecture
        sizes = f"width {kind.width}, {kind.input_size} pixels, {kind.embedding} dimensions"
        names = {Dialect.FEDFACE: "trained here", Dialect.INSIGHTFACE: "insightface iresnet", Dialect.TFACE: "TFace IR"}
        return f"{kind.name}, {sizes} ({names[self.dialect]})"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights by our names and of the preprocessing, whichever file they lie in."""
        state = self.network.module.state_dict()
        digest = hashlib.sha256(repr((PREPROCESSING.metadata(), self.network.architecture)).encode())
        for name, tensor in sorted(state.items()):
            digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.contiguous().numpy())
        return digest.hexdigest()


def open_weights(
    path: Path, *, kind: str = "auto", model: str = "", input_size: int | None = None, colour_order: str = "RGB"
) -> Stored:
    """Open weights as a network, whichever file they lie in.

    Parameters
    ----------
    path : Path
        A run's folder, a ``.safetensors`` checkpoint, or a public state dict.
    kind, model, input_size, colour_order
        As in :func:`~fedface_flwr.evaluation.backbones.open_backbone`.

    Raises
    ------
    ConfigError
        If an option cannot work.
    DataError, StateError
        If the file cannot be used.
    """
    kind = kind_of(path, kind)
    if kind == "onnx":
        raise ConfigError(f"{path}: an ONNX file is a graph, of which no weights can be taken; give its source")
    if model and kind != "run":
        raise ConfigError(f"model {model!r}: only a run's folder holds several models")
    title = path.name
    if kind == "run":
        name, file = choose_checkpoint(path, model)
        folder = path.absolute().name
        kind, path, title = "safetensors", file, folder if name == GLOBAL else f"{folder}: {name}"
    return _open_state(path, kind, title, input_size=input_size, colour_order=colour_order)


def run_config(folder: Path) -> Config:
    """Read the configuration of the run that has left this folder.

    Raises
    ------
    DataError
        If there is none, or it is of another version.
    """
    path = RunFolder(folder).config
    try:
        content, _ = parse_yaml(path)
        return from_container(content if isinstance(content, dict) else {})
    except (ValueError, ConfigError) as error:
        raise DataError(f"{path}: not the configuration of a run ({error})") from error


def kind_of(path: Path, kind: str) -> str:
    """Return a kind for ``auto``, or the one that was asked for.

    Raises
    ------
    ConfigError
        If there is no such kind.
    DataError
        If there is nothing at this path.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind {kind!r}: must be one of {', '.join(KINDS)}")
    if not path.exists():
        raise DataError(f"{path}: no such model; expected a run's folder, .safetensors, .onnx, .pth or .pt")
    if kind != "auto":
        return kind
    if path.is_dir():
        return "run"
    if path.suffix == ".onnx":
        return "onnx"
    return "state-dict"


def _open_state(path: Path, kind: str, title: str, *, input_size: int | None, colour_order: str) -> Stored:
    content = read_state_file(path)
    if "format" in content.metadata:
        if kind not in ("state-dict", "safetensors"):
            raise ConfigError(f"{path}: is a checkpoint of this project, not {kind}'s state dict")
        size = _checked_metadata(content.metadata, path, input_size, colour_order)
        network = import_state(content.tensors, where=str(path), dialect=Dialect.FEDFACE, input_size=size)
        _check_sizes(content.metadata, network, path)
        return Stored(network, title, Dialect.FEDFACE, content.metadata, *run_of(path))
    if kind == "safetensors":
        raise DataError(f"{path}: its metadata name no format, as a checkpoint of this project does")
    dialect = dialect_of(content.tensors, str(path)) if kind == "state-dict" else Dialect(kind)
    network = import_state(
        content.tensors, where=str(path), dialect=dialect, input_size=input_size, colour_order=colour_order
    )
    assumed = f" (trained on {colour_order})" if colour_order != "RGB" else ""
    return Stored(network, f"{title}{assumed}", dialect, {}, None, "")


def _checked_metadata(metadata: Mapping[str, str], path: Path, input_size: int | None, colour_order: str) -> int:
    """Return the input size of a checkpoint of ours, if it can be fed as everything here is."""
    if metadata["format"] != FORMAT:
        raise DataError(f"{path}: its format is {metadata['format']!r}, not {FORMAT!r}")
    for key, value in PREPROCESSING.metadata().items():
        if metadata.get(key) != value:
            raise DataError(f"{path}: wants {key} {metadata.get(key)!r}, but pictures are fed with {value!r}")
    size = metadata.get("input_size", "")
    if not size.isascii() or not size.isdigit() or len(size) > 4:
        raise DataError(f"{path}: its metadata give the input size as {size!r}")
    if input_size not in (None, int(size)) or colour_order != "RGB":
        raise ConfigError(f"{path}: says itself that it takes {size} pixels, RGB; leave both options out")
    return int(size)


def _check_sizes(metadata: Mapping[str, str], network: Network, path: Path) -> None:
    kind = network.architecture
    found = {"architecture": kind.name, "width": str(kind.width), "embedding": str(kind.embedding)}
    for key, value in found.items():
        if metadata.get(key) != value:
            raise DataError(f"{path}: its metadata give {key} as {metadata.get(key)!r}, its tensors as {value!r}")
