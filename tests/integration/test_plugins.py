"""The examples of docs/extending.md on real nodes: each does what the document says, and a run can be judged after its plugin is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from integration.cli import handoff, stress

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PATIENT = ("--set", "limits.transfer_timeout_s=10", "--set", "limits.min_window=0")


def _names(results: dict[str, Any]) -> set[str]:
    return {anomaly["name"] for anomaly in results["anomalies"]}


def _with(example: str) -> tuple[str, ...]:
    return ("--plugin", str(EXAMPLES / example), *PATIENT)


def test_a_fault_of_ones_own(tmp_path: Path) -> None:
    fault = "pause-write:fraction=0.3,ms=5"
    found = stress(tmp_path, *_with("fault.py"), "--fault", fault, "--requests", "2000")
    assert (found["code"], _names(found)) == (0, set())
    assert {entry["name"]: entry["seen"] for entry in found["coverage"]}[f"fault {fault}"] > 100


@pytest.mark.parametrize(("guards", "found"), [("sglang-0.5.12", "false-abort"), ("sglang-0.5.12,+clear_on_take", "")])
def test_a_guard_of_ones_own(tmp_path: Path, guards: str, found: str) -> None:
    late = ("--set", "transport.late_fraction=0.2", "--set", "transport.delay_us=3000")
    result = stress(tmp_path, *_with("guard.py"), "--guards", guards, "--transport", "tcp", *late, "--requests", "3000")
    assert ("false-abort" in _names(result)) == bool(found)


def test_the_mutant_of_a_guard_of_ones_own_is_a_record_of_the_catalogue(tmp_path: Path) -> None:
    ended = handoff(tmp_path, "bugs", "run", "stale-room", "--json", "--plugin", str(EXAMPLES / "guard.py"))
    assert ended.code == 0, ended.err
    (result,) = ended.results["bugs"]
    assert result["caught"]
    assert result["reference_clean"]


def test_an_invariant_of_ones_own_also_when_the_plugin_is_gone(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    shutil.copy(EXAMPLES / "invariant.py", mine)
    late = ("--set", "transport.late_fraction=0.2")
    broken = stress(tmp_path, "--plugin", str(mine), *PATIENT, *late, "--requests", "2000")
    assert (broken["code"], _names(broken)) == (1, {"early-status"})
    assert broken["anomalies"][0]["witnesses"][0]
    kept = stress(tmp_path, "--plugin", str(mine), *PATIENT, *late, "--set", "transport.ack=true", "--requests", "2000")
    assert (kept["code"], _names(kept)) == (0, set())
    mine.unlink()
    again = handoff(tmp_path, "check", broken["folder"], "--json")
    assert (again.code, _names(again.results)) == (1, {"early-status"})
    assert handoff(tmp_path, "stress", "--quiet", str(Path(broken["folder"]) / "scenario.toml")).code == 1


def test_an_engine_of_ones_own(tmp_path: Path) -> None:
    found = stress(tmp_path, *_with("engine.py"), "--engine", "second-look", "--requests", "1000")
    assert (found["code"], found["engine"], found["committed"]) == (0, "second-look", 1200)


def test_faults_of_a_plugin_are_listed(tmp_path: Path) -> None:
    assert "pause-write" in handoff(tmp_path, "faults", "--plugin", str(EXAMPLES / "fault.py")).out


@pytest.mark.parametrize("command", [["stress"], ["swarm"], ["bugs", "run"], ["faults"]])
def test_an_error_in_a_plugin_is_one_line_and_leaves_nothing(tmp_path: Path, command: list[str]) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("x = 1\nraise RuntimeError('no')\n")
    ended = handoff(tmp_path, *command, "--plugin", str(wrong))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"handoff: plugin {wrong}:2: RuntimeError: no\n"
    assert list(tmp_path.iterdir()) == [wrong]
