# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_history import run_events
from test_summary import figures, summary_fields

from fedface_flwr.errors import DataError
from fedface_flwr.reporting.html import enumeration, write_report
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import write_summary

VOID = {"meta", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """Checks nesting; keeps what a reader sees as text, tables as rows of texts, and all attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def assert_needs_no_network(self) -> None:
        assert not {"script", "link", "img", "iframe", "object"} & set(self.tags)
        for name, value in self.attributes:
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith("#")
        assert "@import" not in self.source
        assert self.source.count("url(") == self.source.count("url(#")


def write_run(path: Path, silos: list[str], config: str = "seed: 0\n", **changes: Any) -> Path:
    events = changes.pop("events", None) or run_events(silos)
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.config.write_text(config)
    folder.metrics.write_text("".join(json.dumps(event) + "\n" for event in events))
    write_summary(folder.summary, summary_fields(silos, **changes))
    return path


def test_a_report_is_one_page_with_every_figure(tmp_path):
    run = write_run(tmp_path / "run", ["celeba", "fiw"])
    assert write_report(run) == run / "report.html"
    page = Page(run / "report.html")
    page.assert_needs_no_network()
    assert (
        "fedface trained on 2 silos (celeba and fiw) for 4 rounds of 10 steps and reaches a verification "
        "accuracy of 75.0% on lfw." in page.text
    )
    assert ["lfw", "75.00% ± 1.25%", "12.0% (uncertain)", "not decided", "0.8500", "3000"] in page.rows
    assert "Accuracy with flip, mean ± std over 5 folds" in page.text
    # 4 rounds of 0.3 MB down; the summary counts what was sent.
    assert ["celeba", "5.000", "2.5", "1.2", "50.0%"] in page.rows
    assert ["Other", "6.0", "5.0% ≤ 10%", ""] in page.rows
    assert ["Training", "90.0", "75.0%", ""] in page.rows
    assert ["12", "3", "3", "0.50"] in page.rows
    assert "3 validation rounds finished inside training round 1, the busiest, which took 4.0 s; 3 of them" in page.text
    assert page.tags.count("svg") == 3
    assert sum(name == "aria-label" and bool(value) for name, value in page.attributes) == 3
    assert sorted(path.name for path in (run / "plots").iterdir()) == [
        "accuracy.png",
        "loss.png",
        "weights.png",
    ]


def test_whatever_a_user_names_is_text_not_markup(tmp_path):
    nasty = '<script>alert("&amp;")</script>'
    events = [*run_events([nasty]), {"event": "warning", "message": nasty, "time": 99.0}]
    run = write_run(
        tmp_path / "run",
        [nasty],
        config=f"root: {nasty}\n",
        events=events,
        method=nasty,
        tests={nasty: figures()},
    )
    write_report(run)
    page = Page(run / "report.html")
    page.assert_needs_no_network()
    assert page.text.count(nasty) >= 7  # title, heading, sentence twice, warning, tables, configuration


def test_too_much_unexplained_time_is_marked(tmp_path):
    account = {
        "flower_startup": 0.0,
        "training": 8.0,
        "validation": 0.0,
        "testing": 0.0,
        "other": 2.0,
        "total": 10.0,
    }
    write_report(write_run(tmp_path / "run", ["a"], account=account))
    page = Page(tmp_path / "run" / "report.html")
    assert ["Other", "2.0", "20.0% > 10%, too much", ""] in page.rows
    assert ("class", "bad") in page.attributes


def test_a_run_with_a_model_for_each_silo_lists_them(tmp_path):
    by_silo = {"a": {"lfw": figures(0.7)}, "b": {"lfw": figures(0.8)}}
    run = write_run(
        tmp_path / "run", ["a", "b"], method="solo", tests_by_silo=by_silo, weights={}, fold_half="both",
        events=run_events(["a", "b"], per_round=0),
    )  # fmt: skip
    write_report(run)
    page = Page(run / "report.html")
    assert [row[:2] for row in page.rows if row[0].startswith("lfw")] == [
        ["lfw (mean of silos)", "75.00% ± 1.25%"],
        ["lfw (a)", "70.00% ± 1.25%"],
        ["lfw (b)", "80.00% ± 1.25%"],
    ]
    assert "over 5 folds, both halves averaged" in page.text
    assert "Federated Validation" not in page.text.replace("where there is Federated Validation", "")
    assert ["a", "5.000", "2.5", "1.2", "–"] in page.rows


def test_the_page_of_a_long_run_of_many_silos_stays_small(tmp_path):
    silos = [f"silo {place}" for place in range(12)]
    events = run_events(silos, rounds=1000, per_round=1)
    noise = random.Random(0)
    for event in events:
        if event["event"] == "round":  # straight lines would take no room
            event["silos"] = {
                silo: figures | {name: noise.random() for name in ("loss", "loss_ema", "accuracy")}
                for silo, figures in event["silos"].items()
            }
        if event["event"] != "start":
            event["weights"] = {silo: noise.random() for silo in silos}
    run = write_run(tmp_path / "run", silos, events=events)
    assert write_report(run).stat().st_size < 1_500_000


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json"])
def test_a_missing_file_is_named_and_nothing_is_written(name, tmp_path):
    run = write_run(tmp_path / "run", ["a"])
    (run / name).unlink()
    with pytest.raises(DataError, match=name):
        write_report(run)
    assert not (run / "report.html").exists()


def test_names_are_joined_as_english_does():
    assert [enumeration(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
