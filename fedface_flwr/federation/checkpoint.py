# SPDX-License-Identifier: Apache-2.0
"""The one place that knows what a backbone's file holds: named tensors as safetensors, and how to feed them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from fedface_flwr.errors import StateError
from fedface_flwr.federation.layout import Counters, Entry, Kind, Layout, ModelState, Vector
from fedface_flwr.federation.run_state import UNREADABLE
from fedface_flwr.federation.tensor_file import write_tensors
from fedface_flwr.files import replacing

FORMAT = "fedface-backbone-1"


def save_backbone(path: Path, layout: Layout, model: ModelState, metadata: Mapping[str, str]) -> None:
    """Write a backbone, whole or not at all.

    Parameters
    ----------
    path : Path
        Ends in ``.safetensors``.
    layout : Layout
        Names and shapes under which the tensors are stored; these are the module's own state-dict names.
    model : ModelState
        The weights.
    metadata : mapping of str to str
        What a reader must know to use them: architecture, input size, colour order, preprocessing, method.

    Raises
    ------
    StateError
        If the disk does not take it; what was there stays.
    """
    try:
        with replacing(path) as temporary:
            write_tensors(temporary, model.tensors(layout), {"format": FORMAT, **metadata})
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path}: cannot be written ({error}); free some space") from error


def load_backbone(path: Path, layout: Layout) -> tuple[ModelState, dict[str, str]]:
    """Read a backbone of the given layout.

    Returns
    -------
    ModelState
        The weights.
    dict of str to str
        The file's metadata.

    Raises
    ------
    StateError
        If the file is not there, damaged, of another format, or of another layout, naming the tensor that differs.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except UNREADABLE as error:
        raise StateError(f"{path}: not a readable safetensors file ({error})") from error
    if metadata.get("format") != FORMAT:
        raise StateError(f"{path}: its format is {metadata.get('format')!r}, not {FORMAT!r}")
    extra = sorted(set(tensors) - {entry.name for entry in layout.entries})
    if extra:
        raise StateError(f"{path}: holds tensor {extra[0]}, which the configured model does not have")
    values: Vector = np.empty(layout.num_values, dtype=np.float32)
    counters: Counters = np.empty(layout.num_counters, dtype=np.int64)
    for entry, place in layout.items():
        home = counters if entry.kind is Kind.COUNTER else values
        home[place] = _checked(path, entry, tensors.get(entry.name), home.dtype)
    return ModelState(values, counters), metadata


def _checked(path: Path, entry: Entry, tensor: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    if tensor is None:
        raise StateError(f"{path}: lacks tensor {entry.name} of the configured model")
    if tensor.shape != entry.shape or tensor.dtype != dtype:
        raise StateError(
            f"{path}: tensor {entry.name} is {tensor.dtype}{list(tensor.shape)}, "
            f"the configured model has {dtype}{list(entry.shape)}"
        )
    return tensor.reshape(-1)
