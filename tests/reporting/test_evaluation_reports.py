# SPDX-License-Identifier: Apache-2.0
"""An evaluation's table, files, plots and page."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from rich.console import Console

from fedface_flwr.evaluation.figures import Curve, Figure
from fedface_flwr.reporting.evaluation import Header, grouped, results_table, shown_interval, shown_value
from fedface_flwr.reporting.evaluation_html import write_evaluation
from fedface_flwr.reporting.evaluation_plots import evaluation_figures, probit

HEADER = Header("IR-18 <w&8>", "m1", "suite.yaml", "s1", ("lfw",), {"torch": "2"}, "2030-01-01T00:00:00+00:00")
FIGURES = (
    Figure("lfw", "mean", "accuracy", 0.98765, {"flip": "added", "rule": "grid"}, (0.98, 0.99), 0.0012),
    Figure("lfw", "mean", "threshold", 1.23456, {"flip": "added", "rule": "grid"}, None, 0.01),
    Figure("lfw", "mean", "accuracy", 0.5, {"flip": "added", "rule": "exact"}),
    Figure("lfw", "mean", "TAR at FAR 1e-05", math.nan, {"flip": "added"}, note="not decided: few [pairs]"),
    Figure("lfw", "mean", "TAR at FAR 1e-06", math.nan, {"flip": "added"}, note="not decided: fewer"),
    Figure("ijb <c>", "1:1", "rank 1", 1.0),
)


def curve(kind: str, benchmark: str = "lfw", label: str = "flip added") -> Curve:
    x = np.array([0.0, 1e-3, 1e-2, 0.5, 1.0]) if kind != "cmc" else np.arange(1.0, 41)
    return Curve(benchmark, kind, label, x, np.linspace(0.5, 1, len(x)))


def write(folder: Path, curves: tuple[Curve, ...]) -> Path:
    return write_evaluation(folder, HEADER, FIGURES, curves, {"cfp": "no <file>"}, {"lfw": 1.25, "cfp": 0.1})


def test_values_are_percentages_but_for_thresholds() -> None:
    shown = [(shown_value(figure), shown_interval(figure)) for figure in FIGURES]
    assert shown == [
        ("98.765% ± 0.120%", "98.000% to 99.000%"),
        ("1.2346 ± 0.0100", ""),
        ("50.000%", ""),
        ("–", ""),
        ("–", ""),
        ("100.000%", ""),
    ]


def test_groups_tell_shared_conditions_from_own() -> None:
    lfw, ijb = grouped(FIGURES)
    assert (lfw.benchmark, lfw.protocol, lfw.shared) == ("lfw", "mean", {"flip": "added"})
    assert [lfw.own_name(figure) for figure in lfw.figures[:2]] == ["accuracy (rule grid)", "threshold (rule grid)"]
    assert (ijb.shared, ijb.own_name(ijb.figures[0])) == ({}, "rank 1")


def test_the_terminals_table_joins_what_is_not_decided() -> None:
    file = io.StringIO()
    Console(file=file, width=160).print(results_table(FIGURES))
    printed = file.getvalue()
    assert "TAR at FAR 1e-05, TAR at FAR 1e-06" in printed
    assert "not decided: few [pairs]" in printed
    assert "ijb <c>: 1:1" in printed


def test_what_all_notes_of_a_group_say_is_said_once(tmp_path: Path) -> None:
    steered = "folds 1 to 5 steered the weights"
    figures = [
        Figure("lfw", "mean", "accuracy", 0.5, note=steered),
        Figure("lfw", "mean", "TAR at FAR 1e-03", 0.25, note=f"uncertain: few; {steered}"),
        Figure("cfp", "mean", "accuracy", 0.5, note="alone"),
    ]
    lfw, cfp = grouped(figures)
    assert (lfw.remark, [lfw.own_note(figure) for figure in lfw.figures]) == (steered, ["", "uncertain: few"])
    assert (cfp.remark, cfp.own_note(cfp.figures[0])) == ("", "alone")
    file = io.StringIO()
    Console(file=file, width=200).print(results_table(figures))
    assert file.getvalue().count(steered) == 1
    page = write_evaluation(tmp_path, HEADER, figures, (), {}, {}).read_text()
    assert page.count(f'<p class="note">{steered}.</p>') == page.count(steered) == 1
    rows = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert [row["note"] for row in rows] == [steered, f"uncertain: few; {steered}", "alone"]


def test_files_hold_every_figure_with_nan_as_nothing(tmp_path: Path) -> None:
    write(tmp_path, (curve("roc"),))
    content = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert [figure["value"] for figure in content["figures"]] == [0.98765, 1.23456, 0.5, None, None, 1.0]
    assert content["figures"][0] == {
        "name": "lfw: accuracy (mean, flip added, rule grid)",
        "benchmark": "lfw",
        "protocol": "mean",
        "metric": "accuracy",
        "value": 0.98765,
        "conditions": {"flip": "added", "rule": "grid"},
        "interval": [0.98, 0.99],
        "spread": 0.0012,
        "note": "",
    }
    assert content["failures"] == {"cfp": "no <file>"}
    rows = list(csv.reader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert rows[1] == ["lfw", "mean", "accuracy", "0.98765", "0.98", "0.99", "0.0012", "flip=added; rule=grid", ""]
    assert rows[4][3:7] == ["", "", "", ""]
    (points,) = json.loads((tmp_path / "curves.json").read_text())["curves"]
    assert points["x"] == [0.0, 1e-3, 1e-2, 0.5, 1.0]


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    page = write(tmp_path, ()).read_text()
    assert "<h1>Evaluation of IR-18 &lt;w&amp;8&gt;</h1>" in page
    assert "cfp: no &lt;file&gt;" in page
    assert "ijb &lt;c&gt;" in page
    assert "<svg" not in page


def test_every_kind_of_curve_has_its_plot_and_those_of_before_go(tmp_path: Path) -> None:
    kinds = ("roc", "cmc", "tpir")
    page = write(tmp_path, tuple(curve(kind) for kind in kinds)).read_text()
    plots = tmp_path / "plots"
    assert sorted(path.name for path in plots.iterdir()) == ["cmc.png", "det.png", "roc.png", "tpir.png"]
    assert imread(plots / "cmc.png").std() > 0
    assert page.count("<svg") == 4
    write(tmp_path, (curve("cmc"),))
    assert [path.name for path in plots.iterdir()] == ["cmc.png"]


def test_panels_are_benchmarks_and_lines_are_curves() -> None:
    curves = [curve("roc", name, label) for name in ("lfw", "cfp", "age", "ijb") for label in ("a", "$b_$")]
    figures = evaluation_figures(curves)
    assert list(figures) == ["roc", "det"]
    for figure in figures.values():
        assert [axes.get_title() for axes in figure.axes] == ["lfw", "cfp", "age", "ijb"]
        assert all(len(axes.lines) == 2 for axes in figure.axes)
    assert figures["roc"].axes[0].get_xscale() == "log"
    # A rate of zero has no place on a logarithmic axis, rates of 0 and 1 none on a normal one.
    np.testing.assert_array_equal(figures["roc"].axes[0].lines[0].get_xdata(), [1e-3, 1e-2, 0.5, 1.0])
    far, frr = figures["det"].axes[0].lines[0].get_data()
    np.testing.assert_allclose(far, probit(np.array([1e-3, 1e-2, 0.5])))
    np.testing.assert_allclose(frr, probit(np.array([0.375, 0.25, 0.125])))


def test_many_curves_are_shared_out_over_panels_and_no_legend_covers_any() -> None:
    labels = [
        f"gallery {gallery}, flip added, detector weights, media of equal weight {at}"
        for gallery in (1, 2)
        for at in range(12)
    ]
    curves = [*(curve("cmc", "ijb", label) for label in labels), curve("cmc", "tinyface")]
    figure = evaluation_figures(curves)["cmc"]
    FigureCanvasAgg(figure).draw()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["ijb (1 of 3)", "ijb (2 of 3)", "ijb (3 of 3)", "tinyface"]
    assert [line.get_label() for axes in figure.axes for line in axes.lines] == [*labels, "flip added"]
    assert [len(axes.lines) for axes in figure.axes] == [8, 8, 8, 1]
    for place, axes in zip(figure.subfigs, figure.axes, strict=False):
        (legend,) = place.legends
        assert not legend.get_window_extent().overlaps(axes.get_tightbbox())
        assert figure.bbox.contains(*legend.get_window_extent().min)


def test_probit_is_the_normal_distributions_quantile() -> None:
    np.testing.assert_allclose(probit(np.array([0.5, 0.975, 0.0013498980316301])), [0, 1.959963984540054, -3])


def test_results_are_gone_while_they_are_being_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ())
    (tmp_path / "curves.json").unlink()
    (tmp_path / "curves.json").mkdir()
    with pytest.raises(OSError, match=r"curves\.json"):
        write(tmp_path, ())
    assert not (tmp_path / "results.json").exists()
