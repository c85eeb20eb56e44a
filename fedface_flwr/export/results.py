# SPDX-License-Identifier: Apache-2.0
"""Figures for a model card: of a run's own test, and of evaluations written as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import FEATURES, Figure
from fedface_flwr.evaluation.verification import FAR_TARGETS
from fedface_flwr.protocols.steering import Packs
from fedface_flwr.reporting.evaluation import FORMAT
from fedface_flwr.reporting.summary import Summary, TestFigures, tar_and_doubt
from fedface_flwr.wording import numbered

_LARGEST = 64 << 20  # bytes; an evaluation's figures take some thousand


@dataclass(frozen=True)
class Measured:
    """Figures, and who measured them on what.

    Attributes
    ----------
    caption : str
        Who, and on what.
    figures : tuple of Figure
        Of the model.
    left_out : tuple of str
        Benchmarks whose figures are of feature files, each with these.
    packs : mapping of str to Packs
        The verification packs of each benchmark, as far as they are known.
    repeated : int
        How many figures are left out since others measured the same.
    """

    caption: str
    figures: tuple[Figure, ...]
    left_out: tuple[str, ...] = ()
    packs: Mapping[str, Packs] = field(default_factory=dict)
    repeated: int = 0


def without_repeated(parts: Iterable[Measured]) -> tuple[Measured, ...]:
    """Return the parts with each figure, value and note included, in the first of them that has it alone."""
    seen: set[str] = set()
    kept = []
    for part in parts:
        # As text, for nan is unlike itself.
        new = {repr(figure): figure for figure in part.figures if repr(figure) not in seen}
        seen.update(new)
        kept.append(replace(part, figures=tuple(new.values()), repeated=len(part.figures) - len(new)))
    return tuple(kept)


def read_results(path: Path, weights: Collection[str]) -> Measured:
    """Read what ``fedface-eval`` has written as JSON, but for figures of feature files, which are of no known model.

    Parameters
    ----------
    path : Path
        Its ``results.json``; a number of null is one that the data does not decide.
    weights : collection of str
        Digests of the model's weights, in each topology that it is exported in.

    Raises
    ------
    DataError
        If the file is no such JSON, naming the figure and the field.
    ConfigError
        If the figures are another model's, or of feature files alone.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path}: has {numbered(path.stat().st_size, 'byte')}, which are no evaluation's figures")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); give the results.json that fedface-eval wrote") from error
    try:
        kind, listed = content["format"], content["figures"]
        if isinstance(kind, str) and kind != FORMAT:
            raise DataError(f"{path}: its format is {kind!r}, not {FORMAT!r}; evaluate again")
        digest = content["model"]["weights"]
        told = [content["model"]["title"], content["suite"]["file"], content["date"]]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not an evaluation's results; give the results.json that fedface-eval wrote"
        ) from error
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in (kind, digest, *told)):
        raise DataError(f"{path}: its fields are of other types; give the results.json that fedface-eval wrote")
    figures = [_figure(entry, f"{path}: figure {at}") for at, entry in enumerate(listed)]
    own = tuple(figure for figure in figures if not figure.of_features)
    left_out = {f"{figure.benchmark} ({figure.conditions[FEATURES]})": None for figure in figures if figure.of_features}
    if left_out and not own:
        raise ConfigError(
            f"{path}: holds figures of feature files alone ({', '.join(left_out)}), which may be any model's; evaluate "
            "the one that is exported on pictures"
        )
    if digest not in weights:
        raise ConfigError(f"{path}: holds figures of another model ({told[0]}); evaluate the one that is exported")
    packs = _packs(content, own, path)
    return Measured(f"By fedface-eval: {told[0]} on {told[1]}, {told[2]}.", own, tuple(left_out), packs)


def _packs(content: Mapping[str, Any], figures: Collection[Figure], path: Path) -> Mapping[str, Packs]:
    """Return each benchmark's packs; where the results do not tell, one with the benchmark's own name."""
    if "packs" not in content:
        return {figure.benchmark: {f"{figure.benchmark}.bin": ""} for figure in figures}
    packs: Any = content["packs"]
    groups = list(packs.values()) if isinstance(packs, dict) else [None]
    if not all(isinstance(group, dict) and all(isinstance(text, str) for text in group.values()) for group in groups):
        raise DataError(f"{path}: packs is of another type; give the results.json that fedface-eval wrote")
    return dict(packs)


def _figure(entry: Any, where: str) -> Figure:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: is {type(entry).__name__}, not an object")
    interval, spread = entry.get("interval"), entry.get("spread")
    conditions: Any = entry.get("conditions")
    pair = isinstance(interval, list) and len(interval) == 2
    right = {
        **{key: isinstance(entry.get(key), str) for key in ("benchmark", "protocol", "metric", "note")},
        "conditions": isinstance(conditions, dict) and all(isinstance(text, str) for text in conditions.values()),
        "value": "value" in entry and _is_number(entry["value"]),
        "spread": _is_number(spread),
        "interval": interval is None or (pair and all(_is_number(bound) for bound in interval)),
    }
    if wrong := [key for key, is_right in right.items() if not is_right]:
        raise DataError(f"{where}: missing or of another type: {', '.join(wrong)}")
    return Figure(
        entry["benchmark"],
        entry["protocol"],
        entry["metric"],
        _number(entry["value"]),
        conditions,
        interval=None if interval is None else (_number(interval[0]), _number(interval[1])),
        spread=None if spread is None else _number(spread),
        note=entry["note"],
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        # JSON's whole numbers may be larger than any float.
        return not isinstance(value, bool) and abs(value) < 1 << 63
    return value is None or isinstance(value, float)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def summary_figures(summary: Summary, model: str) -> Measured:
    """Return the figures of a run's final test.

    Parameters
    ----------
    summary : Summary
        The run's.
    model : str
        A silo's name where each has its own model, else empty.
    """
    tests = summary.get("tests_by_silo", {}).get(model, {}) if model else summary["tests"]
    half = summary["fold_half"]
    found = [figure for pack, figures in tests.items() for figure in _pack_figures(pack, figures, half)]
    return Measured("By the run's own final test.", tuple(found))


def _pack_figures(pack: str, figures: TestFigures, half: str) -> Iterator[Figure]:
    seen = {"first": "6 to 10", "second": "1 to 5"}.get(half, "of both halves in turn")
    protocol = f"verification, folds {seen} of 10"
    shared = {"flip": "on", "pairs": str(figures["pairs"])}
    rule = {"threshold": "best on the nine other folds"}
    yield Figure(pack, protocol, "accuracy", figures["accuracy"], {**shared, **rule}, spread=figures["accuracy_std"])
    for far in FAR_TARGETS:
        rate, note = tar_and_doubt(figures, far)
        if rate is not None or note:
            yield Figure(
                pack, protocol, f"TAR at FAR {far:.0e}", _number(rate), {**shared, "folds": "pooled"}, note=note
            )
    if figures["auc"] is not None:
        yield Figure(pack, protocol, "AUC", figures["auc"], {**shared, "folds": "pooled"})
