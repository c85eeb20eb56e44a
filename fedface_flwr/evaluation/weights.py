# SPDX-License-Identifier: Apache-2.0
"""Named tensors out of a file that nobody vouches for, and the checkpoints of a run's folder."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedface_flwr.errors import ConfigError, DataError, StateError
from fedface_flwr.reporting.run_folder import RunFolder

# Of insightface's checkpoints and the common training loops.
_WRAPPERS = ("state_dict_backbone", "state_dict")
_HALVES = ("first", "second")
GLOBAL = "global"
"""Name of the one model that all parties share."""


@dataclass(frozen=True)
class StateFile:
    """What a file of tensors holds.

    Attributes
    ----------
    tensors : mapping of str to Tensor
        By name. They may lie in the mapped file; copy what is kept.
    metadata : mapping of str to str
        What the file says of them; empty where its format has no place for it.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_state_file(path: Path) -> StateFile:
    """Read a ``.safetensors`` file, or a state dict that ``torch.save`` wrote, without running any code of it.

    Memory is bounded by the file's size, whatever it declares.

    Raises
    ------
    DataError
        If the file is not there, damaged, or holds something else than named tensors.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return _read_torch(path) if start == b"PK\x03\x04" else _read_safetensors(path)


def _read_safetensors(path: Path) -> StateFile:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return StateFile(tensors, dict(file.metadata() or {}))
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path}: neither a readable safetensors file ({error}) nor a zip as torch.save writes it since torch 1.6; "
            "an older one must be loaded and saved again"
        ) from error


def _read_torch(path: Path) -> StateFile:
    try:
        _refuse_compression(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Mapped: a storage is then cut out of the file, and cannot be larger than it.
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except DataError:
        raise
    except Exception as error:  # torch does not say what it raises on damaged files
        reason = str(error).strip().split("\n")[0][:200]
        raise DataError(f"{path}: not a state dict that torch can load without running code ({reason})") from error
    for key in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path}: holds {type(content).__name__}, not a state dict")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise DataError(f"{path}: entry {name!r} is {type(tensor).__name__}, not a named tensor")
        # Of those that are spread over memory or share it, a small file can declare large ones.
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise DataError(f"{path}: tensor {name} is not a plain one ({tensor.layout}, {tensor.device})")
    declared = sum(tensor.numel() * tensor.element_size() for tensor in content.values())
    if declared > path.stat().st_size:
        raise DataError(f"{path}: its tensors declare {declared} bytes, more than the file has; save them unshared")
    return StateFile(content, {})


def _refuse_compression(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > path.stat().st_size:
        raise DataError(f"{path}: is a compressed archive, of {size} bytes; torch.save writes uncompressed ones")


def run_checkpoints(folder: Path) -> dict[str, Path]:
    """Return the checkpoints of a finished run's folder by the models' names.

    The names are ``global``, or the silos' where each has its own model; in a folder of both halves of the folds
    ``first/`` or ``second/`` stands before them.

    Raises
    ------
    StateError
        If it is no run's folder, or the run has not finished.
    """
    run = RunFolder(folder)
    found = {prefix + name: path for prefix, half in _halves(run).items() for name, path in _models(half).items()}
    if found:
        return found
    if not run.config.exists():
        raise StateError(f"{folder}: holds no {run.config.name}; it is not a run's folder")
    raise StateError(f"{folder}: the run has left no checkpoint, so it has not finished; go on with resume={folder}")


def _halves(run: RunFolder) -> dict[str, RunFolder]:
    return {"": run} | {f"{half}/": RunFolder(run.path / half) for half in _HALVES}


def _models(run: RunFolder) -> dict[str, Path]:
    files = [run.checkpoint] if run.checkpoint.exists() else []
    files += sorted(run.path.glob(run.checkpoint_of("*").name))
    return {_silo_of(path) or GLOBAL: path for path in files}


def _silo_of(path: Path) -> str | None:
    """Return the silo whose own model a run has left in this file, empty for the global one, None for no model."""
    run = RunFolder(path.parent)
    if path.name == run.checkpoint.name:
        return ""
    start, end = run.checkpoint_of("*").name.split("*")
    if path.name.startswith(start) and path.name.endswith(end):
        return path.name.removeprefix(start).removesuffix(end)
    return None


def run_of(path: Path) -> tuple[Path | None, str]:
    """Return the folder of the run that has left this checkpoint, if one has, and the silo whose own model it is."""
    silo = _silo_of(path)
    run = RunFolder(path.absolute().parent)
    return (None, "") if silo is None or not run.config.exists() else (run.path, silo)


def choose_checkpoint(folder: Path, model: str) -> tuple[str, Path]:
    """Return name and file of one of a run's models; ``model`` may be empty where there is only one.

    Raises
    ------
    StateError
        As :func:`run_checkpoints`.
    ConfigError
        If there is no such model, or several to choose from, listing them.
    """
    models = run_checkpoints(folder)
    if not model and len(models) == 1:
        return next(iter(models.items()))
    if model not in models:
        wrong = f"has no model {model!r}" if model else "has several models"
        raise ConfigError(f"{folder}: {wrong}; choose one of {', '.join(models)}")
    return model, models[model]
