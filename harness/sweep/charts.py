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
        _scales(axes, axis, log=log)
        axes.set_xlabel(_axis_name(axis))
        axes.set_title(name, loc="left", fontsize=12)
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


def _scales(axes: Axes, axis: Axis, *, log: bool) -> None:
    values = sorted(float(value) for value in axis.values)
    if values[0] > 0 and values[-1] / values[0] > 8:
        axes.set_xscale("log")
        axes.set_xticks(values if len(values) <= 10 else values[:: len(values) // 8])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if log and axes.has_data():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)


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
