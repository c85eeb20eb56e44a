# SPDX-License-Identifier: Apache-2.0
"""Several finished runs side by side: a table for the terminal and one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedface_flwr.errors import ConfigError
from fedface_flwr.files import write_text
from fedface_flwr.reporting.history import History, thinned
from fedface_flwr.reporting.html import megabytes
from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.page import page, paragraph, picture, section, table
from fedface_flwr.reporting.plots import INK, legend_above, line_style, new_figure, plain, style_axes, to_svg
from fedface_flwr.reporting.progress import number, percent
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import Summary, read_summary
from fedface_flwr.wording import numbered


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Return the table of a comparison for the terminal, one row a run.

    Figures per silo share a column, in the order that its head gives: a terminal is narrow.
    """
    silos, packs = _union(summaries, "loss_ema"), _union(summaries, "tests")
    grid = Table(title="Final smoothed loss, verification accuracy, time and traffic", box=SIMPLE_HEAD)
    grid.add_column("method", no_wrap=True)
    grid.add_column(escape("loss\n" + "/".join(silos)), justify="right", overflow="fold")
    for pack in packs:
        grid.add_column(escape(f"{pack}\naccuracy"), justify="right")
    grid.add_column("minutes", justify="right")
    grid.add_column(escape("MB sent\n" + "/".join(silos)), justify="right", overflow="fold")
    for label, summary in zip(run_labels(summaries), summaries, strict=True):
        grid.add_row(
            escape(label),
            "/".join(_losses(summary, silos)),
            *(percent(summary["tests"][pack]["accuracy"]) if pack in summary["tests"] else "–" for pack in packs),
            _minutes(summary),
            "/".join(_sent(summary, silos)),
        )
    return grid


def write_comparison(path: Path, run_dirs: Sequence[Path]) -> None:
    """Write one self-contained HTML page that compares finished runs.

    Parameters
    ----------
    path
        The page.
    run_dirs
        Folders of finished runs, in the order wanted.

    Raises
    ------
    ConfigError
        No run was named.
    DataError
        A run's summary or event log is missing or damaged.
    """
    if not run_dirs:
        raise ConfigError("a comparison needs at least one finished run; name their folders")
    folders = [RunFolder(run_dir) for run_dir in run_dirs]
    summaries = [read_summary(folder.summary) for folder in folders]
    histories = [History(read_metrics(folder.metrics)) for folder in folders]
    labels = run_labels(summaries)
    methods = ", ".join(dict.fromkeys(summary["method"] for summary in summaries))
    body = [
        "<h1>Comparison of runs</h1>",
        paragraph(f"{numbered(len(labels), 'run')}: {methods}.", "lead"),
        section("Results", _html_table(labels, summaries)),
        section("Curves", *_curves(labels, histories, _union(summaries, "loss_ema"))),
    ]
    write_text(path, page("Comparison of runs", body))


def run_labels(summaries: Sequence[Summary]) -> list[str]:
    """Return a label for each run: method, and steps per round, seed and fold half where these differ between runs."""
    several_steps = len({summary["steps_per_round"] for summary in summaries}) > 1
    several_seeds = len({summary["seed"] for summary in summaries}) > 1
    several_halves = len({summary["fold_half"] for summary in summaries}) > 1
    return [
        summary["method"]
        + (f" K={summary['steps_per_round']}" if several_steps else "")
        + (f" seed {summary['seed']}" if several_seeds else "")
        + (f", validated on the {summary['fold_half']} half" if several_halves else "")
        for summary in summaries
    ]


def _html_table(labels: Sequence[str], summaries: Sequence[Summary]) -> str:
    silos, packs = _union(summaries, "loss_ema"), _union(summaries, "tests")
    rows = [
        [
            label,
            *_losses(summary, silos),
            *_accuracies(summary, packs),
            _minutes(summary),
            *_sent(summary, silos),
        ]
        for label, summary in zip(labels, summaries, strict=True)
    ]
    groups = [
        ("", 1),
        ("Final smoothed loss", len(silos)),
        ("Verification accuracy, mean ± std", len(packs)),
        ("", 1),
        ("Sent by the silo (MB)", len(silos)),
    ]
    caption = "Where each silo has its own model, the accuracy is the mean over silos. 1 MB is 10^6 bytes."
    return table(["Run", *silos, *packs, "Minutes", *silos], rows, caption, [group for group in groups if group[1]])


def _curves(labels: Sequence[str], histories: Sequence[History], silos: Sequence[str]) -> list[str]:
    """Draw loss and accuracy of all runs, a panel a silo, over steps: runs may differ in steps per round."""
    loss = _panels(labels, histories, silos, "loss_ema", 1, "smoothed loss (nats)")
    accuracy = _panels(labels, histories, silos, "accuracy", 100, "training accuracy,\nno margin (%)")
    captions = {
        "loss": "Exponentially smoothed training loss of each silo.",
        "accuracy": "Accuracy of each silo's classifier on its own training faces, without margin.",
    }
    return [
        picture(
            to_svg(figure, name, f"Line plots, a panel a silo, a curve a run: {name} over steps."),
            captions[name],
        )
        for name, figure in (("loss", loss), ("accuracy", accuracy))
    ]


def _panels(
    labels: Sequence[str],
    histories: Sequence[History],
    silos: Sequence[str],
    kind: str,
    scale: float,
    y_label: str,
) -> Figure:
    columns = min(len(silos), 3)
    rows = -(-len(silos) // columns)
    figure = new_figure(height=2.8 * rows + 0.5, width=9.5)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for unused in panels[len(silos) :]:
        unused.remove()
    for panel, (axes, silo) in enumerate(zip(panels, silos, strict=False)):
        for place, (label, history) in enumerate(zip(labels, histories, strict=True)):
            steps = history.round_numbers() * history.start["steps_per_round"]
            curve = thinned(steps, scale * history.silo_series(silo, kind), limit=120)
            axes.plot(*curve, linewidth=1.5, label=plain(label), **line_style(place))
        lowest = panel + columns >= len(silos)
        style_axes(axes, "local steps" if lowest else "", y_label if panel % columns == 0 else "")
        axes.tick_params(labelbottom=lowest)
        axes.set_title(plain(silo), fontsize=10, color=INK)
    legend_above(figure, panels[0])
    return figure


def _union(summaries: Iterable[Summary], field: str) -> list[str]:
    """Return the keys of a field by silo or pack over all runs, in the order of their first appearance."""
    return list(dict.fromkeys(key for summary in summaries for key in summary[field]))  # type: ignore[literal-required]


def _losses(summary: Summary, silos: Sequence[str]) -> list[str]:
    return [number(summary["loss_ema"].get(silo), 2) for silo in silos]


def _accuracies(summary: Summary, packs: Sequence[str]) -> list[str]:
    tests = summary["tests"]
    return [
        f"{percent(tests[pack]['accuracy'])} ± {percent(tests[pack]['accuracy_std'])}" if pack in tests else "–"
        for pack in packs
    ]


def _minutes(summary: Summary) -> str:
    return f"{summary['seconds'] / 60:.1f}"


def _sent(summary: Summary, silos: Sequence[str]) -> list[str]:
    sent = summary["bytes_sent"]
    return [megabytes(sent[silo]) if silo in sent else "–" for silo in silos]
