"""Where more load stops paying: curves through noisy points, and the knee of a rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

KEEP = 0.95
"""The knee is the least load that reaches this share of the highest rate: beyond it more load brings less than 5 % more."""


class Knee(msgspec.Struct, frozen=True):
    """`at`: the load (between two points where the curve says so), `rate`: the rate there, `top`: the highest rate."""

    at: float
    rate: float
    top: float


def isotonic(values: Sequence[float]) -> list[float]:
    """The closest never-falling curve (least squares, pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def falling(values: Sequence[float]) -> list[float]:
    """The closest never-rising curve."""
    return [-value for value in isotonic([-value for value in values])]


def unimodal(values: Sequence[float]) -> list[float]:
    """The closest curve that rises to one top and falls from there; either part may be missing."""

    def fit(split: int) -> list[float]:
        return isotonic(values[:split]) + falling(values[split:])

    def badness(curve: Sequence[float]) -> float:
        return sum((a - b) ** 2 for a, b in zip(curve, values, strict=True))

    return min((fit(split) for split in range(len(values) + 1)), key=badness)


def knee(loads: Sequence[float], rates: Sequence[float]) -> Knee | None:
    """The knee of a rate over rising `loads`; None where the rate still rises at the last load, or there is nothing to compare.

    Both are compared on log scales: a load is doubled, a rate gains so many per cent.
    """
    pairs = [(load, rate) for load, rate in zip(loads, rates, strict=True) if rate > 0 and load > 0]
    if len(pairs) < 2:
        return None
    logs = [math.log(load) for load, _ in pairs]
    curve = unimodal([math.log(rate) for _, rate in pairs])
    top = max(curve)
    wanted = top + math.log(KEEP)
    at = next(i for i, value in enumerate(curve) if value >= wanted)
    if at == len(curve) - 1:
        return None
    place = logs[at] if at == 0 else _between(logs[at - 1], logs[at], curve[at - 1], curve[at], wanted)
    return Knee(math.exp(place), math.exp(max(wanted, curve[0]) if at == 0 else wanted), math.exp(top))


def highest_within(loads: Sequence[float], values: Sequence[float], bound: float) -> float | None:
    """The highest load at which a value that grows with load (a latency) is still within `bound`; None where it never is.

    A value that is within the bound everywhere gives the last load.
    """
    pairs = [(math.log(load), math.log(value)) for load, value in zip(loads, values, strict=True) if value > 0]
    curve = isotonic([value for _, value in pairs])
    limit = math.log(bound)
    within = [i for i, value in enumerate(curve) if value <= limit]
    if not within:
        return None
    at = within[-1]
    if at == len(curve) - 1:
        return math.exp(pairs[-1][0])
    return math.exp(_between(pairs[at][0], pairs[at + 1][0], curve[at], curve[at + 1], limit))


def lowest_reaching(loads: Sequence[float], values: Sequence[float], wanted: float) -> float | None:
    """The lowest load at which a value that grows with it reaches `wanted` (above 0); None where it never does."""
    pairs = [(math.log(load), math.log(value)) for load, value in zip(loads, values, strict=True) if value > 0]
    curve = isotonic([value for _, value in pairs])
    limit = math.log(wanted)
    at = next((i for i, value in enumerate(curve) if value >= limit), None)
    if at is None:
        return None
    if at == 0:
        return math.exp(pairs[0][0])
    return math.exp(_between(pairs[at - 1][0], pairs[at][0], curve[at - 1], curve[at], limit))


def at_load(loads: Sequence[float], values: Sequence[float], load: float, fit: Callable[[Sequence[float]], list[float]]) -> float:
    """The value at `load` on a curve through the points, straight between them on log scales and level outside them."""
    pairs = [(math.log(x), math.log(y)) for x, y in zip(loads, values, strict=True) if y > 0]
    curve = fit([y for _, y in pairs])
    place = math.log(load)
    if place <= pairs[0][0]:
        return math.exp(curve[0])
    for i in range(1, len(pairs)):
        if place <= pairs[i][0]:
            return math.exp(_between(curve[i - 1], curve[i], pairs[i - 1][0], pairs[i][0], place))
    return math.exp(curve[-1])


def _between(low: float, high: float, start: float, end: float, wanted: float) -> float:
    """Where between `low` and `high` a straight line from `start` to `end` is at `wanted`."""
    return low if end == start else low + (high - low) * (wanted - start) / (end - start)
