"""Runs that nobody made."""

from __future__ import annotations

from typing import Any

from harness.check.report import Anomaly, Coverage, Report, interval95
from harness.sweep.folder import Run
from harness.sweep.plan import Job


def results(**change: Any) -> dict[str, Any]:
    """The content of a valid run's results.json, with changes."""
    report = Report(
        verdict="valid", requests=1000, committed=1000, rate_per_s=1000.0, duration_s=1.0, complete=True, slot_occupancy=0.5,
        latency_ms={"p50": 1.0, "p90": 2.0, "p99": 4.0, "p99.9": 5.0, "max": 6.0}, slot_wait_ms={"p50": 0.1, "p99": 0.4}, reuse_min=20,
        window_opened=30, coverage=[Coverage("status before data", 30, 10, met=True, meaning=""), Coverage("rate", 1000.0, 0.0, met=True, meaning="")],
    )  # fmt: skip
    extra = {
        "guards": "hardened",
        "transport": "tcp",
        "planes": "split",
        "seed": 1,
        "check_s": 0.1,
        "versions": {},
        "machine": {},
    }
    return {**report.to_dict(), **extra, "command": "handoff stress", "folder": "somewhere", **change}


def short(window: int) -> dict[str, Any]:
    """A run that is unknown only because it saw its window too seldom."""
    entry = {"name": "status before data", "seen": window, "needed": 10, "met": window >= 10, "meaning": ""}
    return results(verdict="unknown", window_opened=window, coverage=[entry])


def aborted(count: int, of: int = 1000, **change: Any) -> dict[str, Any]:
    """A run with false aborts."""
    found = Anomaly("false-abort", "", count, of, count / of, interval95(count, of))
    entry = {**vars(found), "interval": list(found.interval)}
    return results(
        verdict="invalid", requests=of, false_aborts=count, mismatch_aborts=count, anomalies=[entry], **change
    )


def run(
    values: dict[str, Any], repeat: int = 1, content: dict[str, Any] | None = None, error: str | None = None
) -> Run:
    """One run; valid unless something else is given."""
    made = None if error else content or results()
    return Run(Job(values, repeat), made, error, f"cells/{Job(values, repeat).name}/x")
