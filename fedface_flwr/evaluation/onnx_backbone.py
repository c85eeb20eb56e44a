# SPDX-License-Identifier: Apache-2.0
"""Embedding by an ONNX file, ours or a foreign one, on onnxruntime."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.data.sets import Images
from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.pictures import Embeddings

FORMAT = "fedface-onnx-1"
"""Value of the metadata's ``format`` in files that this project has written."""

OUTPUT = "embedding"

_DEFAULT_SIZE = 112
_LARGEST_SIZE, _LARGEST_BATCH = 1024, 1 << 26  # pixels of a side; of all pictures of a fixed batch
_MISSING = "ONNX files need the packages onnx and onnxruntime; install fedface-flwr[tools]"
_ON_GPU = "CUDAExecutionProvider"
# What a graph that normalises pixels itself does to them first, as insightface's older exports do.
_NORMALISING = ("Sub", "Add", "Mul", "Div", "Cast", "BatchNormalization")


@dataclass(frozen=True)
class Feed:
    """How a graph wants its pictures.

    Attributes
    ----------
    name : str
        Of the input.
    dtype : type
        uint8 or float32.
    normalised : bool
        Whether it takes ``(x - mean) / scale`` rather than pixel values.
    channels_last : bool
        NHWC rather than NCHW.
    colour_order : {"RGB", "BGR"}
        Order of the channels.
    size : int
        Side in pixels.
    batch : int
        Pictures in one run, or 0 where any number goes.
    """

    name: str
    dtype: type
    normalised: bool
    channels_last: bool
    colour_order: str
    size: int
    batch: int

    def array(self, images: Images) -> np.ndarray:
        """Return the input made of uint8 RGB (n, 3, size, size)."""
        pixels = images[:, ::-1] if self.colour_order == "BGR" else images
        values: np.ndarray = pixels.astype(self.dtype)
        if self.normalised:
            values = (values - np.float32(PREPROCESSING.mean)) / np.float32(PREPROCESSING.scale)
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1) if self.channels_last else values)

    def __str__(self) -> str:
        pixels = f"(x - {PREPROCESSING.mean}) / {PREPROCESSING.scale}" if self.normalised else "pixel values"
        return f"{self.colour_order} {pixels}, {'NHWC' if self.channels_last else 'NCHW'}"


class OnnxBackbone:
    """A graph that embeds; satisfies :class:`~fedface_flwr.evaluation.pictures.Backbone`.

    Made by :meth:`open`. Its ``weights`` are the digest of those that it was made of, as a file of this project says;
    no file says which ``run`` it came of.
    """

    def __init__(self, session: Any, feed: Feed, output: str, digest: str, title: str, description: str) -> None:
        self._session, self._feed, self._output = session, feed, output
        self.digest, self.title, self.description = digest, title, description
        self.weights = ""
        self.run: Path | None = None
        self.input_size = feed.size
        self.batch_size = 64
        self.dim = 0
        self.dim = self.embed(np.zeros((1, 3, feed.size, feed.size), np.uint8)).shape[1]

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        device: torch.device | None = None,
        batch_size: int = 64,
        input_size: int | None = None,
        colour_order: str = "RGB",
    ) -> OnnxBackbone:
        """Open a file.

        Parameters
        ----------
        path, batch_size, input_size, colour_order
            As in :func:`~fedface_flwr.evaluation.backbones.open_backbone`.
        device : torch.device, optional
            Where to compute; by default a GPU if onnxruntime can use one.

        Raises
        ------
        ConfigError
            If an option cannot work, or a package is missing.
        DataError
            If the file is no ONNX graph that maps pictures to embeddings.
        """
        data = _read(path)
        model = _parse(data, path)
        session = _session(data, path, device)
        feed = _feed(session, model, path, input_size, colour_order)
        metadata = _metadata(model)
        own = metadata.get("format") == FORMAT
        told = f"{feed}" if own else f"preprocessing assumed: {feed}"
        digest = hashlib.sha256(hashlib.sha256(data).digest() + repr(feed).encode()).hexdigest()
        title = path.name if own else f"{path.name} ({told})"
        backbone = cls(session, feed, _output(session, path), digest, title, f"ONNX, {feed.size} pixels, {told}")
        backbone.batch_size = batch_size
        backbone.weights = metadata.get("weights_sha256", "") if own else ""
        return backbone

    def embed(self, images: Images) -> Embeddings:
        """Return embeddings (n, dim), not normalised, of uint8 RGB images (n, 3, input_size, input_size)."""
        step = self._feed.batch or self.batch_size
        parts = [self._run(images[start : start + step]) for start in range(0, len(images), step)]
        return np.concatenate(parts) if parts else np.empty((0, self.dim), np.float32)

    def _run(self, images: Images) -> Embeddings:
        wanted = self._feed.batch or len(images)
        padded = np.concatenate([images, np.repeat(images[-1:], wanted - len(images), axis=0)])
        try:
            (result,) = self._session.run([self._output], {self._feed.name: self._feed.array(padded)})
        except Exception as error:  # onnxruntime has no common class of errors
            raise DataError(f"{self.title}: cannot be run on {wanted} pictures ({_first_line(error)})") from error
        if result.ndim != 2 or len(result) != wanted or self.dim not in (0, result.shape[1]):
            raise DataError(f"{self.title}: gives {list(result.shape)} for {wanted} pictures, not an embedding of each")
        embeddings: Embeddings = result[: len(images)].astype(np.float32)
        return embeddings


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _parse(data: bytes, path: Path) -> Any:
    """Return the graph's description, checked, and without weights in other files."""
    try:
        import onnx
        from onnx.external_data_helper import uses_external_data
    except ImportError as error:
        raise ConfigError(f"{path}: {_MISSING}") from error
    try:
        model = onnx.ModelProto.FromString(data)
        onnx.checker.check_model(data)
    except Exception as error:  # protobuf's and the checker's errors have no common class
        raise DataError(f"{path}: not a valid ONNX file ({_first_line(error)})") from error
    if any(uses_external_data(tensor) for tensor in model.graph.initializer):
        raise DataError(f"{path}: keeps weights in other files; join them: onnx.save(onnx.load(FILE), JOINED)")
    return model


def _session(data: bytes, path: Path, device: torch.device | None) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(f"{path}: {_MISSING}") from error
    available = onnxruntime.get_available_providers()
    on_gpu = _ON_GPU in available if device is None else device.type == "cuda"
    provider = _ON_GPU if on_gpu else "CPUExecutionProvider"
    if provider not in available:
        raise ConfigError(f"{path}: onnxruntime has no {provider} here; install onnxruntime-gpu or use device=cpu")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    chosen = (provider, {"device_id": device.index or 0 if device else 0, "use_tf32": 0}) if on_gpu else provider
    try:
        return onnxruntime.InferenceSession(data, options, providers=[chosen])
    except Exception as error:  # onnxruntime has no common class of errors
        raise DataError(f"{path}: onnxruntime cannot run it ({_first_line(error)})") from error


def _feed(session: Any, model: Any, path: Path, input_size: int | None, colour_order: str) -> Feed:
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        found = ", ".join(f"{entry.name} {entry.shape}" for entry in inputs)
        raise DataError(f"{path}: takes {found}, where a backbone takes one batch of pictures")
    (entry,) = inputs
    dtypes = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
    if entry.type not in dtypes:
        raise DataError(f"{path}: input {entry.name} is {entry.type}, neither uint8 nor float32")
    batch, *shape = (size if isinstance(size, int) else 0 for size in entry.shape)
    channels_last = shape[2] == 3 and shape[0] != 3
    sides = {side for side in (shape[:2] if channels_last else shape[1:]) if side}
    if len(sides) > 1 or (shape[2] if channels_last else shape[0]) not in (0, 3):
        raise DataError(f"{path}: input {entry.name} has shape {entry.shape}, not square pictures of three channels")
    size = next(iter(sides), input_size or _DEFAULT_SIZE)
    if not 0 < size <= _LARGEST_SIZE or max(batch, 1) * size * size > _LARGEST_BATCH:
        raise DataError(f"{path}: input {entry.name} has shape {entry.shape}, above what faces or a machine have")
    if input_size not in (None, size):
        raise ConfigError(f"input size {input_size}: {path} takes {size}")
    metadata = _metadata(model)
    if metadata.get("format") == FORMAT:
        _check_own(metadata, path, colour_order)
        normalised = metadata["preprocessing"] == "outside"
    else:
        normalised = entry.type == "tensor(float)" and not _normalises(model, entry.name)
    return Feed(entry.name, dtypes[entry.type], normalised, channels_last, colour_order, size, batch)


def _check_own(metadata: dict[str, str], path: Path, colour_order: str) -> None:
    for key, value in PREPROCESSING.metadata().items():
        if metadata.get(key) != value:
            raise DataError(f"{path}: wants {key} {metadata.get(key)!r}, but pictures are fed with {value!r}")
    if metadata.get("preprocessing") not in ("inside", "outside"):
        raise DataError(f"{path}: its metadata give preprocessing as {metadata.get('preprocessing')!r}")
    if colour_order != "RGB":
        raise ConfigError(f"colour order {colour_order!r}: {path} says itself that it takes RGB")


def _normalises(model: Any, name: str) -> bool:
    """Return whether all that is done to the input first is what normalises pixels."""
    consumers = [node.op_type for node in model.graph.node if name in node.input]
    return bool(consumers) and all(kind in _NORMALISING for kind in consumers)


def _metadata(model: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def _output(session: Any, path: Path) -> str:
    names: list[str] = [entry.name for entry in session.get_outputs() if entry.type == "tensor(float)"]
    if OUTPUT in names:
        return OUTPUT
    if len(names) != 1:
        raise DataError(f"{path}: has {len(names)} float32 outputs ({', '.join(names)}), of which none is {OUTPUT}")
    return names[0]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
