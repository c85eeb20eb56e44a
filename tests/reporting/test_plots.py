# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import threading
from xml.etree import ElementTree

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.image import imread
from test_history import round_event, run_events, start_event

from fedface_flwr.reporting.history import History
from fedface_flwr.reporting.plots import INK, line_style, run_figures, save_png, to_svg


def colours(axes) -> dict[str, str]:
    return {line.get_label(): to_hex(line.get_color()) for line in axes.lines if not line.get_label().startswith("_")}


def test_a_silo_has_one_colour_in_all_plots_and_validators_have_others():
    figures = run_figures(History(run_events(["a", "b"])))
    of_silos = colours(figures["loss"].axes[0])
    training, validating = figures["accuracy"].axes
    assert list(of_silos) == ["a", "b"]
    assert colours(training) == of_silos
    assert {name: colour for name, colour in colours(figures["weights"].axes[0]).items() if name in "ab"} == of_silos
    assert list(colours(validating)) == ["lfw"]
    assert len({*of_silos.values(), *colours(validating).values()}) == 3


def test_curves_show_the_events_figures_in_percent():
    training, validating = run_figures(History(run_events(["a"], rounds=2, per_round=1)))["accuracy"].axes
    np.testing.assert_array_equal(training.lines[0].get_xydata(), [[1, 25.0], [2, 25.0]])
    np.testing.assert_array_equal(validating.lines[0].get_xydata(), [[0.5, 66.0], [1.5, 66.0]])


def test_without_validation_there_is_no_panel_for_it():
    assert len(run_figures(History(run_events(["a"], per_round=0)))["accuracy"].axes) == 1


def test_steps_of_the_rate_are_marked_and_smooth_decay_is_not():
    rates = [0.1, 0.09, 0.009, 0.008, 0.004]
    events = [round_event(number, ["a"], 4.0 * number, rate=rate) for number, rate in enumerate(rates, start=1)]
    axes = run_figures(History([start_event(["a"], []), *events]))["loss"].axes[0]
    assert [text.xy[0] for text in axes.texts] == [2.5, 4.5]


def test_a_run_that_averages_nothing_says_so():
    events = [
        event | {"weights": {}} if event["event"] == "round" else event for event in run_events(["a"], per_round=0)
    ]
    assert [text.get_text() for text in run_figures(History(events))["weights"].axes[0].texts] == [
        "nothing is averaged in this run"
    ]


def test_png_files_are_pictures_at_150_dpi(tmp_path):
    for name, figure in run_figures(History(run_events(["a", "b"]))).items():
        save_png(figure, tmp_path / "plots" / f"{name}.png")
    assert imread(tmp_path / "plots" / "loss.png").shape[:2] == (630, 1200)
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "accuracy.png",
        "loss.png",
        "weights.png",
    ]


def test_svg_takes_the_pages_ink_and_keeps_its_identifiers_apart():
    figures = run_figures(History(run_events(["a", "b & <c>", "$x_$"])))
    svgs = {name: to_svg(figure, name, "what it shows") for name, figure in figures.items()}
    for name, svg in svgs.items():
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label") == "what it shows"
        assert root.get("width") is None
        assert INK not in svg
        assert "currentColor" in svg
        identifiers = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(identifiers) == len(set(identifiers))
        assert all(identifier.startswith(f"{name}-") for identifier in identifiers)
        references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
        assert {first or second for first, second in references} <= set(identifiers)


def test_24_curves_differ():
    assert len({tuple(line_style(place).values()) for place in range(24)}) == 24


def test_threads_draw_the_same_pictures_as_one(tmp_path):
    history = History(run_events(["a", "b"]))

    def draw(name: str) -> None:
        save_png(run_figures(history)["weights"], tmp_path / name)

    threads = [threading.Thread(target=draw, args=(f"{count}.png",)) for count in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    draw("alone.png")
    alone = imread(tmp_path / "alone.png")
    for count in range(3):
        np.testing.assert_array_equal(imread(tmp_path / f"{count}.png"), alone)
