"""Instances of several ranks, each a process: hardened is valid on them, a released protocol is not, and a mutant is caught."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from integration.cli import handoff, start

from harness.history.event import Kind, Verb
from harness.history.reader import open_streams

pytestmark = pytest.mark.integration
DEADLINE_S = 420.0
"""A dozen processes on two busy cores need long to start."""
PATIENCE = (
    "--set",
    "limits.start_timeout_s=240",
    "--set",
    "limits.request_timeout_s=60",
    "--set",
    "limits.transfer_timeout_s=30",
)
STAGES = ("--prefill-pp", "4", "--set", "engine.layers=4", "--concurrency", "64", "--slots", "64")
RANKS = ("--prefill-tp", "2", "--prefill-pp", "2", "--decode-tp", "2")
WIDE = ("--set", "transport.late_fraction=0.1")


def _stress(runs: Path, *arguments: str) -> dict[str, Any]:
    process = start(runs, "stress", "--quiet", "--json", *PATIENCE, *arguments)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode in {0, 1, 3}, err
    return {**json.loads(out), "code": process.returncode}


def _names(results: dict[str, Any]) -> set[str]:
    return {anomaly["name"] for anomaly in results["anomalies"]}


def _authors(results: dict[str, Any]) -> set[str]:
    return {name for anomaly in results["anomalies"] for name in anomaly["detail"]}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_four_stages_that_write_one_slot(tmp_path: Path, transport: str) -> None:
    """sgl-project/sglang#22716: every stage sends the row; with one of the last stage sending it, nothing goes wrong."""
    common = (*STAGES, *WIDE, "--requests", "2000", "--transport", transport)
    released = _stress(tmp_path, *common, "--guards", "sglang-0.5.20")
    assert released["code"] == 1
    assert released["wrong_data"] + released["mismatch_aborts"] > 0
    assert "pipeline stage before the last" in _authors(released)
    hardened = _stress(tmp_path, *common)
    assert hardened["anomalies"] == []
    assert hardened["committed"] == 2200
    assert hardened["leaked"] == hardened["other_aborts"] == 0


def test_ranks_on_both_sides(tmp_path: Path) -> None:
    results = _stress(tmp_path, *RANKS, *WIDE, "--decode", "2", "--requests", "1500")
    assert results["anomalies"] == []
    assert results["committed"] == 1700
    assert len(results["ranks"]) == 4 + 4
    assert results["ranks"]["decode-3"] == "instance 1, tp 1"
    assert not list((tmp_path / "latest" / "history").glob("*.group"))


def test_decode_ranks_that_do_not_agree_are_caught(tmp_path: Path) -> None:
    common = ("--prefill-tp", "2", "--decode-tp", "2", "--requests", "2000", "--fault", "abort:fraction=0.3")
    mutant = _stress(tmp_path, *common, "--guards", "hardened,-min_over_ranks")
    assert "outcome-mismatch" in _names(mutant)
    assert _stress(tmp_path, *common)["anomalies"] == []


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_prefill_rank_that_serves_two_decode_ranks(tmp_path: Path, transport: str) -> None:
    sizes = ("--prefill-tp", "2", "--prefill-pp", "2", "--decode-tp", "4", "--transport", transport)
    faults = ("--fault", "abort:fraction=0.2", "--fault", "hold-write:ms=20,fraction=0.3")
    results = _stress(tmp_path, *sizes, *WIDE, *faults, "--requests", "1500")
    assert results["anomalies"] == []
    assert results["committed"] > 1000
    assert results["leaked"] == results["hung"] == 0
    assert len(results["ranks"]) == 4 + 4


def test_transfer_infos_that_are_counted_one_by_one_leave_a_rank_out(tmp_path: Path) -> None:
    common = ("--decode-tp", "2", "--requests", "2000", "--fault", "duplicate:message=exchange,fraction=0.5")
    mutant = _stress(
        tmp_path, *common, "--guards", "hardened,-count_destinations", "--set", "limits.transfer_timeout_s=2"
    )
    assert mutant["code"] == 1
    assert _names(mutant) == {"hang"}
    results = _stress(tmp_path, *common)
    assert results["anomalies"] == []
    assert results["committed"] == 2200


DP = ("--prefill", "2", "--prefill-dp", "2", "--decode-dp", "2", "--requests", "1500")


def _routed(runs: Path) -> list[bool]:
    """Of each hand-off, whether it went to the DP rank that its room names."""
    [driver] = [stream for stream in open_streams(runs / "latest" / "history") if stream.process == "driver-0"]
    invoked = [r for r in driver.read(0, driver.count) if (r["verb"], r["kind"]) == (Verb.HANDOFF, Kind.INVOKE)]
    return [int(record["c"]) % 2 == int(record["room"]) % 2 for record in invoked]


def test_data_parallel_ranks_where_the_room_says_which(tmp_path: Path) -> None:
    results = _stress(tmp_path, *DP, *WIDE, "--decode-tp", "2", "--fault", "abort:fraction=0.1")
    assert results["anomalies"] == []
    assert results["committed"] > 1200
    assert len(results["ranks"]) == 4 + 4
    assert results["ranks"]["decode-3"] == "instance 0, dp 1, tp 1"
    assert all(_routed(tmp_path))


def test_data_parallel_ranks_where_the_router_says_which(tmp_path: Path) -> None:
    """sgl-project/sglang#22901: the router overrides what the room implies, and decode does not know."""
    common = (*DP, "--set", "workload.dp_routing=least-open", "--set", "limits.transfer_timeout_s=2")
    results = _stress(tmp_path, *common)
    assert results["anomalies"] == []
    assert results["committed"] == 1700
    assert 0.2 < sum(_routed(tmp_path)) / 1700 < 0.8
    few = ("--requests", "200", "--set", "workload.warmup=0", "--set", "limits.request_timeout_s=10")
    mutant = _stress(tmp_path, *common, *few, "--guards", "hardened,-named_dp_rank")
    assert "hang" in _names(mutant)
    assert "decode asked another prefill than the router chose" in _authors(mutant)


def test_bad_sizes_are_told_in_one_line(tmp_path: Path) -> None:
    ended = handoff(tmp_path, "stress", "--prefill-tp", "2", "--decode-tp", "3")
    assert ended.code == 2
    assert ended.err == (
        "handoff: topology.prefill_tp: 2 is not allowed; use a multiple of topology.decode_tp (3), or a number that divides it\n"
    )
    assert not list(tmp_path.iterdir())
