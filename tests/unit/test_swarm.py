"""What a swarm makes of its runs: one run's fault may have no occasion, the swarm's may not."""

from __future__ import annotations

from typing import Any

import pytest

from harness import swarm

HIT = {"name": "fault hold-write: where=kv", "seen": 4, "needed": 1, "met": True}
MISSED = {"name": "fault drop: message=status", "seen": 0, "needed": 1, "met": False}
COMMITTED = {"name": "committed", "seen": 0, "needed": 1, "met": False}


def _results(verdict: str, coverage: list[dict[str, Any]], **change: Any) -> dict[str, Any]:
    return {
        "verdict": verdict, "requests": 10, "committed": 9, "coverage": coverage, "anomalies": [], "not_checked": [],
        "complete": True, "folder": "x", **change,
    }  # fmt: skip


def _counted(*runs: dict[str, Any]) -> swarm.Swarm:
    found = swarm.Swarm()
    for results in runs:
        swarm._count(found, swarm.scenario({}, 1, found.runs, kill=False), results)
    return found


def test_hits_of_all_runs_count_together() -> None:
    found = _counted(_results("valid", [HIT]), _results("unknown", [HIT, MISSED]))
    assert found.hits == {"hold-write": 8}
    assert (found.runs, found.requests, found.bad) == (2, 20, [])
    assert "drop" in found.never
    assert "hold-write" not in found.never


@pytest.mark.parametrize(
    "results",
    [
        _results("invalid", [HIT], anomalies=[{"name": "hang", "count": 1}]),
        _results("unknown", [MISSED, COMMITTED]),
        _results("unknown", [MISSED], not_checked=["leak: no census at rest was recorded"]),
        _results("unknown", [MISSED], complete=False),
    ],
    ids=["invalid", "uncovered", "unchecked", "cut off"],
)
def test_what_is_wrong_with_a_run_is_shown(results: dict[str, Any]) -> None:
    (bad,) = _counted(results).bad
    assert bad["verdict"] == results["verdict"]


def test_a_swarm_that_did_everything_leaves_nothing_out() -> None:
    found = _counted(_results("valid", [{**HIT, "name": f"fault {kind}: x=1"} for kind in swarm.KINDS]))
    assert found.never == []
    assert {"abort", "partition", "slow", "burst"} <= swarm.KINDS
