"""What a shared machine did meanwhile, taken out of the runs of a search.

A virtual machine's cores may be a third slower for seconds or minutes without any of it showing as other work: a loop of plain Python, pinned to
a core and timed by its own CPU time, drifted as the hand-offs did (0.6 to 1.2 of its median within a minute; docs/tuning.md). So figures of
different cells are compared as if all had been measured at one pace, the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Point = Mapping[str, float]
"""One run: `rate` in hand-offs a second, `p99` in ms, `held` slots on average, `other` the share of the machine that did other work,
`at_s` when it ended, seconds on any one clock; without `rate` where it failed."""
Cell = tuple[int, int]
"""(concurrency, slots)."""
Rounds = Sequence[Mapping[Cell, Point]]
Floats = NDArray[np.float64]

SPAN_S = 3.0
"""Width of the window that the pace at a moment is taken from: runs last about half a second, the drift several."""
QUIET = 0.75
"""Quantile of the free share of the machine that figures are taken to: other work can be ended, and the user is told of it."""
OTHER_MAX = 0.95
SLOPE_MAX = 2.0
SAME = 0.02
"""What differs by no more than this, on a log scale, is the same."""
PASSES = 20


class _Fit(NamedTuple):
    runs: list[tuple[int, Cell, Point]]
    """(round, cell, run) of each run that came to an end."""
    groups: NDArray[Any]
    """Number of its cell, for each run."""
    rate: Floats
    late: Floats
    """Logs of rate and p99, other work taken out."""
    pace: Floats
    """Log of the machine's pace, 0 on average."""


def paced(rounds: Rounds) -> list[dict[Cell, Point]]:
    """The runs that came to an end, their `rate` and `p99` as they would have been at the machine's usual pace, the median.

    How a figure moves with the share of the machine that was free, and with the pace, is fitted within the cells, straight lines on log
    scales, the same for all. The pace at a run is what the other runs around it gave, each against its own cell.
    """
    found: list[dict[Cell, Point]] = [{} for _ in rounds]
    fit = _fit(rounds)
    if fit is None:
        return found
    away = fit.pace - np.median(fit.pace)
    late = fit.late - _slope(fit.groups, away, fit.late, -1) * away
    for (number, cell, p), y, z in zip(fit.runs, fit.rate - away, late, strict=True):
        found[number][cell] = {**p, "rate": math.exp(y), "p99": math.exp(z)}
    return found


def swing(rounds: Rounds) -> tuple[float, float]:
    """The pace in the slowest and the fastest twentieth of the time; 1 is the median."""
    fit = _fit(rounds)
    if fit is None:
        return 1.0, 1.0
    low, usual, high = np.quantile(fit.pace, (0.05, 0.5, 0.95))
    return math.exp(low - usual), math.exp(high - usual)


def _fit(rounds: Rounds) -> _Fit | None:
    """None without a run that came to an end."""
    runs = [(number, cell, p) for number, one in enumerate(rounds) for cell, p in one.items() if p.get("rate") and p.get("p99")]  # fmt: skip
    if not runs:
        return None
    cells = {cell: index for index, cell in enumerate(dict.fromkeys(cell for _, cell, _ in runs))}
    groups = np.array([cells[cell] for _, cell, _ in runs])
    rate, late = (np.log([p[name] for _, _, p in runs]) for name in ("rate", "p99"))
    free = np.log1p([-min(p["other"], OTHER_MAX) for _, _, p in runs])
    away = free - np.quantile(free, QUIET)
    rate -= _slope(groups, away, rate, 1) * away
    late -= _slope(groups, away, late, -1) * away
    return _Fit(runs, groups, rate, late, _pace(groups, rate, np.array([p["at_s"] for _, _, p in runs])))


def level(rounds: Rounds, cells: Sequence[Cell], name: str) -> list[float]:
    """`name` of each cell: the mean of the middle half of its runs, on a log scale; NaN for a cell without runs."""
    return [middle([p[name] for one in rounds if (p := one.get(cell, {})).get(name)]) for cell in cells]


def middle(values: Sequence[float]) -> float:
    """The mean of the middle half of values above 0, on a log scale: bursts do not move it, and it wavers less than a median; NaN without any."""
    if not values:
        return math.nan
    logs = sorted(map(math.log, values))
    cut = len(logs) // 4
    return math.exp(math.fsum(kept := logs[cut : len(logs) - cut]) / len(kept))


def _pace(groups: NDArray[Any], rate: Floats, at_s: Floats) -> Floats:
    """Log of the machine's pace at each run, 0 on average: of the runs around it, itself left out, what they gave beyond their cells' mean."""
    near = np.exp(-0.5 * ((at_s[:, None] - at_s[None, :]) / SPAN_S) ** 2)
    np.fill_diagonal(near, 0.0)
    weight = near.sum(axis=1, keepdims=True)
    # A run that stands alone says nothing of the pace: it is taken for usual.
    near = np.divide(near, weight, out=np.zeros_like(near), where=weight > SAME)
    pace: Floats = np.zeros(len(rate))
    for _ in range(PASSES):
        pace = near @ (rate - _means(groups, rate - pace))
        pace -= pace.mean()
    return pace


def _means(groups: NDArray[Any], values: Floats) -> Floats:
    """For each value, the mean of its group."""
    found: Floats = (np.bincount(groups, values) / np.bincount(groups))[groups]
    return found


def _slope(groups: NDArray[Any], x: Floats, y: Floats, sign: int) -> float:
    """The common slope within the groups, 0 to SLOPE_MAX in the direction of `sign`; 0 where x hardly differs."""
    moved_x, moved_y = x - _means(groups, x), y - _means(groups, y)
    square = float(moved_x @ moved_x)
    if square < len(x) * SAME**2:
        return 0.0
    return sign * min(max(sign * float(moved_x @ moved_y) / square, 0.0), SLOPE_MAX)
