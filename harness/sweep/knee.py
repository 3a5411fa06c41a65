"""Where more load stops paying: curves through noisy points, and the knee of a rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

KEEP = 0.95
"""The knee is the least load that reaches this share of the highest rate: beyond it more load brings less than 5 % more."""

SHAPES = (1.0, 1.5, 2.0, 3.0, 6.0)
USUAL = 2.0
UNUSUAL = 3.0
"""How much better a shape of twice or half the usual sharpness must fit: of noisy points each draw would choose another one, and with it a
knee that is half or twice as far. Points that lie on a curve choose theirs whatever this is."""
FALLEN = 0.8
"""A rate below this share of the top, beyond the top, has collapsed."""


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


def saturating(loads: Sequence[float], rates: Sequence[float]) -> Callable[[float], float]:
    """The closest curve of a family that rises in proportion to load and then levels off, sooner or later and more or less sharply.

    `top * x / (x**k + half**k)**(1/k)`. Distances are absolute and on a log scale, so that a run which something disturbed moves it
    little; a handful of shapes `k` and a grid of `half` are tried, and a shape far from the usual one must fit better. `loads` and `rates` (n,) above 0.
    """
    x, y = np.log(np.asarray(loads, float)), np.log(np.asarray(rates, float))
    halves = np.exp(np.linspace(x.min() - 2.0, x.max() + 2.0, 400))
    best, found = math.inf, (0.0, 1.0, 1.0)
    for shape in SHAPES:
        form = x - np.log(np.exp(shape * x) + halves[:, None] ** shape) / shape
        tops = np.mean(y - form, axis=1)
        errors = ((y - form - tops[:, None]) ** 2).sum(axis=1)
        errors *= 1.0 + UNUSUAL * abs(math.log2(shape / USUAL))
        at = int(errors.argmin())
        if errors[at] < best:
            best, found = float(errors[at]), (float(tops[at]), float(halves[at]), shape)
    top, half, shape = found
    return lambda load: math.exp(top) * load / (load**shape + half**shape) ** (1.0 / shape)


def knee(loads: Sequence[float], rates: Sequence[float]) -> Knee | None:
    """The knee of a rate over rising `loads`; None where the rate still rises, or there is too little to compare.

    It is the least load at which a curve through the points reaches KEEP of its value at the last load, and that must be twice as much
    or more: a doubling was seen that brought less than 5 %. Points beyond the top that fall clearly below it do not count.
    """
    pairs = _before_collapse([(load, rate) for load, rate in zip(loads, rates, strict=True) if rate > 0 and load > 0])
    if len(pairs) < 3:
        return None
    curve = saturating([load for load, _ in pairs], [rate for _, rate in pairs])
    first, last = float(pairs[0][0]), float(pairs[-1][0])
    top = curve(last)
    if curve(first) >= KEEP * top:
        return Knee(first, curve(first), top)
    at = _reaching(curve, first, last, KEEP * top)
    return Knee(at, KEEP * top, top) if 2 * at <= last or len(pairs) < len(loads) else None


def enough(sizes: Sequence[float], rates: Sequence[float]) -> float:
    """The least size (of a pool, say) at which a curve through the points, rising `sizes`, reaches KEEP of its value at the last.

    The whole curve decides, not the points next to that level: there a rate that is 1 % off moves the answer by a tenth. Both (n,) above 0, n >= 1.
    """
    curve = saturating(sizes, rates)
    wanted = KEEP * curve(sizes[-1])
    return float(sizes[0]) if curve(sizes[0]) >= wanted else _reaching(curve, sizes[0], sizes[-1], wanted)


def _reaching(curve: Callable[[float], float], first: float, last: float, wanted: float) -> float:
    """Where a rising curve that is below `wanted` at `first` and not at `last` reaches it."""
    low, high = math.log(first), math.log(last)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(math.exp(middle)) >= wanted else (middle, high)
    return math.exp(high)


def _before_collapse(pairs: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The points up to where the rate has fallen clearly below its top, for good."""
    if not pairs:
        return pairs
    curve = unimodal([rate for _, rate in pairs])
    fallen = FALLEN * max(curve)
    end = max(i for i, value in enumerate(curve) if value >= fallen)
    return pairs[: end + 1]


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


def at_load(
    loads: Sequence[float], values: Sequence[float], load: float, fit: Callable[[Sequence[float]], list[float]]
) -> float:
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
