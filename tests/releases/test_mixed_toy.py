"""A hosted decode beside a reference prefill, with a toy release: what the prefill side does to order, and who is blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from releases import toy_mixed

from harness import scenario as scenarios
from harness import stress
from harness.releases import hosted

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STATUS_FIRST = "hold-write:fraction=0.2,ms=40,where=row,status=before"


@pytest.fixture(autouse=True)
def _no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "base_folders", lambda _: [])


def run(folder: Path, bugs: tuple[str, ...], *faults: str, ack: bool = False) -> dict[str, Any]:
    """A run of 600 hand-offs, each fault's doings drawn from the seed; a toy carries neither logprobs nor hidden states."""
    tree = toy_mixed.write(folder / "tree", *bugs)
    wanted = {
        "engine.name": f"decode=path:{tree}", "transport.name": "tcp", "transport.late_fraction": 0.0, "transport.ack": ack,
        "workload.requests": 600, "workload.warmup": 64, "workload.logprob_fraction": 0.0, "workload.hidden_fraction": 0.0,
        "faults": list(faults),
    }  # fmt: skip
    return stress.run(scenarios.load(None, wanted), folder / "runs", ["handoff"]).results


def names(results: dict[str, Any]) -> set[str]:
    return {anomaly["name"] for anomaly in results["anomalies"]}


def test_a_good_release_stands_a_prefill_that_is_late_fails_and_is_told_to_stop(tmp_path: Path) -> None:
    results = run(
        tmp_path, (), STATUS_FIRST, "fail:fraction=0.05", "delay:message=status,fraction=0.1,ms=10",
        "duplicate:message=status,fraction=0.1", "abort:fraction=0.1,state=writing", ack=True,
    )  # fmt: skip
    assert results["verdict"] == "valid", results["anomalies"]  # so each fault was done, and statuses came before data
    assert not [line for line in results["not_checked"] if "write" in line]
    assert set(results["hosted"]) == {"decode-0"}
    assert [line.partition(":")[0] for line in results["hosted"]["decode-0"]["stands_in"]] == [
        "mooncake.engine",
        "prefill",
    ]


def test_a_slot_that_keeps_its_room_loses_requests_to_a_status_that_comes_first(tmp_path: Path) -> None:
    assert "false-abort" in names(run(tmp_path, ("stale", "torn"), STATUS_FIRST))


def test_the_same_slot_loses_none_where_the_data_comes_first(tmp_path: Path) -> None:
    assert names(run(tmp_path, ("stale", "torn"))) == set()
