# SPDX-License-Identifier: Apache-2.0
"""A run's curves: loss, accuracy and averaging weights over the training rounds.

Figures are made without pyplot, whose state is shared by all threads.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedface_flwr.files import replacing
from fedface_flwr.reporting.history import FloatArray, History, thinned

# Okabe and Ito's colour-blind-safe palette, less its yellow and black, which vanish on white and on black.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("solid", "dashed", "dotted", "dashdot")
# Everything but the curves has this one colour, so that an SVG can take the page's text colour in its place.
INK = "#20262d"
PNG_DPI = 150


def run_figures(history: History) -> dict[str, Figure]:
    """Draw the three plots of a run.

    Returns
    -------
    dict
        The figures by name: loss, accuracy, weights.
    """
    return {
        "loss": _loss_figure(history),
        "accuracy": _accuracy_figure(history),
        "weights": _weights_figure(history),
    }


def save_png(figure: Figure, path: Path) -> None:
    """Write `figure` to `path` as PNG on white, 150 dpi, whole or not at all."""
    canvas = FigureCanvasAgg(figure)
    with replacing(path) as temporary:
        canvas.print_figure(str(temporary), format="png", dpi=PNG_DPI, facecolor="white")


def to_svg(figure: Figure, name: str, alt: str) -> str:
    """Return `figure` as an SVG element for an HTML page.

    The ground is transparent and the ink is the page's text colour, which makes it fit light and dark pages.

    Parameters
    ----------
    figure
        What to draw.
    name
        Unique in the page: identifiers inside an SVG are global to its page, so they are prefixed with it.
    alt
        What the picture shows, in words that need no HTML escaping.
    """
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_figure(
        buffer,
        format="svg",
        facecolor="none",
        metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
    )
    text = buffer.getvalue()
    svg = text[text.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)


def line_style(place: int) -> dict[str, Any]:
    """Return colour and dashes of the curve at `place`: 24 differ."""
    return {
        "color": PALETTE[place % len(PALETTE)],
        "linestyle": DASHES[place // len(PALETTE) % len(DASHES)],
    }


def style_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Give `axes` the house's look: ink, faint grid, two spines, whole numbers below."""
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.tick_params(colors=INK)
    axes.grid(color=INK, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_facecolor("none")
    axes.margins(x=0.01)


def legend_above(figure: Figure, axes: Axes) -> None:
    """Put one legend for `axes` above the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(len(labels), 6)
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        labelcolor=INK,
        handlelength=2.4,
    )


def plain(name: str) -> str:
    """Return `name` such that matplotlib draws it as it is: two dollars would make it mathematics."""
    return name.replace("$", r"\$")


def new_figure(height: float, width: float = 8.0) -> Figure:
    """Return an empty figure of `width` x `height` inches."""
    return Figure(figsize=(width, height), layout="constrained")


def _loss_figure(history: History) -> Figure:
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    x = history.round_numbers()
    for place, silo in enumerate(history.trainers):
        style = line_style(place)
        axes.plot(*thinned(x, history.silo_series(silo, "loss")), linewidth=0.8, alpha=0.35, **style)
        axes.plot(*thinned(x, history.silo_series(silo, "loss_ema")), linewidth=2, label=plain(silo), **style)
    for drop in _rate_drops(history):
        axes.axvline(drop, color=INK, alpha=0.4, linewidth=0.9, linestyle=(0, (2, 3)))
        axes.annotate(
            "rate drops", (drop, 1), xycoords=("data", "axes fraction"), xytext=(-3, -3),
            textcoords="offset points", rotation=90, ha="right", va="top", fontsize=7, color=INK, alpha=0.7,
        )  # fmt: skip
    style_axes(axes, "training round", "training loss (nats)\nbold: exponentially smoothed")
    legend_above(figure, axes)
    return figure


def _accuracy_figure(history: History) -> Figure:
    """Accuracy on the silo's own training faces above, the validators' scores below where there are any."""
    panels = 2 if history.validations else 1
    figure = new_figure(3.4 * panels + 0.4)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    x = history.round_numbers()
    for place, silo in enumerate(history.trainers):
        y = 100 * history.silo_series(silo, "accuracy")
        axes[0].plot(*thinned(x, y), linewidth=1.6, label=plain(silo), **line_style(place))
    style_axes(axes[0], "training round" if panels == 1 else "", "training accuracy, no margin (%)")
    legend_above(figure, axes[0])
    if history.validations:
        when = history.validation_positions()
        for place, name in enumerate(history.validators, start=len(history.trainers)):
            style = line_style(place) | {"marker": "o"}
            scores = thinned(when, history.best_scores(name))
            axes[1].plot(*scores, linewidth=0.8, markersize=3, label=plain(name), **style)
        style_axes(axes[1], "training round in progress", "best candidate's score (%)")
        axes[1].legend(
            frameon=False, labelcolor=INK, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1),
            title="validators", title_fontproperties={"size": 9},
        ).get_title().set_color(INK)  # fmt: skip
    return figure


def _weights_figure(history: History) -> Figure:
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    x, when = history.round_numbers(), history.validation_positions()
    for place, silo in enumerate(history.trainers):
        style = line_style(place)
        axes.plot(*thinned(x, history.weight_series(silo)), linewidth=2, label=plain(silo), **style)
        if history.validations:
            axes.plot(
                *thinned(when, history.updated_weights(silo)),
                ".",
                markersize=3.5,
                alpha=0.5,
                color=style["color"],
            )
    style_axes(axes, "training round", "averaging weight w\ndots: after each validation round")
    if not any(event["weights"] for event in history.rounds):
        axes.text(0.5, 0.5, "nothing is averaged in this run", ha="center", color=INK, transform=axes.transAxes)
        return figure
    equal = 1 / len(history.trainers)
    axes.axhline(equal, color=INK, alpha=0.6, linewidth=0.9, linestyle=(0, (4, 3)), label=f"equal ({equal:.3g})")
    # Weights that hardly move must not look as if they danced.
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, equal - 0.02), max(high, equal + 0.02))
    legend_above(figure, axes)
    return figure


def _rate_drops(history: History) -> list[float]:
    """Return where the rate steps down: between two rounds, the later with at most half the rate."""
    rates = np.array([event["rate"] for event in history.rounds])
    numbers: FloatArray = history.round_numbers()
    return [float(number) + 0.5 for number in numbers[:-1][rates[1:] <= rates[:-1] / 2]]
