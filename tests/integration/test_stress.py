"""The main job, as its user runs it: real processes, real sockets, real memory, the verdict and the figures."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from integration.cli import handoff, stress

pytestmark = pytest.mark.integration
SMALL = ("--requests", "8000")
WIDE = ("--transport", "tcp", "--set", "transport.late_fraction=0.05", "--set", "transport.delay_us=600")
"""A window that opens hundreds of times in a small run, on a fast machine too."""
FIGURES = {
    "verdict", "guards", "transport", "planes", "seed", "requests", "committed", "mismatch_aborts", "false_aborts", "other_aborts",
    "wrong_data", "hung", "leaked", "anomalies", "coverage", "rate_per_s", "latency_ms", "versions", "command",
}  # fmt: skip


def names(results: dict) -> set[str]:
    return {anomaly["name"] for anomaly in results["anomalies"]}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_hardened_is_valid_and_the_window_was_open(tmp_path: Path, transport: str) -> None:
    results = stress(tmp_path, *SMALL, "--transport", transport)
    assert (results["code"], results["verdict"]) == (0, "valid")
    assert results["requests"] == results["committed"] == 8200
    assert results["window_opened"] >= 10
    assert results["reuse_min"] >= 200
    assert results["anomalies"] == []
    assert set(results) >= FIGURES
    assert set(results["latency_ms"]) == {"p50", "p90", "p99", "p99.9", "max"}


def test_results_and_check_agree(tmp_path: Path) -> None:
    results = stress(tmp_path, "--requests", "4000", *WIDE, "--guards", "sglang-0.5.12")
    again = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json")
    assert again.code == results["code"] == 1
    timing = ("check_s", "code")
    assert {k: v for k, v in again.results.items() if k not in timing} == {
        k: v for k, v in results.items() if k not in timing
    }
    assert json.loads((tmp_path / "latest" / "results.json").read_text())["verdict"] == "invalid"


def test_0_5_12_aborts_healthy_requests_because_of_the_stale_room(tmp_path: Path) -> None:
    results = stress(tmp_path, *SMALL, *WIDE, "--guards", "sglang-0.5.12")
    assert results["code"] == 1
    assert results["false_aborts"] > 0
    assert "false-abort" in names(results)
    assert results["abort_attribution"]["stale_room"] == results["false_aborts"]
    assert results["abort_attribution"]["unexplained"] == 0


def test_the_one_line_fix_makes_0_5_12_valid(tmp_path: Path) -> None:
    results = stress(tmp_path, *SMALL, *WIDE, "--guards", "sglang-0.5.12,+clear_on_free")
    assert (results["code"], results["mismatch_aborts"]) == (0, 0)


def test_0_5_8_gives_the_previous_owners_first_token_and_never_aborts(tmp_path: Path) -> None:
    results = stress(tmp_path, *SMALL, *WIDE, "--guards", "sglang-0.5.8")
    assert results["code"] == 1
    assert results["mismatch_aborts"] == results["other_aborts"] == 0
    misdelivery = next(anomaly for anomaly in results["anomalies"] if anomaly["name"] == "misdelivery")
    assert misdelivery["detail"]["output_ids"] > 0
    assert misdelivery["detail"]["previous owner of the slot"] > 0


def test_0_5_9_hands_out_views_that_change(tmp_path: Path) -> None:
    results = stress(tmp_path, *SMALL, *WIDE, "--guards", "sglang-0.5.9", "--set", "workload.hidden_fraction=1")
    assert {"false-abort", "changed-after-commit"} <= names(results)


def test_on_one_plane_the_window_cannot_open_and_nothing_is_claimed(tmp_path: Path) -> None:
    results = stress(tmp_path, *SMALL, "--transport", "tcp", "--guards", "sglang-0.5.12", "--planes", "shared")
    assert (results["code"], results["verdict"]) == (3, "unknown")
    assert results["mismatch_aborts"] == results["window_opened"] == 0


@pytest.mark.parametrize(("guards", "torn"), [("sglang-0.5.13", True), ("hardened", False)])
def test_a_row_whose_room_lands_first(tmp_path: Path, guards: str, torn: bool) -> None:
    results = stress(
        tmp_path,
        *SMALL,
        "--guards",
        guards,
        "--set",
        "transport.reorder=room_first",
        "--set",
        "transport.late_fraction=0.3",
    )
    assert ("torn" in names(results)) is torn
    assert (results["verdict"] == "invalid") is torn


@pytest.mark.parametrize("ack", ["true", "false"])
def test_acknowledged_writes_keep_released_engines_clean(tmp_path: Path, ack: str) -> None:
    results = stress(tmp_path, *SMALL, *WIDE, "--guards", "sglang-0.5.12", "--set", f"transport.ack={ack}")
    assert (results["mismatch_aborts"] == 0) is (ack == "true")


def test_connections_reorder_blocks_and_hardened_bears_it(tmp_path: Path) -> None:
    results = stress(tmp_path, *SMALL, *WIDE, "--set", "transport.connections=3")
    assert results["code"] == 0
    assert results["window_opened"] >= 10


def test_a_stale_optional_field_is_found_when_it_is_used(tmp_path: Path) -> None:
    used = stress(tmp_path, *SMALL, "--guards", "hardened,-clear_optional,-requested_fields_only")
    assert "stale-field" in names(used)
    kept_away = stress(tmp_path, *SMALL, "--guards", "hardened,-clear_optional")
    assert kept_away["code"] == 0
    assert sum(kept_away["unconsumed_stale_fields"].values()) > 0


def test_more_concurrency_than_slots_waits_and_nothing_starves(tmp_path: Path) -> None:
    results = stress(tmp_path, *SMALL, "--slots", "2", "--concurrency", "64")
    assert (results["code"], results["hung"]) == (0, 0)
    assert results["reuse_min"] > 2000


@pytest.mark.parametrize("policy", ["lifo", "random"])
def test_other_allocators(tmp_path: Path, policy: str) -> None:
    results = stress(
        tmp_path, *SMALL, "--set", f"engine.slot_policy={policy}", "--set", f"engine.page_policy={policy}", "--slots", "4",
        "--concurrency", "16", "--set", "transport.late_fraction=0.1",
    )  # fmt: skip
    assert results["code"] == 0


@pytest.mark.parametrize("arrival", ["poisson", "fixed"])
def test_open_loop(tmp_path: Path, arrival: str) -> None:
    results = stress(
        tmp_path, "--requests", "1500", "--set", f"workload.arrival={arrival}", "--set", "workload.rate_per_s=1000",
        "--concurrency", "512", "--set", "limits.min_window=0",
    )  # fmt: skip
    assert (results["code"], results["committed"]) == (0, 1700)


def test_several_nodes(tmp_path: Path) -> None:
    results = stress(
        tmp_path,
        "--requests",
        "6000",
        "--set",
        "topology.prefill=2",
        "--set",
        "topology.decode=2",
        *WIDE,
    )
    assert (results["code"], results["committed"]) == (0, 6200)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_shapes(tmp_path: Path, dtype: str) -> None:
    results = stress(
        tmp_path, "--requests", "2000", "--set", f"engine.hidden_dtype={dtype}", "--set", "engine.hidden=2048",
        "--set", "engine.layers=3", "--set", "engine.pages_per_request=5", "--set", "engine.page_bytes=4096",
        "--set", "transport.late_fraction=0.1",
    )  # fmt: skip
    assert results["code"] == 0


def test_scenario_file_and_changes(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('name = "small"\n[workload]\nrequests = 500\nwarmup = 0\n[limits]\nmin_window = 0\n')
    results = stress(tmp_path, str(file), "--set", "workload.concurrency=4", "--seed", "7")
    assert (results["code"], results["requests"], results["seed"]) == (0, 500, 7)
    assert Path(results["folder"]).parent.name == "small"
    assert (tmp_path / "latest").resolve() == Path(results["folder"])


def test_text_says_what_matters(tmp_path: Path) -> None:
    ended = handoff(tmp_path, "stress", "--requests", "3000", "--transport", "tcp", "--guards", "sglang-0.5.12")
    lines = ended.out.splitlines()
    assert lines[0] == "verdict: INVALID"
    assert any(line.startswith("  false-abort: ") and "95 %" in line for line in lines)
    assert lines[-2].startswith("run folder: ")
    assert lines[-1] == "repeat with: handoff stress --requests 3000 --transport tcp --guards sglang-0.5.12"
    assert "waiting for the nodes" in ended.err or "hand-offs" in ended.err
    assert "\x1b" not in ended.out + ended.err


def test_nodes_started_by_hand(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        registry = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    programs = (
        ["harness.registry", "--inbox", registry],
        ["decode_node", "--cluster", "by-hand"],
        ["prefill_stub", "--cluster", "by-hand"],
    )
    programs[0].extend(["--cluster", "by-hand"])
    nodes = [subprocess.Popen([sys.executable, "-m", *program, "--registry", registry]) for program in programs]
    try:
        results = stress(tmp_path, *SMALL, "--transport", "tcp", "--registry", registry, "--cluster", "by-hand")
        assert (results["code"], results["committed"]) == (0, 8200)
        assert [node.wait(15) for node in nodes] == [0, 0, 0]  # they leave with the run
    finally:
        for node in nodes:
            node.kill()
            node.wait()


def test_a_run_leaves_a_page_and_can_be_shown_again(tmp_path: Path) -> None:
    ended = handoff(tmp_path, "stress", "--quiet", "--requests", "2000")
    latest = tmp_path / "latest"
    page = latest / "report.html"
    assert f"report.html there, or: handoff report {latest.resolve()})" in ended.out
    first = page.read_text()
    page.unlink()
    assert handoff(tmp_path, "report", str(latest)).out == f"report: {page}\n"
    assert page.read_text() == first
    assert handoff(tmp_path, "report", str(latest), "--format", "github").out.startswith("## Hand-off stress: ")
    assert handoff(tmp_path, "report", str(latest), "--format", "text", "-o", str(tmp_path / "r.txt")).code == 0
    assert (tmp_path / "r.txt").read_text() == ended.out
    bad = handoff(tmp_path, "report", str(tmp_path))
    assert (bad.code, bad.err.count("\n")) == (2, 1)
