"""Cells as flat values: for JSON with the keys of results.json, and for tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.check.report import Report, interval95
from harness.sweep.grid import Axis
from harness.sweep.stats import Share, Spread, Summary, coverage, spread

_SUMS = (
    "requests", "committed", "mismatch_aborts", "false_aborts", "other_aborts", "wrong_data", "hung", "leaked",
    "window_opened", "refused_writes", "late_messages", "bad_messages", "duration_s", "check_s",
)  # fmt: skip
_COUNTS = ("abort_attribution", "unconsumed_stale_fields")
_MEDIANS = ("rate_per_s", "slot_occupancy")
_QUANTILES = ("latency_ms", "slot_wait_ms")
_UNIONS = ("notes", "not_checked")


def to_json(cell: Summary) -> dict[str, Any]:
    """The axis values (`axes`, and each under its dotted field), the keys of results.json over all repeats, and their spans.

    Counts are sums, rates and latencies medians of the repeats; `repeats` has each run's own figures.
    """
    template = {"check_s": 0.0, **Report().to_dict()}
    pooled = {**template, **_pooled(cell.results)} if cell.results else template
    spans = {
        name: [getattr(cell, name).low, getattr(cell, name).high]
        for name in ("rate", "p50", "p90", "p99", "occupancy", "wait_p50", "wait_p99", "other_cpu")
    }
    shares = {
        name: {"rate": share.rate, "interval": [share.low, share.high], "count": share.count, "of": share.of}
        for name, share in (
            ("false_aborts", cell.false_aborts),
            ("aborts", cell.aborts),
            ("wrong_data", cell.wrong_data),
        )
    }
    found: dict[str, Any] = _finite({
        **pooled,
        **cell.values,
        "axes": {Axis(field, []).short: value for field, value in cell.values.items()},
        "verdict": cell.verdict,
        "runs": cell.runs,
        "failed": cell.failed,
        "errors": cell.errors,
        "shares": shares,
        "spans": spans,
        "repeats": [_short(result) for result in cell.results],
    })  # fmt: skip
    return found


def _pooled(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = dict(results[0])
    found |= {name: sum(result[name] for result in results) for name in _SUMS}
    for name in _COUNTS:
        total: Counter[str] = Counter()
        for result in results:
            total.update(result[name])
        found[name] = dict(total)
    found |= {name: spread(result[name] for result in results).middle for name in _MEDIANS}
    for name in _QUANTILES:
        keys = dict.fromkeys(key for result in results for key in result[name])
        found[name] = {key: spread(result[name].get(key) for result in results).middle for key in keys}
    found |= {name: list(dict.fromkeys(text for result in results for text in result[name])) for name in _UNIONS}
    found["coverage"] = coverage(results)
    found["reuse_min"] = min(result["reuse_min"] for result in results)
    found["reuse_max"] = max(result["reuse_max"] for result in results)
    found["interrupted"] = any(result["interrupted"] for result in results)
    found["complete"] = all(result["complete"] for result in results)
    return found | _anomalies(results)


def _anomalies(results: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Every anomaly over all repeats, seen ones apart from unseen ones; witnesses are the first run's that has them."""
    pooled: dict[str, dict[str, Any]] = {}
    for result in results:
        for item in (*result["anomalies"], *result["unseen"]):
            entry = pooled.setdefault(item["name"], {**item, "count": 0, "of": 0, "detail": Counter(), "witnesses": []})
            entry["count"] += item["count"]
            entry["of"] += item["of"]
            entry["detail"].update(item["detail"])
            entry["witnesses"] = entry["witnesses"] or item["witnesses"]
    for entry in pooled.values():
        entry["rate"] = entry["count"] / entry["of"] if entry["of"] else 0.0
        entry["interval"] = list(interval95(entry["count"], entry["of"]))
        entry["detail"] = dict(entry["detail"])
    return {
        "anomalies": [entry for entry in pooled.values() if entry["count"]],
        "unseen": [entry for entry in pooled.values() if not entry["count"]],
    }


def _short(result: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "verdict",
        "seed",
        "requests",
        "rate_per_s",
        "latency_ms",
        "false_aborts",
        "wrong_data",
        "folder",
        "command",
    )
    return {name: result[name] for name in names}


def flat(cell: Summary) -> dict[str, Any]:
    """One row of the CSV and Parquet files: axis values by dotted field, then figures with their units last."""
    row: dict[str, Any] = {
        **cell.values,
        "verdict": cell.verdict,
        "runs": cell.runs,
        "failed": cell.failed,
        "requests": cell.requests,
    }
    spans: dict[str, Spread] = {
        "rate_per_s": cell.rate, "p50_ms": cell.p50, "p90_ms": cell.p90, "p99_ms": cell.p99,
        "slot_occupancy": cell.occupancy, "slot_wait_p50_ms": cell.wait_p50, "slot_wait_p99_ms": cell.wait_p99,
        "reuse_min": cell.reuse, "other_cpu": cell.other_cpu,
    }  # fmt: skip
    for name, span in spans.items():
        row |= {name: _none(span.middle), f"{name}.low": _none(span.low), f"{name}.high": _none(span.high)}
    shares: dict[str, Share] = {
        "false_abort": cell.false_aborts, "abort": cell.aborts, "wrong_data": cell.wrong_data, "window_opened": cell.window,
    }  # fmt: skip
    for name, share in shares.items():
        row |= {f"{name}_count": share.count, f"{name}_rate": share.rate, f"{name}_rate.low": share.low, f"{name}_rate.high": share.high}  # fmt: skip
    return row | {"error": "; ".join(cell.errors)}


def rows(cells: Iterable[Summary]) -> list[dict[str, Any]]:
    """`flat` of each."""
    return [flat(cell) for cell in cells]


def _none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _finite(value: Any) -> Any:
    """JSON has no NaN: null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
