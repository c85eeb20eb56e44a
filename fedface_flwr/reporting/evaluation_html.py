# SPDX-License-Identifier: Apache-2.0
"""An evaluation's folder, with its HTML page, written from what was found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fedface_flwr.evaluation.figures import Curve, Figure
from fedface_flwr.files import write_text
from fedface_flwr.reporting.evaluation import (
    RESULTS,
    Group,
    Header,
    grouped,
    shown_interval,
    shown_value,
    write_csv,
    write_curves,
    write_results,
)
from fedface_flwr.reporting.evaluation_plots import CAPTIONS, evaluation_figures
from fedface_flwr.reporting.page import page, paragraph, picture, section, table
from fedface_flwr.reporting.plots import save_png, to_svg

REPORT = "report.html"


def write_evaluation(
    folder: Path,
    header: Header,
    figures: Sequence[Figure],
    curves: Sequence[Curve],
    failures: Mapping[str, str],
    seconds: Mapping[str, float],
) -> Path:
    """Write an evaluation's files, each whole or not at all; ``results.json`` comes last and is gone until then.

    Parameters
    ----------
    folder : Path
        Made when missing.
    header : Header
        What the figures are of.
    figures, curves
        Of all benchmarks.
    failures : mapping of str to str
        Benchmarks that could not be run, and why.
    seconds : mapping of str to float
        How long each benchmark took.

    Returns
    -------
    Path
        The HTML page.
    """
    (folder / RESULTS).unlink(missing_ok=True)
    write_csv(folder / "results.csv", figures)
    write_curves(folder / "curves.json", curves)
    plots = evaluation_figures(curves)
    for stale in CAPTIONS.keys() - plots.keys():
        (folder / "plots" / f"{stale}.png").unlink(missing_ok=True)
    pictures = []
    for name, plot in plots.items():
        save_png(plot, folder / "plots" / f"{name}.png")
        pictures.append(picture(to_svg(plot, name, f"Line plots of {name.upper()} curves."), CAPTIONS[name]))
    body = [
        *_head(header),
        *_failures(failures),
        *(_group(group) for group in grouped(figures)),
        *([section("Curves", *pictures)] if pictures else []),
        _account(header, seconds),
    ]
    report = folder / REPORT
    write_text(report, page(f"Evaluation of {header.model or 'features'}", body))
    write_results(folder / RESULTS, header, figures, failures, seconds)
    return report


def _head(header: Header) -> list[str]:
    model = header.model or "feature files"
    foreign = [f"{name} ({files})" for name, files in header.sources.items() if header.model and files != "model"]
    told = f"Figures and curves of feature files, and not of this model: {', '.join(foreign)}."
    chosen = f", of it {', '.join(header.only)}" if header.only else ""
    return [
        f"<h1>Evaluation of {escape(model)}</h1>",
        paragraph(f"On the suite {header.suite}{chosen}; {header.date}.", "lead"),
        paragraph(f"Digest of the model {header.model_digest or 'none'}, of the suite {header.suite_digest}.", "facts"),
        *([paragraph(told, "facts")] if foreign else []),
    ]


def _failures(failures: Mapping[str, str]) -> list[str]:
    if not failures:
        return []
    items = "".join(f"<li>{escape(f'{name}: {reason}')}</li>" for name, reason in failures.items())
    return [section("Could not be run", f"<ul>{items}</ul>")]


def _group(group: Group) -> str:
    rows = [
        [group.own_name(figure), shown_value(figure), shown_interval(figure), group.own_note(figure)]
        for figure in group.figures
    ]
    shared = "; ".join(f"{name}: {value}" for name, value in group.shared.items())
    head = ["Figure", "Value ± std over folds", "95% interval", "Note"]
    remark = [paragraph(f"{group.remark}.", "note")] if group.remark else []
    return section(f"{group.benchmark}: {group.protocol}", *remark, table(head, rows, shared))


def _account(header: Header, seconds: Mapping[str, float]) -> str:
    rows = [[name, f"{value:.1f}"] for name, value in seconds.items()]
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    return section("How it was computed", paragraph(f"{versions}."), table(["Benchmark", "Seconds"], rows))
