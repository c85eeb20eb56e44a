# SPDX-License-Identifier: Apache-2.0
"""An evaluation's results: the table on the terminal, and the files of its folder."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as RenderGroup
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import NOTE_SEPARATOR, Curve, Figure
from fedface_flwr.files import write_text
from fedface_flwr.reporting.progress import number, percent

FORMAT = "fedface-evaluation-2"
RESULTS = "results.json"

_NO_SHARES = ("threshold", "ratio")


@dataclass(frozen=True)
class Header:
    """What an evaluation's figures are of.

    Attributes
    ----------
    model, model_digest : str
        The model's title and the digest of all that decides its embeddings; both empty where there was none.
    suite, suite_digest : str
        Name of the suite's file, and digest of its content.
    only : tuple of str
        The benchmarks chosen from the suite; empty for all.
    versions : mapping of str to str
        Of this package and of what computes under it.
    date : str
        When it was begun, ISO 8601 in UTC.
    model_weights : str
        Digest of the model's weights, in whichever file and precision; empty if the file does not say.
    sources : mapping of str to str
        What each benchmark's figures are of: ``model``, or the names of its feature files.
    packs : mapping of str to mapping of str to str
        By benchmark that has any, SHA-256 of its verification packs by the names of their files.
    """

    model: str
    model_digest: str
    suite: str
    suite_digest: str
    only: tuple[str, ...]
    versions: Mapping[str, str]
    date: str
    model_weights: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    packs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Figures of one benchmark and protocol, and the conditions and parts of notes that all of them share."""

    benchmark: str
    protocol: str
    shared: dict[str, str]
    figures: tuple[Figure, ...]

    @property
    def remark(self) -> str:
        """What the notes of all figures have in common."""
        first, *others = (figure.note.split(NOTE_SEPARATOR) for figure in self.figures)
        return NOTE_SEPARATOR.join(part for part in first if others and all(part in other for other in others))

    def own_note(self, figure: Figure) -> str:
        """Return a figure's note without the remark."""
        said = self.remark.split(NOTE_SEPARATOR)
        return NOTE_SEPARATOR.join(part for part in figure.note.split(NOTE_SEPARATOR) if part not in said)

    def own_conditions(self, figure: Figure) -> str:
        """Return the conditions of a figure that it does not share with the whole group."""
        return shown_conditions({k: v for k, v in figure.conditions.items() if k not in self.shared})

    def own_name(self, figure: Figure) -> str:
        """Return a figure's metric with its own conditions."""
        own = self.own_conditions(figure)
        return f"{figure.metric} ({own})" if own else figure.metric


def grouped(figures: Sequence[Figure]) -> list[Group]:
    """Group figures by benchmark and protocol, both in the order of their first appearance."""
    by_key: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        by_key.setdefault((figure.benchmark, figure.protocol), []).append(figure)
    return [
        Group(benchmark, protocol, _shared(members), tuple(members))
        for (benchmark, protocol), members in by_key.items()
    ]


def _shared(figures: Sequence[Figure]) -> dict[str, str]:
    first = figures[0].conditions
    return {
        name: value for name, value in first.items() if all(other.conditions.get(name) == value for other in figures)
    }


def shown_conditions(conditions: Mapping[str, str]) -> str:
    """Return conditions as a person reads them."""
    return ", ".join(f"{name} {value}" for name, value in conditions.items())


def shown_value(figure: Figure) -> str:
    """Return a figure's value, and standard deviation if it has one: percentages, but for thresholds and ratios."""
    if math.isnan(figure.value):
        return "–"
    spread = "" if figure.spread is None else f" ± {_one(figure, figure.spread)}"
    return f"{_one(figure, figure.value)}{spread}"


def shown_interval(figure: Figure) -> str:
    """Return the bounds of a figure's confidence interval, or nothing."""
    return "" if figure.interval is None else " to ".join(_one(figure, bound) for bound in figure.interval)


def _one(figure: Figure, value: float) -> str:
    plain = any(word in figure.metric for word in _NO_SHARES)
    return number(value, 4) if plain else percent(value, 3)


def results_table(figures: Sequence[Figure], *, expand: bool = True) -> RenderableType:
    """Return what the terminal shows: a table for each benchmark and protocol, what all of it shares on top.

    Figures that are not decided, of the same conditions, share a line. Tables that ``expand`` fill the console's width,
    else they are as wide as their content.
    """
    parts: list[RenderableType] = []
    for group in grouped(figures):
        title = Text(f"{group.benchmark}: {group.protocol}", style="bold")
        grid = Table(box=SIMPLE_HEAD, expand=expand)
        grid.add_column("figure", ratio=5, overflow="fold")
        grid.add_column("value ± std", ratio=3, justify="right", overflow="fold")
        grid.add_column("95% interval", ratio=3, justify="right", overflow="fold")
        grid.add_column("note", ratio=5, overflow="fold")
        for row in _rows(group):
            grid.add_row(*(escape(cell) for cell in row))
        shared = filter(None, (shown_conditions(group.shared), group.remark))
        parts += [title, *(Text(line) for line in shared), grid]
    return RenderGroup(*parts)


def _rows(group: Group) -> Iterator[tuple[str, str, str, str]]:
    undecided: dict[str, list[Figure]] = {}
    for figure in group.figures:
        if math.isnan(figure.value):
            undecided.setdefault(group.own_conditions(figure), []).append(figure)
        else:
            yield group.own_name(figure), shown_value(figure), shown_interval(figure), group.own_note(figure)
    for conditions, alike in undecided.items():
        names = ", ".join(figure.metric for figure in alike)
        yield f"{names} ({conditions})" if conditions else names, "–", "", group.own_note(alike[0])


def check_folder(folder: Path, header: Header) -> None:
    """Refuse a folder that has results of another model, suite or choice of benchmarks.

    Raises
    ------
    ConfigError
        If it has.
    DataError
        If its results cannot be read.
    """
    path = folder / RESULTS
    if not path.exists():
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        earlier = (held["model"]["digest"], held["suite"]["digest"], tuple(held["suite"]["only"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: not an evaluation's results; use another folder, or --force") from error
    if earlier != (header.model_digest, header.suite_digest, header.only):
        raise ConfigError(
            f"{folder}: holds results of another model, suite or choice of benchmarks "
            f"({held['model'].get('title')}, {held['suite'].get('file')}); use another folder, or --force"
        )


def write_curves(path: Path, curves: Sequence[Curve]) -> None:
    """Write all curves' points as JSON."""
    content = [
        {"benchmark": curve.benchmark, "kind": curve.kind, "label": curve.label}
        | {"x": [_finite(x) for x in curve.x.tolist()], "y": [_finite(y) for y in curve.y.tolist()]}
        for curve in curves
    ]
    write_text(path, json.dumps({"format": FORMAT, "curves": content}, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, figures: Sequence[Figure]) -> None:
    """Write a table of all figures, a row each; conditions as ``name=value`` with semicolons between."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["benchmark", "protocol", "metric", "value", "low", "high", "std", "conditions", "note"])
    for figure in figures:
        low, high = figure.interval or (None, None)
        numbers = ["" if _finite(value) is None else repr(value) for value in (figure.value, low, high, figure.spread)]
        conditions = "; ".join(f"{name}={value}" for name, value in figure.conditions.items())
        writer.writerow([figure.benchmark, figure.protocol, figure.metric, *numbers, conditions, figure.note])
    write_text(path, file.getvalue())


def write_results(
    path: Path,
    header: Header,
    figures: Sequence[Figure],
    failures: Mapping[str, str],
    seconds: Mapping[str, float],
) -> None:
    """Write all figures as JSON, with what they are of; a value that is not decided is null."""
    content = {
        "format": FORMAT,
        "model": {"title": header.model, "digest": header.model_digest, "weights": header.model_weights},
        "suite": {"file": header.suite, "digest": header.suite_digest, "only": list(header.only)},
        "versions": dict(header.versions),
        "sources": dict(header.sources),
        "packs": {benchmark: dict(packs) for benchmark, packs in header.packs.items()},
        "date": header.date,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "failures": dict(failures),
        "figures": list(_as_json(figures)),
    }
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _as_json(figures: Sequence[Figure]) -> Iterator[dict[str, Any]]:
    for figure in figures:
        fields = asdict(figure)
        bounds = None if figure.interval is None else [_finite(bound) for bound in figure.interval]
        yield (
            {"name": figure.full_name}
            | fields
            | {
                "value": _finite(figure.value),
                "interval": bounds,
                "spread": _finite(figure.spread),
            }
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
