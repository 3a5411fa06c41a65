"""Faults on real nodes: what they find in a release, that the reference bears them, that what is killed comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.cli import handoff, nothing_left, start, stress, under_load, until

pytestmark = pytest.mark.integration
WRITES = (
    "--fault",
    "abort:fraction=0.2,ms=40",
    "--fault",
    "hold-write:ms=40,where=kv",
    "--set",
    "engine.page_policy=lifo",
)
PATIENT = ("--set", "limits.transfer_timeout_s=10", "--set", "limits.min_window=0")


def _names(results: dict) -> set[str]:
    return {anomaly["name"] for anomaly in results["anomalies"]}


def test_aborts_under_held_writes_give_foreign_kv_before_the_deferred_release(tmp_path: Path) -> None:
    found = stress(tmp_path, "--guards", "sglang-0.5.12", "--duration", "10", *WRITES, *PATIENT)
    assert found["code"] == 1
    assert {"foreign-kv", "foreign-write"} <= _names(found)


@pytest.mark.parametrize("guards", ["sglang-0.5.20", "hardened"])
def test_and_none_after_it(tmp_path: Path, guards: str) -> None:
    found = stress(tmp_path, "--guards", guards, "--duration", "4", *WRITES, *PATIENT)
    assert (found["code"], _names(found)) == (0, set())
    assert found["other_aborts"] > 0


@pytest.mark.parametrize("node", ["prefill", "decode"])
def test_a_killed_node_comes_back_and_serves(tmp_path: Path, node: str) -> None:
    steady = ("--set", "workload.arrival=fixed", "--set", "workload.rate_per_s=500")
    with nothing_left() as watch:
        fault = f"kill:node={node},every_s=1,count=1"
        driver = start(
            tmp_path, "stress", "--quiet", "--json", "--requests", "1000", "--fault", fault, *steady, *PATIENT
        )
        until(lambda: under_load(tmp_path, 100), "load")
        watch(driver)
        out, err = driver.communicate(timeout=60)
    assert driver.returncode == 0, out[-2000:] + err
    results = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json").results
    assert results["committed"] > 600
    assert results["resources"].keys() == {"prefill-0", "decode-0"}


def test_a_killed_registry_comes_back_knows_everybody_and_disturbs_no_request(tmp_path: Path) -> None:
    steady = ("--set", "workload.arrival=fixed", "--set", "workload.rate_per_s=300")
    fault = "kill:node=registry,every_s=1"
    with nothing_left() as watch:
        driver = start(
            tmp_path, "stress", "--quiet", "--json", "--requests", "1500", "--decode", "2", "--fault", fault, *steady, *PATIENT
        )  # fmt: skip
        until(lambda: under_load(tmp_path, 100), "load")
        watch(driver)
        out, err = driver.communicate(timeout=60)
    assert driver.returncode == 0, out[-2000:] + err
    results = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json").results
    assert results["committed"] == results["requests"]
    assert {entry["name"]: entry["seen"] for entry in results["coverage"]}[f"fault {fault}"] > 1


def test_nodes_that_are_killed_while_nobody_can_look_them_up_are_found_once_the_registry_is_back(
    tmp_path: Path,
) -> None:
    away = (
        "--fault",
        "kill:node=registry,every_s=1,for_ms=1500,count=2",
        "--fault",
        "kill:node=prefill,every_s=1.2,count=2",
    )
    steady = ("--set", "workload.arrival=fixed", "--set", "workload.rate_per_s=300")
    found = stress(tmp_path, "--prefill", "2", "--requests", "2000", *away, *steady, *PATIENT)
    assert (found["code"], _names(found)) == (0, set())
    assert found["committed"] > 1500


@pytest.mark.parametrize("fault", ["duplicate-room:fraction=1,count=1000", "bad-room:fraction=1,count=1000"])
def test_rooms_that_must_be_refused_are_and_the_nodes_go_on(tmp_path: Path, fault: str) -> None:
    found = stress(tmp_path, "--requests", "3000", "--fault", fault, *PATIENT)
    assert (found["code"], _names(found)) == (0, set())
    assert (found["committed"], found["other_aborts"], found["bad_messages"]) == (3200, 0, 0)
    assert {entry["name"]: entry["seen"] for entry in found["coverage"]}[f"fault {fault}"] == 1000


@pytest.mark.parametrize("node", ["prefill", "decode"])
def test_a_full_queue_loses_messages_and_nothing_else(tmp_path: Path, node: str) -> None:
    steady = (
        "--set",
        "workload.arrival=fixed",
        "--set",
        "workload.rate_per_s=200",
        "--concurrency",
        "1024",
        "--slots",
        "512",
    )
    fault = f"fill-queue:node={node},every_s=1,for_ms=1000,count=2"
    found = stress(
        tmp_path,
        "--fault",
        fault,
        "--duration",
        "5",
        *steady,
        "--set",
        "limits.min_window=0",
        "--set",
        "limits.min_reuse=0",
    )
    assert (found["code"], _names(found)) == (0, set())
    assert found["other_aborts"] > 0
    assert found["committed"] > 300


def test_a_fault_that_never_fired_is_no_pass(tmp_path: Path) -> None:
    found = stress(tmp_path, "--requests", "1000", "--fault", "delay:message=abort", *PATIENT)
    assert (found["code"], _names(found)) == (3, set())


@pytest.mark.parametrize(("guards", "found"), [("hardened", set()), ("hardened,-repeat_abort", {"leak"})])
def test_a_lost_notice_is_asked_for_again(tmp_path: Path, guards: str, found: set[str]) -> None:
    lost = ("--fault", "drop:message=drained,fraction=1,count=4")
    assert (
        _names(stress(tmp_path, "--guards", guards, "--requests", "3000", *lost, "--set", "limits.min_window=0"))
        == found
    )


def test_a_mutant_of_the_catalogue_is_caught_and_the_reference_is_clean(tmp_path: Path) -> None:
    ended = handoff(tmp_path, "bugs", "run", "sglang-27374", "--json")
    assert ended.code == 0, ended.err
    (result,) = ended.results["bugs"]
    assert result["caught"]
    assert result["reference_clean"]
    assert result["anomaly"] == "false-abort"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["stress", "--fault", "abort:fraction=7"],
            "fault abort: fraction: '7' is not allowed; use a number from 0 to 1",
        ),
        (["stress", "--fault", "nope"], "fault: 'nope' is not allowed; use one of abort"),
        (["stress", "--set", "mutants=['nope']"], "mutants: 'nope' is not allowed; use one of success_on_failure"),
        (["bugs", "run", "nope"], "bug: 'nope' is not allowed"),
        (["bugs", "run", "--seeds", "0"], "--seeds: '0' is not allowed"),
        (["swarm", "--requests", "x"], "--requests: 'x' is not allowed"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    ended = handoff(tmp_path, *arguments)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []
