"""Curves as SVG that takes its colours from the page, so that one file serves light and dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.sweep.grid import Axis
from harness.sweep.stats import Share, Spread, Summary
from harness.sweep.table import number
from harness.sweep.views import Line

SERIES_MAX = 6
_INK, _MUTED, _GRID = "#010101", "#020202", "#030303"
_SERIES = [f"#0a000{i}" for i in range(SERIES_MAX)]
_COLOURS = {_INK: "var(--ink)", _MUTED: "var(--muted)", _GRID: "var(--line)"} | {
    colour: f"var(--s{i})" for i, colour in enumerate(_SERIES)
}
"""Colours that nothing else has, and what they become in the page."""
_MARKERS = "osD^vP"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "handoff", "font.family": "sans-serif", "font.size": 11,
    "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _MUTED, "xtick.color": _MUTED, "ytick.color": _MUTED,
    "grid.color": _GRID, "axes.grid": True, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "legend.labelcolor": _INK, "lines.linewidth": 1.8, "lines.markersize": 5.5,
}  # fmt: skip

Pick = Callable[[Summary], tuple[float, float, float]]
"""(value, low, high) of a cell."""


def _spread(name: str) -> Pick:
    def pick(cell: Summary) -> tuple[float, float, float]:
        value: Spread = getattr(cell, name)
        return value.middle, value.low, value.high

    return pick


def _false(cell: Summary) -> tuple[float, float, float]:
    share: Share = cell.false_aborts
    if not share.of:
        return math.nan, math.nan, math.nan
    return share.rate * 100, share.low * 100, share.high * 100


def rate(lines: Sequence[Line], axis: Axis) -> str:
    """Hand-offs a second along the axis, with the span of the repeats and the knees."""
    return _chart(lines, axis, _spread("rate"), "hand-offs per second", knees=True)


def p99(lines: Sequence[Line], axis: Axis) -> str:
    """The latency's p99 in ms."""
    return _chart(lines, axis, _spread("p99"), "p99 latency, ms", log=True)


def p50(lines: Sequence[Line], axis: Axis) -> str:
    """The latency's median in ms."""
    return _chart(lines, axis, _spread("p50"), "median latency, ms", log=True)


def false_aborts(lines: Sequence[Line], axis: Axis) -> str:
    """Share of false aborts in per cent, with 95 % intervals."""
    return _chart(lines, axis, _false, "false aborts, % of hand-offs")


def _chart(lines: Sequence[Line], axis: Axis, pick: Pick, name: str, *, log: bool = False, knees: bool = False) -> str:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.9), layout="constrained")
        axes = figure.add_subplot()
        for number_, line in enumerate(lines[:SERIES_MAX]):
            _draw(axes, line, axis, pick, number_)
            if knees and line.knee:
                axes.plot([line.knee.at], [line.knee.rate], marker="*", markersize=17, color=_SERIES[number_], markeredgecolor=_INK, linestyle="none", zorder=5)  # fmt: skip
                axes.annotate(f"knee {number(line.knee.at)}", (line.knee.at, line.knee.rate), textcoords="offset points", xytext=(7, -15), color=_INK)  # fmt: skip
        _scales(axes, lines, axis, log=log)
        axes.set_xlabel(_axis_name(axis))
        only = f", {lines[0].label}" if len(lines) == 1 and lines[0].rest else ""
        axes.set_title(name + only, loc="left", fontsize=12)
        if len(lines) > 1:
            axes.legend(loc="best", fontsize=10)
        return _svg(figure, name)


def _draw(axes: Axes, line: Line, axis: Axis, pick: Pick, series: int) -> None:
    points = [(float(cell.values[axis.field]), *pick(cell)) for cell in line.cells]
    points = [point for point in points if not math.isnan(point[1])]
    if not points:
        return
    x, y, low, high = (list(column) for column in zip(*points, strict=True))
    reach = [[max(v - a, 0.0) for v, a in zip(y, low, strict=True)], [max(b - v, 0.0) for v, b in zip(y, high, strict=True)]]  # fmt: skip
    axes.errorbar(
        x, y, yerr=reach, color=_SERIES[series], marker=_MARKERS[series], label=line.label, capsize=2.5, elinewidth=1.0
    )


def _scales(axes: Axes, lines: Sequence[Line], axis: Axis, *, log: bool) -> None:
    values = sorted({float(cell.values[axis.field]) for line in lines[:SERIES_MAX] for cell in line.cells})
    if not values:
        return
    if values[0] > 0 and values[-1] / values[0] > 8:
        axes.set_xscale("log")
        axes.set_xticks(values if len(values) <= 10 else values[:: len(values) // 8])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    if log and axes.has_data():
        axes.set_yscale("log")
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(FuncFormatter(_plain if _decades(axes.get_ylim()) < 1.3 else _round))
    else:
        axes.set_ylim(bottom=0)


def _decades(limits: tuple[float, float]) -> float:
    return math.log10(limits[1] / limits[0])


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _round(value: float, _: object) -> str:
    """Only 1, 10, 100: what lies between would crowd a long axis."""
    return f"{value:g}" if math.isclose(math.log10(value), round(math.log10(value)), abs_tol=1e-9) else ""


def _axis_name(axis: Axis) -> str:
    return f"{axis.short} ({axis.field})"


def _svg(figure: Figure, name: str) -> str:
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _COLOURS.items():
        text = text.replace(colour, variable)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
