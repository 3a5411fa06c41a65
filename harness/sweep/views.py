"""What a sweep shows: lines over its load axis with their knees, and what moved the false aborts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness.sweep.grid import Axis, label
from harness.sweep.knee import Knee, knee
from harness.sweep.stats import Share, Summary

LOADS = ("workload.concurrency", "workload.rate_per_s")
BUSY = 0.1
"""Share of other work from which on it is told."""


class Line(msgspec.Struct, frozen=True):
    """Cells that differ only in the line axis, in its order; `rest`: what they have in common of the other axes."""

    rest: dict[str, Any]
    cells: list[Summary]
    knee: Knee | None

    @property
    def label(self) -> str:
        """For a legend."""
        return label(self.rest) if self.rest else "all"


class Trend(msgspec.Struct, frozen=True):
    """How the false-abort rate moves along one axis: at each value the mean over the other axes' cells, with a 95 % interval."""

    axis: Axis
    points: list[tuple[Any, float, float, float]]

    @property
    def text(self) -> str:
        """In words, claiming no more than the intervals bear."""
        low, high = min(self.points, key=lambda p: p[1]), max(self.points, key=lambda p: p[1])
        name = self.axis.short
        if not high[1]:
            return f"{name}: no false abort at any value"
        shown = f"from {_point(low)} at {name} {low[0]} to {_point(high)} at {name} {high[0]}"
        if high[2] <= low[3]:
            return f"{name}: no effect on the false-abort rate beyond chance ({shown})"
        if not self.axis.numeric:
            return f"{name}: {shown}"
        ends = (self.points[0][0], self.points[-1][0])
        if low[0] == ends[0] and high[0] == ends[1]:
            return f"{name}: false aborts rise with it, {shown}"
        if low[0] == ends[1] and high[0] == ends[0]:
            return f"{name}: false aborts fall with it, {shown}"
        return f"{name}: false aborts go {shown}; neither rising nor falling throughout"


def _point(point: tuple[Any, float, float, float]) -> str:
    return f"{point[1] * 100:.2g} % ({point[2] * 100:.2g} to {point[3] * 100:.2g})"


def line_axis(axes: Sequence[Axis]) -> Axis | None:
    """The axis to draw along: a load if there is one, else the first of numbers."""
    numeric = [axis for axis in axes if axis.numeric]
    loads = [axis for axis in numeric if axis.field in LOADS]
    return next(iter(loads or numeric), None)


def lines(cells: Sequence[Summary], axis: Axis) -> list[Line]:
    """Cells in lines along `axis`. Only a load has a knee."""
    groups: dict[str, list[Summary]] = {}
    for cell in cells:
        groups.setdefault(repr(_rest(cell.values, axis)), []).append(cell)
    found = []
    for group in groups.values():
        ordered = sorted(group, key=lambda cell: float(cell.values[axis.field]))
        known = [(cell.values[axis.field], cell.rate.middle) for cell in ordered if not math.isnan(cell.rate.middle)]
        at = knee([x for x, _ in known], [y for _, y in known]) if axis.field in LOADS else None
        found.append(Line(_rest(ordered[0].values, axis), ordered, at))
    return found


def _rest(values: Mapping[str, Any], axis: Axis) -> dict[str, Any]:
    return {field: value for field, value in values.items() if field != axis.field}


def trends(cells: Sequence[Summary], axes: Sequence[Axis]) -> list[Trend]:
    """One for each axis with at least two values that were run."""
    found = []
    for axis in axes:
        points = []
        for value in sorted(axis.values) if axis.numeric else axis.values:
            shares = [c.false_aborts for c in cells if c.values.get(axis.field) == value and c.requests]
            if shares:
                points.append((value, *_mean(shares)))
        if len(points) > 1:
            found.append(Trend(axis, points))
    return found


def _mean(shares: Sequence[Share]) -> tuple[float, float, float]:
    """Mean of several rates, each counting the same, with its 95 % interval."""
    count = len(shares)
    rate = sum(share.rate for share in shares) / count
    below = math.sqrt(sum((share.rate - share.low) ** 2 for share in shares)) / count
    above = math.sqrt(sum((share.high - share.rate) ** 2 for share in shares)) / count
    return rate, max(0.0, rate - below), min(1.0, rate + above)


def busy(found: Sequence[Summary]) -> list[str]:
    """A warning where the machine was not this sweep's alone."""
    shares = [cell.other_cpu.middle for cell in found if not math.isnan(cell.other_cpu.middle)]
    if not shares or (share := statistics.median(shares)) < BUSY:
        return []
    return [
        f"the machine was busy with other work meanwhile ({share:.0%} of its cores): rates and latencies are those of such a machine"
    ]
