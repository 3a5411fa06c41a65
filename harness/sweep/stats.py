"""What the repeats of one cell say together: pooled shares with intervals, medians with the span of the repeats."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from harness.check.report import interval95
from harness.sweep.folder import Run
from harness.sweep.plan import key

ORDER = ("failed", "invalid", "unknown", "valid")
"""Verdicts of a cell, worst first."""


class Share(msgspec.Struct, frozen=True):
    """How many of how many, with the 95 % interval of the rate."""

    count: int
    of: int
    rate: float
    low: float
    high: float


class Spread(msgspec.Struct, frozen=True):
    """Median of the repeats, and the smallest and largest of them; NaN where there is none."""

    middle: float
    low: float
    high: float


class Summary(msgspec.Struct, frozen=True):
    """One cell. Latencies and waits in ms, rates in hand-offs a second, occupancy 0 to 1."""

    values: dict[str, Any]
    verdict: str
    runs: int
    failed: int
    errors: list[str]
    requests: int
    rate: Spread
    p50: Spread
    p90: Spread
    p99: Spread
    false_aborts: Share
    aborts: Share
    """Every abort, false ones included."""
    wrong_data: Share
    occupancy: Spread
    wait_p50: Spread
    wait_p99: Spread
    reuse: Spread
    """Tenures in one run of the slot that had the fewest."""
    window: Share
    """Hand-offs that saw their status before their data."""
    other_cpu: Spread
    """Share of the cores' time that went to other work."""
    results: list[dict[str, Any]]


def share(counts: Sequence[tuple[int, int]]) -> Share:
    """Pool (count, of) of several repeats.

    Repeats that differ more than chance allows widen the interval: counts are taken as if there were fewer by their dispersion
    (Pearson's chi-square over its degrees of freedom, at least 1). Nothing seen in n: at most 3/n.
    """
    count, of = sum(c for c, _ in counts), sum(n for _, n in counts)
    rate = count / of if of else 0.0
    thin = _dispersion([(c, n) for c, n in counts if n], rate)
    low, high = interval95(count, of)
    if count and thin > 1.0:
        low, high = _thinned(rate, of / thin)
    return Share(count, of, rate, low, high)


def _dispersion(counts: Sequence[tuple[int, int]], rate: float) -> float:
    if len(counts) < 2 or not 0.0 < rate < 1.0:
        return 1.0
    chi = sum((c - n * rate) ** 2 / (n * rate * (1.0 - rate)) for c, n in counts)
    return max(1.0, chi / (len(counts) - 1))


def _thinned(rate: float, of: float) -> tuple[float, float]:
    """Wilson's interval for `rate` seen in `of` cases, which need not be a whole number."""
    z = 1.959963984540054
    scale = 1.0 + z * z / of
    centre = (rate + z * z / (2 * of)) / scale
    reach = z * math.sqrt(rate * (1 - rate) / of + z * z / (4 * of * of)) / scale
    return max(0.0, centre - reach), min(1.0, centre + reach)


def spread(values: Iterable[float | None]) -> Spread:
    """Median and span of those that are numbers."""
    known = [float(value) for value in values if value is not None and not math.isnan(value)]
    if not known:
        return Spread(math.nan, math.nan, math.nan)
    return Spread(statistics.median(known), min(known), max(known))


def verdict(runs: Sequence[Run]) -> str:
    """A cell's verdict: failed, then invalid, then unknown, then valid; what coverage needs may be met by all repeats together."""
    results = [run.results for run in runs if run.results is not None]
    if len(results) < len(runs) or not results:
        return "failed"
    if any(result["verdict"] == "invalid" for result in results):
        return "invalid"
    short = [result for result in results if result["verdict"] == "unknown"]
    if not all(_only_short(result) for result in short):
        return "unknown"
    return "valid" if all(item["met"] for item in coverage(results)) else "unknown"


def _only_short(result: Mapping[str, Any]) -> bool:
    """Nothing is wrong with a run but that it was too short to cover what it must."""
    sound = result["complete"] and not result["interrupted"] and not result["not_checked"]
    return bool(sound and any(not item["met"] for item in result["coverage"]))


def coverage(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Coverage of several repeats: counts add up, of rates the least counts."""
    pooled = []
    for items in zip(*(result["coverage"] for result in results), strict=True):
        seen = [item["seen"] for item in items]
        total = min(seen) if items[0]["name"] == "rate" else sum(seen)
        pooled.append({**items[0], "seen": total, "met": total >= items[0]["needed"]})
    return pooled


def summarize(values: Mapping[str, Any], runs: Sequence[Run]) -> Summary:
    """Put the repeats of one cell together; `runs` are all of the cell `values`."""
    results = [run.results for run in runs if run.results is not None]

    def pooled(*names: str) -> Share:
        return share([(sum(int(result[name]) for name in names), int(result["requests"])) for result in results])

    def over(name: str, inner: str | None = None) -> Spread:
        return spread(result[name].get(inner) if inner else result[name] for result in results)

    return Summary(
        values=dict(values),
        verdict=verdict(runs),
        runs=len(runs),
        failed=len(runs) - len(results),
        errors=[run.error for run in runs if run.error],
        requests=sum(int(result["requests"]) for result in results),
        rate=over("rate_per_s"),
        p50=over("latency_ms", "p50"),
        p90=over("latency_ms", "p90"),
        p99=over("latency_ms", "p99"),
        false_aborts=pooled("false_aborts"),
        aborts=pooled("mismatch_aborts", "other_aborts"),
        wrong_data=pooled("wrong_data"),
        occupancy=over("slot_occupancy"),
        wait_p50=over("slot_wait_ms", "p50"),
        wait_p99=over("slot_wait_ms", "p99"),
        reuse=over("reuse_min"),
        window=pooled("window_opened"),
        other_cpu=spread(run.other_cpu for run in runs if run.results is not None),
        results=results,
    )


def summaries(cells: Iterable[Mapping[str, Any]], runs: Iterable[Run]) -> list[Summary]:
    """One for each cell that has a run, in the order of `cells`."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run.job.values), []).append(run)
    return [summarize(cell, sorted(found[key(cell)], key=lambda run: run.job.repeat)) for cell in cells if key(cell) in found]  # fmt: skip
