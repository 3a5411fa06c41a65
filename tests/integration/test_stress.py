"""The main job: real processes, real sockets, real memory, the verdict and the figures. What is about the command runs it, the rest uses the plugin."""

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
WIDE_MARK = {"requests": 8000, "transport": "tcp", "transport__late_fraction": 0.05, "transport__delay_us": 600}
FIGURES = {
    "verdict", "guards", "transport", "planes", "seed", "requests", "committed", "mismatch_aborts", "false_aborts", "other_aborts",
    "wrong_data", "hung", "leaked", "anomalies", "coverage", "rate_per_s", "latency_ms", "versions", "command",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _temporary_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_RUNS", str(tmp_path))


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


@pytest.mark.handoff(**WIDE_MARK, guards="sglang-0.5.12")
def test_0_5_12_aborts_healthy_requests_because_of_the_stale_room(handoff_run) -> None:
    result = handoff_run()
    assert result.verdict == "invalid"
    assert result.false_aborts > 0
    assert "false-abort" in result.names
    assert result.abort_attribution["stale_room"] == result.false_aborts
    assert result.abort_attribution["unexplained"] == 0


@pytest.mark.handoff(**WIDE_MARK, guards="sglang-0.5.12,+clear_on_free")
def test_the_one_line_fix_makes_0_5_12_valid(handoff_run) -> None:
    assert handoff_run().assert_valid().mismatch_aborts == 0


@pytest.mark.handoff(**WIDE_MARK, guards="sglang-0.5.8")
def test_0_5_8_gives_the_previous_owners_first_token_and_never_aborts(handoff_run) -> None:
    result = handoff_run()
    assert result.mismatch_aborts == result.other_aborts == 0
    misdelivery = next(anomaly for anomaly in result.anomalies if anomaly["name"] == "misdelivery")
    assert misdelivery["detail"]["output_ids"] > 0
    assert misdelivery["detail"]["previous owner of the slot"] > 0


@pytest.mark.handoff(**WIDE_MARK, guards="sglang-0.5.9", workload__hidden_fraction=1)
def test_0_5_9_hands_out_views_that_change(handoff_run) -> None:
    assert {"false-abort", "changed-after-commit"} <= handoff_run().names


@pytest.mark.handoff(requests=8000, transport="tcp", guards="sglang-0.5.12", planes="shared")
def test_on_one_plane_the_window_cannot_open_and_nothing_is_claimed(handoff_run) -> None:
    result = handoff_run()
    assert result.verdict == "unknown"
    assert result.mismatch_aborts == result.window_opened == 0


@pytest.mark.parametrize(("guards", "torn"), [("sglang-0.5.13", True), ("hardened", False)])
@pytest.mark.handoff(requests=8000, transport__reorder="room_first", transport__late_fraction=0.3)
def test_a_row_whose_room_lands_first(handoff_run, guards: str, torn: bool) -> None:
    result = handoff_run(guards=guards)
    assert ("torn" in result.names) is torn
    assert (result.verdict == "invalid") is torn


@pytest.mark.parametrize("ack", [True, False])
@pytest.mark.handoff(**WIDE_MARK, guards="sglang-0.5.12")
def test_acknowledged_writes_keep_released_engines_clean(handoff_run, ack: bool) -> None:
    assert (handoff_run(transport__ack=ack).mismatch_aborts == 0) is ack


@pytest.mark.handoff(**WIDE_MARK, transport__connections=3)
def test_connections_reorder_blocks_and_hardened_bears_it(handoff_run) -> None:
    assert handoff_run().assert_valid().window_opened >= 10


@pytest.mark.handoff(requests=8000)
def test_a_stale_optional_field_is_found_when_it_is_used(handoff_run) -> None:
    assert "stale-field" in handoff_run(guards="hardened,-clear_optional,-requested_fields_only").names
    kept_away = handoff_run(guards="hardened,-clear_optional").assert_valid()
    assert sum(kept_away.unconsumed_stale_fields.values()) > 0


@pytest.mark.handoff(requests=8000, slots=2, concurrency=64)
def test_more_concurrency_than_slots_waits_and_nothing_starves(handoff_run) -> None:
    result = handoff_run().assert_valid()
    assert result.hung == 0
    assert result.reuse_min > 2000


@pytest.mark.parametrize("policy", ["lifo", "random"])
@pytest.mark.handoff(requests=8000, slots=4, concurrency=16, transport__late_fraction=0.1)
def test_other_allocators(handoff_run, policy: str) -> None:
    handoff_run(engine__slot_policy=policy, engine__page_policy=policy).assert_valid()


@pytest.mark.parametrize("arrival", ["poisson", "fixed"])
@pytest.mark.handoff(requests=1500, concurrency=512, workload__rate_per_s=1000, limits__min_window=0)
def test_open_loop(handoff_run, arrival: str) -> None:
    assert handoff_run(workload__arrival=arrival).assert_valid().committed == 1700


@pytest.mark.handoff(**(WIDE_MARK | {"requests": 6000}), topology__prefill=2, topology__decode=2)
def test_several_nodes(handoff_run) -> None:
    assert handoff_run().assert_valid().committed == 6200


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.handoff(requests=2000, transport__late_fraction=0.1)
def test_other_shapes(handoff_run, dtype: str) -> None:
    shape = {"hidden": 2048, "layers": 3, "pages_per_request": 5, "page_bytes": 4096, "hidden_dtype": dtype}
    handoff_run(set={f"engine.{name}": value for name, value in shape.items()}).assert_valid()


def test_scenario_file_and_changes(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('name = "small"\n[workload]\nrequests = 500\nwarmup = 0\n[limits]\nmin_window = 0\n')
    results = stress(tmp_path, str(file), "--set", "workload.concurrency=4", "--seed", "7")
    assert (results["code"], results["requests"], results["seed"]) == (0, 500, 7)
    assert Path(results["folder"]).parent.name == "small"
    assert (tmp_path / "latest").resolve() == Path(results["folder"])


def test_text_says_what_matters(tmp_path: Path) -> None:
    command = ("stress", "--requests", "3000", *WIDE, "--guards", "sglang-0.5.12")
    ended = handoff(tmp_path, *command)
    lines = ended.out.splitlines()
    assert lines[0] == "verdict: INVALID"
    assert any(line.startswith("  false-abort: ") and "95 %" in line for line in lines)
    assert lines[-2].startswith("run folder: ")
    assert lines[-1] == f"repeat with: handoff {' '.join(command)}"
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
