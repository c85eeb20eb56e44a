# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

import pytest
from rich.console import Console
from test_history import run_events
from test_html import Page, write_run
from test_summary import figures, summary_fields

from fedface_flwr.errors import ConfigError
from fedface_flwr.reporting.comparison import comparison_table, run_labels, write_comparison


def printed(summaries, width: int = 80) -> list[list[str]]:
    out = io.StringIO()
    Console(file=out, width=width).print(comparison_table(summaries))
    return [line.split() for line in out.getvalue().splitlines()]


def test_the_terminals_table_has_one_row_a_run():
    silos = ["celeba", "fiw", "lag"]
    central = summary_fields(
        silos, method="central", seconds=90.0, bytes_sent={}, tests={"age_gap": figures(0.5)},
        loss_ema={"celeba": 4.0, "fiw": None, "lag": 5.125},
    )  # fmt: skip
    rows = printed([summary_fields(silos), central])
    assert ["fedface", "5.00/5.00/5.00", "75.0%", "–", "2.0", "2.5/2.5/2.5"] in rows
    assert ["central", "4.00/–/5.12", "–", "50.0%", "1.5", "–/–/–"] in rows
    assert ["method", "celeba/fiw/lag", "accuracy", "accuracy", "minutes", "celeba/fiw/lag"] in rows


def test_a_label_names_only_what_differs():
    def labels(*fields):
        return run_labels([summary_fields(["a"], **given) for given in fields])

    assert labels({"method": "pfm"}, {"method": "fedavg"}) == ["pfm", "fedavg"]
    assert labels({"seed": 1}, {"seed": 2}) == ["fedface seed 1", "fedface seed 2"]
    assert labels({"steps_per_round": 10}, {"steps_per_round": 30}) == ["fedface K=10", "fedface K=30"]


def test_the_page_holds_table_and_curves_and_needs_no_network(tmp_path):
    silos = ["a", "b", "c", "<d>"]
    runs = [
        write_run(tmp_path / "one", silos),
        write_run(tmp_path / "two", silos[:2], method="<fedavg>", events=run_events(silos[:2], per_round=0)),
    ]
    write_comparison(tmp_path / "comparison.html", runs)
    page = Page(tmp_path / "comparison.html")
    page.assert_needs_no_network()
    assert ["Run", *silos, "lfw", "Minutes", *silos] in page.rows
    assert ["fedface", *["5.00"] * 4, "75.0% ± 1.2%", "2.0", *["2.5"] * 4] in page.rows
    assert ["<fedavg>", "5.00", "5.00", "–", "–", "75.0% ± 1.2%", "2.0", "2.5", "2.5", "–", "–"] in page.rows
    assert page.tags.count("svg") == 2


def test_a_comparison_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="at least one finished run"):
        write_comparison(tmp_path / "comparison.html", [])
