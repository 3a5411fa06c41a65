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


def test_topologies_are_drawn_for_blocks_of_runs_and_leave_the_faults_as_they_were() -> None:
    drawn = [swarm.scenario({}, 7, number, kill=False, topologies=True) for number in range(40 * swarm.BLOCK)]
    shapes = [swarm.shape(one.topology) for one in drawn]
    assert len(set(shapes)) == len(swarm.TOPOLOGIES)
    for first in range(0, len(shapes), swarm.BLOCK):
        assert len(set(shapes[first : first + swarm.BLOCK])) == 1
    assert [one.faults for one in drawn[:20]] == [swarm.scenario({}, 7, n, kill=False).faults for n in range(20)]


def test_a_field_that_is_set_for_all_runs_is_not_drawn() -> None:
    fixed = {"topology.prefill_pp": 1, "topology.decode_tp": 2}
    for number in range(0, 40 * swarm.BLOCK, swarm.BLOCK):
        one = swarm.scenario(fixed, 7, number, kill=True, topologies=True)
        assert (one.topology.prefill_pp, one.topology.decode_tp) == (1, 2)
        assert not any(fault.startswith("kill") for fault in one.faults)


def test_a_shape_names_what_is_not_one() -> None:
    topology = swarm.scenario({"topology.decode_tp": 2, "topology.prefill": 3}, 1, 0, kill=False).topology
    assert swarm.shape(topology) == "prefill=3 decode_tp=2"
    assert swarm.shape(swarm.scenario({}, 1, 0, kill=False).topology) == "1 x 1"
