# SPDX-License-Identifier: Apache-2.0
"""The plots of an evaluation, a panel a benchmark, or several: ROC, DET, CMC, and TPIR over FPIR."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedface_flwr.evaluation.figures import Curve, Floats
from fedface_flwr.reporting.plots import INK, line_style, new_figure, plain, style_axes

_COLUMNS = 3
# More curves in one panel can no longer be told apart.
_CURVES = 8
# Inches, beside the axes themselves, of which a legend's line takes its share.
_PANEL, _LEGEND_LINE = 4.2, 0.16
_PROBIT_TICKS = np.array([1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99])

CAPTIONS = {
    "roc": "Receiver operating characteristic: true accept rate over false accept rate.",
    "det": "Detection error trade-off (Martin et al., Eurospeech 1997): false reject rate over false accept rate, both "
    "axes stretched by the normal distribution's quantiles.",
    "cmc": "Cumulative match characteristic: share of probes whose mate is among the first ranks.",
    "tpir": "Open-set identification: true positive over false positive identification rate.",
}


def evaluation_figures(curves: Sequence[Curve]) -> dict[str, Figure]:
    """Draw every kind of plot that there are curves for.

    Returns
    -------
    dict of str to Figure
        Of the keys of ``CAPTIONS``, in their order.
    """
    kinds: dict[str, tuple[str, Callable[[Axes, Sequence[Curve]], None]]] = {
        "roc": ("roc", _roc),
        "det": ("roc", _det),
        "cmc": ("cmc", _cmc),
        "tpir": ("tpir", _tpir),
    }
    return {
        name: _panels([curve for curve in curves if curve.kind == kind], draw)
        for name, (kind, draw) in kinds.items()
        if any(curve.kind == kind for curve in curves)
    }


def _panels(curves: Sequence[Curve], draw: Callable[[Axes, Sequence[Curve]], None]) -> Figure:
    shown = [panel for name in dict.fromkeys(curve.benchmark for curve in curves) for panel in _shared(curves, name)]
    columns = min(len(shown), _COLUMNS)
    rows = -(-len(shown) // columns)
    legend = _LEGEND_LINE * max(len(own) for _, own in shown)
    figure = new_figure(height=(_PANEL + legend) * rows, width=max(6.0, _PANEL * columns))
    places = figure.subfigures(rows, columns, squeeze=False).ravel()
    for place, (title, own) in zip(places, shown, strict=False):
        axes = place.subplots()
        draw(axes, own)
        axes.set_title(plain(title), fontsize=10, color=INK)
        place.legend(frameon=False, labelcolor=INK, fontsize=7, loc="outside lower center")
    return figure


def _shared(curves: Sequence[Curve], benchmark: str) -> list[tuple[str, Sequence[Curve]]]:
    """Return a benchmark's curves with the title of their panel, shared out evenly where they are too many for one."""
    own = [curve for curve in curves if curve.benchmark == benchmark]
    panels = -(-len(own) // _CURVES)
    each = -(-len(own) // panels)
    if panels == 1:
        return [(benchmark, own)]
    return [(f"{benchmark} ({at + 1} of {panels})", own[at * each : (at + 1) * each]) for at in range(panels)]


def _lines(axes: Axes, curves: Sequence[Curve], points: Callable[[Curve], tuple[Floats, Floats]]) -> None:
    for place, curve in enumerate(curves):
        # A marker shows a curve of which a single point is on the axes.
        marker = "o" if len(curve.x) < 3 else None
        axes.plot(*points(curve), linewidth=1.5, marker=marker, label=plain(curve.label), **line_style(place))


def _above_zero(curve: Curve) -> tuple[Floats, Floats]:
    kept = curve.x > 0
    return curve.x[kept], curve.y[kept]


def _roc(axes: Axes, curves: Sequence[Curve]) -> None:
    _lines(axes, curves, _above_zero)
    style_axes(axes, "false accept rate", "true accept rate")
    axes.set_xscale("log")


def _tpir(axes: Axes, curves: Sequence[Curve]) -> None:
    _lines(axes, curves, _above_zero)
    style_axes(axes, "false positive identification rate", "true positive identification rate")
    axes.set_xscale("log")


def _cmc(axes: Axes, curves: Sequence[Curve]) -> None:
    _lines(axes, curves, lambda curve: (curve.x, curve.y))
    style_axes(axes, "rank", "share of probes")
    if max(curve.x.max(initial=1) for curve in curves) > 30:
        axes.set_xscale("log")


def _det(axes: Axes, curves: Sequence[Curve]) -> None:
    _lines(axes, curves, _probit_points)
    style_axes(axes, "false accept rate", "false reject rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(probit(_PROBIT_TICKS).tolist()))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_rate_of))
    axes.tick_params(axis="x", rotation=60, labelsize=8)
    axes.tick_params(axis="y", labelsize=8)


def _probit_points(curve: Curve) -> tuple[Floats, Floats]:
    """Points inside of both axes: rates of 0 and 1 are infinitely far out."""
    far, frr = curve.x, 1 - curve.y
    kept = (far > 0) & (far < 1) & (frr > 0) & (frr < 1)
    return probit(far[kept]), probit(frr[kept])


def probit(rates: Floats) -> Floats:
    """Return the standard normal distribution's quantiles of rates in (0, 1)."""
    quantiles: Floats = torch.special.ndtri(torch.from_numpy(np.ascontiguousarray(rates, dtype=np.float64))).numpy()
    return quantiles


def _rate_of(position: float, _: object) -> str:
    rate = _PROBIT_TICKS[np.abs(probit(_PROBIT_TICKS) - position).argmin()]
    return f"{rate:.0e}" if rate < 1e-3 else f"{100 * rate:g}%"
