"""The search behind `handoff tune`, without processes: it asks for cells to be measured and says what to recommend.

Machines are shared, so every step is made in rounds that measure each of its cells once, and what the machine did besides is measured
with each run. Figures are compared as they would be if every run had had the same share of the machine: that of the quieter runs.
How sure a figure is comes from drawing the rounds again, with replacement.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from harness.sweep.knee import KEEP, at_load, enough, falling, highest_within, isotonic, knee, saturating

STEP = math.sqrt(2.0)
REACH = 4.0
"""The decisive cells reach from a fourth to four times of the first guess."""
DRAWS = 200
SURE = 0.15
"""A recommendation is repeated until its interval is within this share of it, or the rounds are used up."""
POOL_REPEATS = 3
"""Times that the pools are measured again until it is sure: what a slot more or less is worth is small next to what runs differ by."""
QUIET_MIN = 3
QUIET = 0.75
"""Quantile of the free share that figures are taken to."""
OTHER_MAX = 0.95
SIGN = {"rate": 1, "p99": -1}
"""How a figure moves with the free share of the machine."""
SLOPE_MAX = 2.0
SAME = 0.02
"""Free shares that differ by no more than this, on a log scale, are the same."""
T = TypeVar("T")

Point = Mapping[str, float]
"""One run: `rate` in hand-offs a second, `p99` in ms, `held` slots on average, `other` the share of the machine that did other work;
without `rate` where it failed."""
Cell = tuple[int, int]
"""(concurrency, slots)."""
Measure = Callable[[str, Sequence[Cell], int], list[dict[Cell, Point]]]
"""(title, cells, rounds) to the runs of each round."""


class Estimate(msgspec.Struct, frozen=True):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class Limits(msgspec.Struct, frozen=True):
    """What is asked: the bound of p99 in ms or None, how far to look, slots fixed or None, rounds of the decisive cells."""

    p99_ms: float | None
    max_concurrency: int
    slots: int | None
    rounds: int


class Advice(msgspec.Struct, frozen=True):
    """What to set, what that gives, how sure it is, and what decided it."""

    concurrency: int
    slots: int
    concurrency_range: tuple[float, float]
    slots_range: tuple[float, float]
    rate: Estimate
    p99: Estimate
    why: str
    notes: list[str]


class NothingFits(Exception):
    """No concurrency keeps the bound; the message says what the least one gives."""


def advise(measure: Measure, limits: Limits) -> Advice:
    """Search, and repeat what decides; raises NothingFits."""
    ample = limits.slots or limits.max_concurrency
    guess = _climb(measure, limits, ample)
    rounds, cells = _bracket(measure, limits, guess, ample)
    best, spread = _concurrency(rounds, cells, limits)
    if _wide(best, spread):
        rounds += measure(
            "repeating what decides", [cell for cell in cells if best / 3 <= cell[0] <= best * 3], limits.rounds
        )
        best, spread = _concurrency(rounds, cells, limits)
    concurrency = max(1, round(best))
    slots, slots_range = ample, (float(ample), float(ample))
    slot_notes: list[str] = []
    final: list[dict[Cell, Point]] = []
    if limits.slots is None:
        slots, slots_range, slot_notes, final = _slots(measure, limits, concurrency, _held(rounds, best))
    final += measure("confirming", [(concurrency, slots)], limits.rounds)
    # A larger pool is worth less than 5 % by now: its runs, minutes apart, tell more of the rate than those of one moment alone.
    alike = [p for one in final for cell, p in one.items() if cell[1] >= slots and "rate" in p]
    points = quieter(alike, lambda p: p["other"])
    why, notes = _why(rounds, cells, limits, best)
    p99 = _median([p["p99"] for p in points])
    if limits.p99_ms is not None and p99.low > limits.p99_ms:
        notes.append(
            f"the confirming runs were over the bound: p99 {p99.value:.3g} ms; the machine changed meanwhile, or the pool is too small"
        )
    if _wide(best, spread):
        notes.append(
            "not sure: the interval of the concurrency reaches beyond 15 % of it; run it again when the machine is quieter, or with more --repeats"
        )
    return Advice(
        concurrency, slots, spread, slots_range, _median([p["rate"] for p in points]), p99,
        why, notes + slot_notes,
    )  # fmt: skip


def _climb(measure: Measure, limits: Limits, ample: int) -> float:
    """A first guess: double the load until it pays no more or breaks the bound, twice in a row; of three tries the best counts."""
    rates: list[tuple[int, float]] = []
    load, spent = 1, 0
    best = 0.0
    while load <= limits.max_concurrency and spent < 2:
        points = [point for one in measure("climbing", [(load, ample)], 3) for point in one.values() if "rate" in point]
        rate = max((point["rate"] for point in points), default=0.0)
        over = limits.p99_ms is not None and min((point["p99"] for point in points), default=math.inf) > limits.p99_ms
        spent = spent + 1 if over or rate < best / KEEP else 0
        best = max(best, rate)
        rates.append((load, 0.0 if over else rate))
        load *= 2
    top = max(rate for _, rate in rates)
    return float(next(load for load, rate in rates if rate >= KEEP * top))


def _bracket(measure: Measure, limits: Limits, guess: float, ample: int) -> tuple[list[dict[Cell, Point]], list[Cell]]:
    """Measure around the guess, and again around the edge as long as the answer lies at one."""
    rounds: list[dict[Cell, Point]] = []
    cells: list[Cell] = []
    for title in ("finding the knee", "looking further", "looking further still"):
        new = [cell for c in around(guess, limits.max_concurrency) if (cell := (c, ample)) not in cells]
        rounds += measure(title, new, limits.rounds)
        cells = sorted(cells + new)
        low, high = float(cells[0][0]), float(cells[-1][0])
        try:
            best = _pick(rounds, cells, limits)[0]
        except NothingFits:
            if low <= 1:
                raise
            best = low
        if low < best < high or (best <= low <= 1) or (best >= high >= limits.max_concurrency):
            break
        guess = low if best <= low else high
    return rounds, cells


def around(guess: float, most: int) -> list[int]:
    """Loads in steps of the square root of 2, from a fourth to four times of `guess`, 1 to `most`."""
    steps = round(math.log(REACH) / math.log(STEP))
    loads = (round(guess * STEP**step) for step in range(-steps, steps + 1))
    return sorted({min(max(load, 1), most) for load in loads})


def level(rounds: Sequence[Mapping[Cell, Point]], cells: Sequence[Cell], name: str) -> list[float]:
    """`name` (`rate` or `p99`) of each cell, the median over its runs, all taken to one share of the machine; NaN for a cell without runs.

    How a figure moves with the free share is fitted within the cells, a straight line on log scales, the same for all of them. All are
    taken to the share that was free in the quieter quarter of the runs: not beyond what was seen, so a machine that was busy all
    the time stays busy in the result.
    """
    found = [
        [(math.log1p(-min(p["other"], OTHER_MAX)), math.log(p[name])) for one in rounds if (p := one.get(cell, {})).get(name)]
        for cell in cells
    ]  # fmt: skip
    free = [x for points in found for x, _ in points]
    if not free:
        return [math.nan] * len(cells)
    slope, quiet = _slope(found, SIGN[name]), float(np.quantile(free, QUIET))
    return [
        math.exp(statistics.median([y - slope * (x - quiet) for x, y in points])) if points else math.nan
        for points in found
    ]


def _slope(cells: Sequence[Sequence[tuple[float, float]]], sign: int) -> float:
    """The common slope within the cells, 0 to SLOPE_MAX in the direction of `sign`; 0 where the shares hardly differ."""
    moved = [pair for points in cells if points for pair in _centred(points)]
    square = sum(x * x for x, _ in moved)
    if square < len(moved) * SAME**2:
        return 0.0
    return sign * min(max(sign * sum(x * y for x, y in moved) / square, 0.0), SLOPE_MAX)


def _centred(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    middle = [statistics.fmean(column) for column in zip(*points, strict=True)]
    return [(x - middle[0], y - middle[1]) for x, y in points]


def quieter(items: Sequence[T], noise: Callable[[T], float]) -> list[T]:
    """The half, rounded up, with the least `noise`; at least QUIET_MIN where there are so many."""
    count = max((len(items) + 1) // 2, QUIET_MIN)
    return sorted(items, key=noise)[:count]


def _pick(rounds: Sequence[Mapping[Cell, Point]], cells: Sequence[Cell], limits: Limits) -> tuple[float, float | None, float | None]:  # fmt: skip
    """(recommended concurrency, that of the knee or None, the highest that keeps the bound or None); raises NothingFits."""
    pairs = [
        (float(cell[0]), rate, late)
        for cell, rate, late in zip(cells, level(rounds, cells, "rate"), level(rounds, cells, "p99"), strict=True)
        if not math.isnan(rate) and not math.isnan(late)
    ]
    if not pairs:
        raise NothingFits("no run of the decisive cells came to an end")
    loads, rates, lates = ([pair[i] for pair in pairs] for i in range(3))
    found = knee(loads, rates)
    within = None
    if limits.p99_ms is not None:
        within = highest_within(loads, lates, limits.p99_ms)
        if within is None:
            raise NothingFits(f"p99 is {lates[0]:.3g} ms with {loads[0]:g} in flight, more than {limits.p99_ms:g} ms")
    at = found.at if found else None
    return min(at if at is not None else loads[-1], within if within is not None else math.inf), at, within


def _concurrency(
    rounds: Sequence[Mapping[Cell, Point]], cells: Sequence[Cell], limits: Limits
) -> tuple[float, tuple[float, float]]:
    best = _pick(rounds, cells, limits)[0]

    def again(drawn: Sequence[Mapping[Cell, Point]]) -> float:
        try:
            return _pick(drawn, cells, limits)[0]
        except NothingFits:
            return 1.0

    return best, resample(rounds, again)


def resample(rounds: Sequence[Any], figure: Callable[[Sequence[Any]], float]) -> tuple[float, float]:
    """95 % interval of `figure` over rounds drawn again with replacement."""
    draws = random.Random(len(rounds))
    values = sorted(figure([draws.choice(rounds) for _ in rounds]) for _ in range(DRAWS))
    return values[int(0.025 * DRAWS)], values[int(0.975 * DRAWS) - 1]


def _wide(value: float, spread: tuple[float, float]) -> bool:
    return spread[1] > value * (1 + SURE) or spread[0] < value / (1 + SURE)


def _held(rounds: Sequence[Mapping[Cell, Point]], load: float) -> float:
    """Slots in use at about this load."""
    held = [(abs(math.log(cell[0] / load)), p["held"]) for one in rounds for cell, p in one.items() if p.get("held")]
    nearest = min((distance for distance, _ in held), default=0.0)
    return statistics.median([slots for distance, slots in held if distance <= nearest + 0.01] or [load])


def _slots(
    measure: Measure, limits: Limits, concurrency: int, held: float
) -> tuple[int, tuple[float, float], list[str], list[dict[Cell, Point]]]:
    """The smallest pool that keeps KEEP of the rate of an ample one, and its tail, and what was measured. A slot for each hand-off in flight is ample."""
    ample = concurrency
    least = max(1.0, min(held, concurrency) / 3)
    pools = _pools(least, max(least, min(concurrency, held * 2)), ample)
    cells = [(concurrency, pool) for pool in pools]
    rounds = measure("finding the smallest pool", cells, limits.rounds)

    def smallest(drawn: Sequence[Mapping[Cell, Point]]) -> float:
        return _smallest(drawn, concurrency, ample, pools, limits.p99_ms)

    found, spread = smallest(rounds), resample(rounds, smallest)
    for _ in range(POOL_REPEATS):
        if not _wide(found, spread):
            break
        rounds += measure("repeating the pools", cells, limits.rounds)
        found, spread = smallest(rounds), resample(rounds, smallest)
    notes = [f"the pool was not searched below {pools[0]} slots"] if found <= pools[0] > 1 else []
    return math.ceil(round(found, 6)), spread, notes, rounds


def _pools(least: float, most: float, ample: int) -> list[int]:
    steps = max(1, math.ceil(math.log(most / least) / math.log(STEP)))
    pools = {round(least * (most / least) ** (i / steps)) for i in range(steps + 1)}
    return sorted({min(max(pool, 1), ample) for pool in pools} | {ample})


def _smallest(
    rounds: Sequence[Mapping[Cell, Point]], concurrency: int, ample: int, pools: Sequence[int], p99_ms: float | None
) -> float:
    """The smallest of `pools` (rising, the last one `ample`) that keeps KEEP of the last one's rate."""
    cells = [(concurrency, pool) for pool in pools]
    rates, lates = level(rounds, cells, "rate"), level(rounds, cells, "p99")
    known = [
        (float(pool), rate, late) for pool, rate, late in zip(pools, rates, lates, strict=True) if rate > 0 and late > 0
    ]
    if not known or known[-1][0] < ample:
        return float(ample)
    sizes, paces, tails = ([entry[i] for entry in known] for i in range(3))
    least = enough(sizes, paces)
    if p99_ms is None:
        return least
    # A pool may not break the bound, nor, where an ample one is over it already, lengthen the tail by more than it may cost in rate.
    curve = falling(tails)
    allowed = max(p99_ms, curve[-1]) / KEEP
    return max(least, next(size for size, tail in zip(sizes, curve, strict=True) if tail <= allowed))


def _why(rounds: Sequence[Mapping[Cell, Point]], cells: Sequence[Cell], limits: Limits, best: float) -> tuple[str, list[str]]:  # fmt: skip
    _, at, within = _pick(rounds, cells, limits)
    notes = []
    if at is None:
        notes.append(f"the rate still rises at {cells[-1][0]} in flight, the most that was tried")
    if within is not None and (at is None or within < at):
        return f"the bound: p99 reaches {limits.p99_ms:g} ms at {within:.3g} in flight", notes
    if at is None:
        return "the end of the range", notes
    loads = [float(cell[0]) for cell in cells]
    known = [(x, y) for x, y in zip(loads, level(rounds, cells, "p99"), strict=True) if not math.isnan(y)]
    tail = at_load([x for x, _ in known], [y for _, y in known], best, isotonic)
    rates = [(x, y) for x, y in zip(loads, level(rounds, cells, "rate"), strict=True) if not math.isnan(y)]
    top = saturating([x for x, _ in rates], [y for _, y in rates])(loads[-1])
    return f"the knee: more in flight brings less than 5 % more rate (p99 is {tail:.3g} ms there; the most that was tried gives {top:.0f}/s)", notes  # fmt: skip


def _median(values: Sequence[float]) -> Estimate:
    """Median with the 95 % interval of its resampled values."""
    if not values:
        return Estimate(math.nan, math.nan, math.nan)
    return Estimate(statistics.median(values), *resample(list(values), statistics.median))
