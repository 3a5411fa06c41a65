"""One side hosted, with a toy release, beside the reference as the other: what our side does to order, and who is blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from releases import toy_mixed

from harness import scenario as scenarios
from harness import stress
from harness.history.event import Verb
from harness.history.reader import open_streams
from harness.releases import hosted

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STATUS_FIRST = "hold-write:fraction=0.2,ms=40,where=row,status=before"


@pytest.fixture(autouse=True)
def _no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "base_folders", lambda _: [])


def run(
    folder: Path, bugs: tuple[str, ...], *faults: str, ack: bool = False, side: str = "decode", **more: Any
) -> dict[str, Any]:
    """A run of 600 hand-offs, each fault's doings drawn from the seed; a toy carries neither logprobs nor hidden states."""
    tree = toy_mixed.write(folder / "tree", *bugs)
    wanted = {
        "engine.name": f"{side}=path:{tree}", "transport.name": "tcp", "transport.late_fraction": 0.0, "transport.ack": ack,
        "workload.requests": 600, "workload.warmup": 64, "workload.logprob_fraction": 0.0, "workload.hidden_fraction": 0.0,
        "faults": list(faults), **more,
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


LATE = {"transport.late_fraction": 0.2, "transport.delay_us": 5000.0}


def test_a_hosted_prefill_is_judged_with_the_guards_of_our_decode(tmp_path: Path) -> None:
    """The same late data: a decode that clears its slots waits for it, one that does not aborts requests."""
    good = run(tmp_path / "good", (), side="prefill", guards="sglang-0.5.13", **LATE)
    assert good["verdict"] == "valid", good["anomalies"]
    assert good["window_opened"] >= 10
    assert good["not_checked"] == []
    assert [line.partition(":")[0] for line in good["hosted"]["prefill-0"]["stands_in"]] == [
        "mooncake.engine",
        "decode",
    ]
    assert "false-abort" in names(run(tmp_path / "bad", (), side="prefill", guards="sglang-0.5.12", **LATE))


def test_a_hosted_prefill_writes_into_our_decodes_memory_itself_over_shm(tmp_path: Path) -> None:
    shm = {"transport.name": "shm", "side": "prefill", **LATE}
    good = run(tmp_path / "good", (), guards="sglang-0.5.13", **shm)
    assert good["verdict"] == "valid", good["anomalies"]
    assert good["window_opened"] >= 10
    assert good["not_checked"] == ["foreign-write and late-write: no LANDED was recorded"]
    assert "false-abort" in names(run(tmp_path / "bad", (), guards="sglang-0.5.12", **shm))


def test_a_hosted_prefill_stands_a_decode_that_starves_is_slow_and_gives_up(tmp_path: Path) -> None:
    results = run(
        tmp_path, (), "starve:every_s=0.1,for_ms=50", "delay:message=exchange,fraction=0.2,ms=10", "abort:fraction=0.1,state=exchange",
        side="prefill", guards="sglang-0.5.20", ack=True, **{"limits.min_window": 0},
    )  # fmt: skip
    assert not names(results) - {"foreign-write", "late-write", "foreign-abort"}, results["anomalies"]
    assert all(need["met"] for need in results["coverage"]), results["coverage"]
    assert failed_at_prefill(Path(results["folder"])) > 10  # it was told to stop


def failed_at_prefill(folder: Path) -> int:
    """Requests that prefill's engine gave up."""
    (stream,) = [stream for stream in open_streams(folder / "history") if "prefill" in stream.name]
    return sum(int(((part["verb"] == Verb.SENT) & (part["code"] == 0)).sum()) for part in stream.chunks(1 << 16))
