# SPDX-License-Identifier: Apache-2.0
"""A network as an ONNX graph that needs nothing of this project."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedface_flwr.data.images import normalise
from fedface_flwr.errors import ConfigError
from fedface_flwr.evaluation.onnx_backbone import OUTPUT
from fedface_flwr.models.topology import Network

INPUT = "images"
OPSETS = range(18, 24)
"""Which the exporter writes without converting; 17 and below it must convert, and cannot always."""

_CHANNELS = 3


class _FromPixels(nn.Module):
    """A backbone with the preprocessing before it."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.backbone(normalise(images))
        return embeddings


def write_onnx(network: Network, path: Path, *, inside: bool, opset: int, metadata: Mapping[str, str]) -> None:
    """Write one self-contained file with an input ``images``, an output ``embedding`` and any number of pictures.

    Parameters
    ----------
    network : Network
        What is written.
    path : Path
        The file.
    inside : bool
        Take uint8 RGB pixels (n, 3, s, s), and normalise them in the graph; else take float32, normalised.
    opset : int
        Version of ONNX's operators, one of ``OPSETS``.
    metadata : mapping of str to str
        Becomes the file's ``metadata_props``.

    Raises
    ------
    ConfigError
        If the opset is none that can be written, or a package is missing.
    """
    if opset not in OPSETS:
        raise ConfigError(f"opset {opset}: must be {OPSETS.start} to {OPSETS.stop - 1}")
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise ConfigError(
            f"ONNX export needs the packages onnx, onnxruntime and onnxscript ({error}); install fedface-flwr[tools]"
        ) from error
    model = _graph(network, inside, opset)
    _forget_origin(model)
    model.producer_name, model.producer_version = "fedface-flwr", ""
    onnx.helper.set_model_props(model, dict(sorted(metadata.items())))
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _graph(network: Network, inside: bool, opset: int) -> Any:
    size = network.architecture.input_size
    # Two pictures: the exporter takes a batch of one for a constant.
    example = torch.zeros(2, _CHANNELS, size, size, dtype=torch.uint8 if inside else torch.float32)
    module = _FromPixels(network.module) if inside else network.module
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module.eval(),
            (example,),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            opset_version=opset,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _forget_origin(model: Any) -> None:
    """Take out what the exporter notes of each node: stack traces, with paths of this machine."""
    graph = model.graph
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says of its own progress and future from the terminal; its errors are exceptions."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
