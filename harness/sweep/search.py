"""The search behind `handoff tune`, without processes: it asks for cells to be measured and says what to recommend.

Machines are shared, so every step is made in rounds that measure each of its cells once, and figures are compared as they would be at one
pace of the machine, see `harness.sweep.pace`. How sure a figure is comes from drawing the rounds again, with replacement; what is not
sure is measured again.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harness.sweep.knee import KEEP, at_load, enough, falling, highest_within, isotonic, knee, saturating
from harness.sweep.pace import Cell, Point, Rounds, level, paced, swing

STEP = math.sqrt(2.0)
REACH = 4.0
"""The decisive cells reach from a fourth to four times of the first guess."""
PLATEAU = 3.0
"""A knee is told from cells this many times below and above it, at least: where the rate rises steeply, and where it no longer does."""
TIE = 1.5
DRAWS = 200
SURE = 0.12
"""A recommendation is repeated until its interval is within this share of it, or the rounds are used up."""
REPEATS = 4
"""Times that what decides is measured again until it is sure."""

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
    """Hand-offs a second, and ms, at the usual pace of the machine."""
    swing: tuple[float, float]
    """The machine's pace in the slowest and the fastest twentieth of the time; 1 is the usual one."""
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
    for _ in range(REPEATS):
        if not _wide(best, spread):
            break
        near = cells
        rounds += measure("repeating what decides", near, limits.rounds)
        best, spread = _concurrency(rounds, cells, limits)
    concurrency = max(1, round(best))
    slots, slots_range = ample, (float(ample), float(ample))
    slot_notes: list[str] = []
    final: list[dict[Cell, Point]] = []
    if limits.slots is None:
        slots, slots_range, slot_notes, final = _slots(measure, limits, concurrency, _held(rounds, best))
    final += measure("confirming", [(concurrency, slots)], limits.rounds)
    # A larger pool is worth less than 5 % by now: its runs, minutes apart, tell more of the rate than those of one moment alone.
    points = [p for one in paced(final) for cell, p in one.items() if cell[1] >= slots]
    why, notes = _why(paced(rounds), cells, limits, best)
    p99 = _median([p["p99"] for p in points])
    if limits.p99_ms is not None and p99.low > limits.p99_ms:
        notes.append(
            f"the confirming runs were over the bound: p99 {p99.value:.3g} ms; the machine changed meanwhile, or the pool is too small"
        )
    for what, value, within in (("concurrency", best, spread), ("slots", float(slots), slots_range)):
        if _wide(value, within):
            notes.append(f"not sure: the interval of the {what} reaches beyond 15 % of it; run it again when the machine is quieter, or with more --repeats")  # fmt: skip
    return Advice(
        concurrency, slots, spread, slots_range, _median([p["rate"] for p in points]), p99, swing(rounds + final),
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
    """Measure around the guess, and again around the edge as long as the answer lies at one, or what it is compared with is too near to it."""
    rounds: list[dict[Cell, Point]] = []
    cells: list[Cell] = []
    for title in ("finding the knee", "looking further", "looking further still"):
        new = [cell for c in around(guess, limits.max_concurrency) if (cell := (c, ample)) not in cells]
        # Cells that were measured before tell the pace of this moment from that of the last.
        known = [cell for cell in cells if guess / TIE <= cell[0] <= guess * TIE]
        rounds += measure(title, sorted(new + known), limits.rounds)
        cells = sorted(cells + new)
        low, high = float(cells[0][0]), float(cells[-1][0])
        best, flat = low, None
        try:
            best, flat, _ = _pick(paced(rounds), cells, limits)
        except NothingFits:
            if low <= 1:
                raise
        reach = PLATEAU if best == flat else 1.0
        up, down = high >= limits.max_concurrency or high > reach * best, low <= 1 or low * reach < best
        if up and down:
            break
        guess = high if down else low
    return rounds, cells


def around(guess: float, most: int) -> list[int]:
    """Loads in steps of the square root of 2, from a fourth to four times of `guess`, 1 to `most`."""
    steps = round(math.log(REACH) / math.log(STEP))
    loads = (round(guess * STEP**step) for step in range(-steps, steps + 1))
    return sorted({min(max(load, 1), most) for load in loads})


def _pick(even: Rounds, cells: Sequence[Cell], limits: Limits) -> tuple[float, float | None, float | None]:
    """(recommended concurrency, where the rate has levelled off or None, the highest that keeps the bound or None); raises NothingFits."""
    loads, rates, lates = _curves(even, cells, 0)
    if not loads:
        raise NothingFits("no run of the decisive cells came to an end")
    found = knee(loads, rates)
    within = None
    if limits.p99_ms is not None:
        within = highest_within(loads, lates, limits.p99_ms)
        if within is None:
            raise NothingFits(f"p99 is {lates[0]:.3g} ms with {loads[0]:g} in flight, more than {limits.p99_ms:g} ms")
    at = found.at if found else None
    return min(at if at is not None else loads[-1], within if within is not None else math.inf), at, within


def _curves(even: Rounds, cells: Sequence[Cell], axis: int) -> tuple[list[float], list[float], list[float]]:
    """(sizes, rates, tails) of the cells that have runs; a size is the cell's concurrency (`axis` 0) or its slots (1)."""
    levels = zip(cells, level(even, cells, "rate"), level(even, cells, "p99"), strict=True)
    known = [(float(cell[axis]), rate, late) for cell, rate, late in levels if not math.isnan(rate)]
    sizes, rates, tails = ([entry[i] for entry in known] for i in range(3))
    return sizes, rates, tails


def _concurrency(rounds: Rounds, cells: Sequence[Cell], limits: Limits) -> tuple[float, tuple[float, float]]:
    even = paced(rounds)

    def again(drawn: Rounds) -> float:
        try:
            return _pick(drawn, cells, limits)[0]
        except NothingFits:
            return 1.0

    return _pick(even, cells, limits)[0], resample(even, again)


def resample(rounds: Sequence[Any], figure: Callable[[Sequence[Any]], float]) -> tuple[float, float]:
    """95 % interval of `figure` over rounds drawn again with replacement."""
    draws = random.Random(len(rounds))
    values = sorted(figure([draws.choice(rounds) for _ in rounds]) for _ in range(DRAWS))
    return values[int(0.025 * DRAWS)], values[int(0.975 * DRAWS) - 1]


def _wide(value: float, spread: tuple[float, float]) -> bool:
    return spread[1] > value * (1 + SURE) or spread[0] < value / (1 + SURE)


def _held(rounds: Rounds, load: float) -> float:
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
    found, spread = _smallest_of(rounds, cells, limits)
    for _ in range(REPEATS):
        if not _wide(found, spread):
            break
        rounds += measure("repeating the pools", cells, limits.rounds)
        found, spread = _smallest_of(rounds, cells, limits)
    notes = [f"the pool was not searched below {pools[0]} slots"] if found <= pools[0] > 1 else []
    return math.ceil(round(found, 6)), spread, notes, rounds


def _pools(least: float, most: float, ample: int) -> list[int]:
    steps = max(1, math.ceil(math.log(most / least) / math.log(STEP)))
    pools = {round(least * (most / least) ** (i / steps)) for i in range(steps + 1)}
    return sorted({min(max(pool, 1), ample) for pool in pools} | {ample})


def _smallest_of(rounds: Rounds, cells: Sequence[Cell], limits: Limits) -> tuple[float, tuple[float, float]]:
    even = paced(rounds)

    def smallest(drawn: Rounds) -> float:
        return _smallest(drawn, cells, limits.p99_ms)

    return smallest(even), resample(even, smallest)


def _smallest(even: Rounds, cells: Sequence[Cell], p99_ms: float | None) -> float:
    """The smallest of the pools of `cells` (rising, the last one ample) that keeps KEEP of the last one's rate."""
    sizes, rates, tails = _curves(even, cells, 1)
    ample = cells[-1][1]
    if not sizes or sizes[-1] < ample:
        return float(ample)
    least = enough(sizes, rates)
    if p99_ms is None:
        return least
    # A pool may not break the bound, nor, where an ample one is over it already, lengthen the tail by more than it may cost in rate.
    curve = falling(tails)
    allowed = max(p99_ms, curve[-1]) / KEEP
    return max(least, next(size for size, tail in zip(sizes, curve, strict=True) if tail <= allowed))


def _why(even: Rounds, cells: Sequence[Cell], limits: Limits, best: float) -> tuple[str, list[str]]:
    _, at, within = _pick(even, cells, limits)
    most = cells[-1][0]
    notes = [f"the rate still rises at {most} in flight, the most that was tried"] if at is None and best >= most else []  # fmt: skip
    if within is not None and (at is None or within < at):
        return f"the bound: p99 reaches {limits.p99_ms:g} ms at {within:.3g} in flight at the usual pace", notes  # fmt: skip
    if at is None:
        return "the end of the range", notes
    loads, rates, lates = _curves(even, cells, 0)
    tail, top = at_load(loads, lates, best, isotonic), saturating(loads, rates)(loads[-1])
    return f"the knee: more in flight brings less than 5 % more rate (p99 is {tail:.3g} ms there; the most that was tried gives {top:.0f}/s)", notes  # fmt: skip


def _median(values: Sequence[float]) -> Estimate:
    """Median with the 95 % interval of its resampled values."""
    if not values:
        return Estimate(math.nan, math.nan, math.nan)
    return Estimate(statistics.median(values), *resample(list(values), statistics.median))
