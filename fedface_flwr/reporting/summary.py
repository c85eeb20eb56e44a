# SPDX-License-Identifier: Apache-2.0
"""The run in figures: the fields of ``summary.json``, written and read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation import roc
from fedface_flwr.files import write_text

TestFigures = TypedDict(
    "TestFigures",
    {
        "accuracy": float,
        "accuracy_std": float,
        "tar_at_far_1e-3": float | None,
        "tar_at_far_1e-4": float | None,
        "auc": float | None,
        "pairs": int,
    },
)
"""A model on a verification pack: accuracy (mean and standard deviation over folds), TAR and AUC in 0..1."""


class Account(TypedDict):
    """Where the wall time of a run went, in seconds; ``other`` is what no phase before it explains."""

    flower_startup: float
    training: float
    validation: float
    testing: float
    other: float
    total: float


class _Summary(TypedDict):
    """The fields of every run's summary."""

    method: str
    seed: int
    rounds: int
    steps_per_round: int
    seconds: float
    loss_ema: dict[str, float | None]
    bytes_sent: dict[str, int]
    tests: dict[str, TestFigures]
    account: Account
    weights: dict[str, float]
    fold_half: str


class Summary(_Summary, total=False):
    """What is known of a finished run.

    Attributes
    ----------
    loss_ema
        Final exponentially smoothed training loss of each silo; None where it is not finite.
    bytes_sent
        Bytes that each silo sent to the server over the whole run.
    tests
        Figures of the global model by pack; where each silo has its own model, the mean over silos.
    weights
        Final averaging weight of each silo; empty where nothing is averaged.
    fold_half
        Which half of the folds Federated Validation may see, first, second or both in turn; the test takes the other.
    tests_by_silo
        Figures by silo and pack, only where each silo has its own model.
    rejected
        How many of a silo's replies could not be taken, only where there were any.
    """

    tests_by_silo: dict[str, dict[str, TestFigures]]
    rejected: dict[str, int]


_TEXTS = ("method", "fold_half")
_NUMBERS = ("seed", "rounds", "steps_per_round", "seconds")
_NUMBERS_BY_SILO = ("loss_ema", "bytes_sent", "weights", "rejected")
_MAY_BE_UNKNOWN = ("tar_at_far_1e-3", "tar_at_far_1e-4", "auc")


def tar_and_doubt(figures: Mapping[str, Any], far: float) -> tuple[float | None, str]:
    """Return TAR at a FAR of 1e-3 or 1e-4, None if it is not decided, and what to say of it.

    A pack's figures tell how many pairs it has, not how many of them are of two persons: at most all.
    """
    pairs = figures["pairs"]
    # JSON as Python reads it may hold an infinity.
    note, decided = roc.doubt(far, int(pairs) if math.isfinite(pairs) else 0, at_most=True)
    # 1e-3, where Python writes 0.001.
    rate: float | None = figures[f"tar_at_far_1e{round(math.log10(far))}"]
    return (rate, note if rate is not None else "") if decided else (None, note)


def write_summary(path: Path, summary: Summary) -> None:
    """Write `summary` to `path`, whole or not at all.

    Raises
    ------
    DataError
        A field is missing or unknown, or a number is NaN or infinite (None says "not known").
    """
    _check(summary, str(path))
    try:
        text = json.dumps(summary, indent=2, allow_nan=False)
    except ValueError as error:
        raise DataError(f"{path}: a figure is NaN or infinite; give None instead: {summary}") from error
    write_text(path, text + "\n")


def read_summary(path: Path) -> Summary:
    """Read and check ``summary.json``.

    Raises
    ------
    DataError
        No such file, not JSON, or a field is missing or unknown.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such summary; it is written when a run finishes") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); run again or restore the file") from error
    _check(content, str(path))
    return cast(Summary, content)


def _check(content: Any, where: str) -> None:
    _check_fields(content, Summary.__required_keys__, where, Summary.__optional_keys__)
    if wrong := [key for key in _TEXTS if not isinstance(content[key], str)]:
        raise DataError(f"{where}: {wrong[0]} is no text")
    _check_numbers({key: content[key] for key in _NUMBERS}, where)
    for key in _NUMBERS_BY_SILO:
        _check_numbers(content.get(key, {}), f"{where}: {key}", optional=True)
    _check_fields(content["account"], Account.__required_keys__, f"{where}: account")
    _check_numbers(content["account"], f"{where}: account")
    groups = {"tests": content["tests"]}
    by_silo = _object(content.get("tests_by_silo", {}), f"{where}: tests_by_silo")
    groups |= {f"tests_by_silo.{silo}": packs for silo, packs in by_silo.items()}
    for group, packs in groups.items():
        for pack, figures in _object(packs, f"{where}: {group}").items():
            _check_fields(figures, TestFigures.__required_keys__, f"{where}: {group}.{pack}")
            known = {key: value for key, value in figures.items() if value is not None or key not in _MAY_BE_UNKNOWN}
            _check_numbers(known, f"{where}: {group}.{pack}")


def _check_numbers(content: Any, where: str, *, optional: bool = False) -> None:
    for key, value in _object(content, where).items():
        # JSON's whole numbers may be larger than any float.
        is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
        is_number = is_whole or isinstance(value, float)
        if not is_number and not (optional and value is None):
            raise DataError(f"{where}: {key} is {type(value).__name__}, not a number")


def _object(content: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise DataError(f"{where}: expected an object of fields, found {type(content).__name__}")
    return content


def _check_fields(content: Any, required: frozenset[str], where: str, optional: frozenset[str] = frozenset()) -> None:
    missing, unknown = required - _object(content, where).keys(), content.keys() - required - optional
    if missing or unknown:
        raise DataError(f"{where}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
