# SPDX-License-Identifier: Apache-2.0
"""A backbone out of a run's folder, a checkpoint, an ONNX file or a public state dict, ready to embed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedface_flwr.data.sets import Images
from fedface_flwr.errors import ConfigError
from fedface_flwr.evaluation.embedding import embed
from fedface_flwr.evaluation.pictures import Embeddings
from fedface_flwr.evaluation.stored import Stored, kind_of, open_weights
from fedface_flwr.training.backbone import PRECISIONS, resolve_device

if TYPE_CHECKING:
    from fedface_flwr.evaluation.onnx_backbone import OnnxBackbone


class TorchBackbone:
    """A network on its device; satisfies :class:`~fedface_flwr.evaluation.pictures.Backbone`.

    Its ``weights`` are their digest, and ``run`` is the folder of the run that left them, or None.

    Parameters
    ----------
    stored : Stored
        The network, which moves to the device.
    device : torch.device
        Where to embed.
    precision : str
        A key of ``PRECISIONS``; below float32 by autocast. In float32 no TensorFloat-32 is used.
    batch_size : int
        Images in one forward pass.
    """

    def __init__(self, stored: Stored, *, device: torch.device, precision: str, batch_size: int) -> None:
        self.title = f"{stored.title} ({precision})"
        self.description = f"{stored.description}, {precision} on {device.type}"
        self.digest = embedding_digest(stored, precision)
        self.weights = stored.digest
        self.run = stored.run
        self.input_size = stored.network.architecture.input_size
        self.dim = stored.network.architecture.embedding
        self._module = stored.network.module.to(device).to(memory_format=torch.channels_last)
        self._device, self._precision, self._batch_size = device, PRECISIONS[precision], batch_size

    def embed(self, images: Images) -> Embeddings:
        """Return embeddings (n, dim), not normalised, of uint8 RGB images (n, 3, input_size, input_size)."""
        check_images(images, self.input_size)
        if not len(images):
            return torch.empty(0, self.dim).numpy()
        with _exact_convolutions():
            return embed(
                self._module,
                images,
                batch_size=self._batch_size,
                flip=False,
                device=self._device,
                precision=self._precision,
            )


@contextmanager
def _exact_convolutions() -> Iterator[None]:
    """Keep cuDNN from rounding the factors of float32 convolutions to 10 bits, as it does by default."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def embedding_digest(stored: Stored, precision: str) -> str:
    """Return the digest of all that decides the embeddings of a network in torch."""
    return hashlib.sha256(f"{stored.digest} torch {precision}".encode()).hexdigest()


def check_images(images: Images, size: int) -> None:
    """Refuse, as a programmer's error, what is not uint8 (n, 3, size, size)."""
    if images.dtype != "uint8" or images.shape[1:] != (3, size, size):
        raise ValueError(f"images are {images.dtype}{list(images.shape)}, not uint8[n, 3, {size}, {size}]")


def open_backbone(
    path: Path,
    *,
    device: str = "auto",
    precision: str = "float32",
    batch_size: int = 64,
    kind: str = "auto",
    model: str = "",
    input_size: int | None = None,
    colour_order: str = "RGB",
) -> TorchBackbone | OnnxBackbone:
    """Open weights to embed with.

    Parameters
    ----------
    path : Path
        A run's folder; a ``.safetensors`` checkpoint; an ``.onnx`` file; a state dict of insightface's iresnet or
        TFace's IR, ``.pth``, ``.pt`` or ``.safetensors``.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
    precision : {"float32", "bfloat16", "float16"}
        In which the network computes; an ONNX file has its own, for which float32 must stand.
    batch_size : int
        Images in one forward pass.
    kind : str
        One of ``stored.KINDS``; ``auto`` tells by path, ending and tensors' names.
    model : str
        Which of a run's models, where there are several.
    input_size : int, optional
        Side of the input where the file does not fix it.
    colour_order : {"RGB", "BGR"}
        In which public weights or a foreign ONNX file were trained; the backbone takes RGB in any case.

    Returns
    -------
    TorchBackbone or OnnxBackbone
        Its title says what was assumed; it also has a ``description``.

    Raises
    ------
    ConfigError
        If an option cannot work.
    DataError, StateError
        If the file cannot be used.
    """
    kind = kind_of(path, kind)
    _check_options(kind, precision, batch_size, model)
    if kind == "onnx":
        # Only here, for it needs packages that nothing else does.
        from fedface_flwr.evaluation.onnx_backbone import OnnxBackbone

        return OnnxBackbone.open(
            path,
            device=None if device == "auto" else _device(device),
            batch_size=batch_size,
            input_size=input_size,
            colour_order=colour_order,
        )
    stored = open_weights(path, kind=kind, model=model, input_size=input_size, colour_order=colour_order)
    return TorchBackbone(stored, device=_device(device), precision=precision, batch_size=batch_size)


def _check_options(kind: str, precision: str, batch_size: int, model: str) -> None:
    if precision not in PRECISIONS:
        raise ConfigError(f"precision {precision!r}: must be one of {', '.join(PRECISIONS)}")
    if kind == "onnx" and precision != "float32":
        raise ConfigError(f"precision {precision!r}: an ONNX file computes in its own; leave the option out")
    if batch_size < 1:
        raise ConfigError(f"batch size {batch_size}: must be at least 1")
    if kind == "onnx" and model:
        raise ConfigError(f"model {model!r}: only a run's folder holds several models")


def _device(name: str) -> torch.device:
    try:
        return resolve_device(name)
    except ConfigError as error:
        # Its text names a key of a run's configuration, where here it is an option.
        raise ConfigError(f"device {name!r}: {str(error).partition(': ')[2]}") from error
