# SPDX-License-Identifier: Apache-2.0
"""Names of an IR backbone's tensors: ours, insightface's and TFace's.

Sources: ``backbones/iresnet.py`` of insightface's arcface_torch, and TFace's ``torchkit/backbone/model_irse.py``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from enum import StrEnum
from itertools import chain

from fedface_flwr.errors import DataError
from fedface_flwr.models.ir import PUBLIC_UNITS_PER_STAGE, UNITS_PER_STAGE

PARALLEL = "module."
"""What DistributedDataParallel puts before each name."""

_UNITS = UNITS_PER_STAGE | PUBLIC_UNITS_PER_STAGE
_DEPTH_OF_UNITS = {sum(units): depth for depth, units in _UNITS.items()}
_STEM, _OUTPUT = (0, 1, 2), (0, 3, 4)  # the modules that have tensors
_SHOWN = 4


class Dialect(StrEnum):
    """Whose names a state dict has."""

    FEDFACE = "fedface"
    INSIGHTFACE = "insightface"
    TFACE = "tface"


_UNIT = {
    Dialect.FEDFACE: re.compile(r"(stages\.\d+\.\d+)\."),
    Dialect.INSIGHTFACE: re.compile(r"(layer\d+\.\d+)\."),
    Dialect.TFACE: re.compile(r"(body\.\d+)\."),
}


def dialect_of(names: Collection[str], where: str) -> Dialect:
    """Return whose names these are, by the units' names.

    Raises
    ------
    DataError
        If they are nobody's.
    """
    for dialect, pattern in _UNIT.items():
        if any(pattern.match(name.removeprefix(PARALLEL)) for name in names):
            return dialect
    raise DataError(
        f"{where}: its tensors ({listing(names)}) are named neither as insightface's iresnet (layer1.0.bn1.weight) "
        "nor as TFace's IR (body.0.res_layer.0.weight)"
    )


def depth_of(names: Collection[str], dialect: Dialect, where: str) -> int:
    """Return the depth by the number of units.

    Raises
    ------
    DataError
        If no backbone has so many.
    """
    found = {match[1] for name in names if (match := _UNIT[dialect].match(name))}
    if len(found) not in _DEPTH_OF_UNITS:
        known = ", ".join(f"{units} (IR-{depth})" for units, depth in sorted(_DEPTH_OF_UNITS.items()))
        raise DataError(f"{where}: has {len(found)} units named as {dialect}'s; known are {known}")
    return _DEPTH_OF_UNITS[len(found)]


def modules_of(dialect: Dialect, depth: int) -> dict[str, str]:
    """Return our name of every module that has tensors, by the dialect's name, in the dialect's order."""
    units = [(stage, unit) for stage, count in enumerate(_UNITS[depth]) for unit in range(count)]
    stem, output = [f"stem.{i}" for i in _STEM], [f"output.{i}" for i in _OUTPUT]
    match dialect:
        case Dialect.FEDFACE:
            their_stem, their_output = stem, output
        case Dialect.INSIGHTFACE:
            their_stem, their_output = ["conv1", "bn1", "prelu"], ["bn2", "fc", "features"]
        case Dialect.TFACE:
            their_stem, their_output = [f"input_layer.{i}" for i in _STEM], [f"output_layer.{i}" for i in _OUTPUT]
    return {
        **dict(zip(their_stem, stem, strict=True)),
        **dict(chain.from_iterable(_unit(dialect, at, *place) for at, place in enumerate(units))),
        **dict(zip(their_output, output, strict=True)),
    }


def _unit(dialect: Dialect, at: int, stage: int, unit: int) -> Iterator[tuple[str, str]]:
    """Yield the modules of unit ``at`` of all, which is number ``unit`` of its stage."""
    prefix = f"stages.{stage}.{unit}"
    residual, shortcut = [f"{prefix}.residual.{i}" for i in range(6)], [f"{prefix}.shortcut.{i}" for i in range(2)]
    match dialect:
        case Dialect.FEDFACE:
            yield from ((name, name) for name in residual + shortcut)
        case Dialect.INSIGHTFACE:
            parts = ["bn1", "conv1", "bn2", "prelu", "conv2", "bn3", "downsample.0", "downsample.1"]
            yield from (
                (f"layer{stage + 1}.{unit}.{p}", name) for p, name in zip(parts, residual + shortcut, strict=True)
            )
        case Dialect.TFACE:
            parts = ["shortcut_layer.0", "shortcut_layer.1", *(f"res_layer.{i}" for i in range(6))]
            yield from ((f"body.{at}.{p}", name) for p, name in zip(parts, shortcut + residual, strict=True))


def listing(names: Collection[str]) -> str:
    """Return the first few names, and how many there are besides."""
    shown = list(names)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
