"""Released SGLang at decode, our own prefill beside it; and SGLang over NIXL. Needs downloads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.cli import handoff
from releases import frames_of_release as ours

from harness.releases import hosted

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

RELEASES = ("0.5.8", "0.5.9", "0.5.10", "0.5.12.post1", "0.5.13", "0.5.17", "0.5.20", "0.5.23")
STATUS_FIRST = (
    "--set",
    "transport.late_fraction=0",
    "--fault",
    "hold-write:fraction=0.2,ms=40,where=row,status=before",
)


def understood(release: str) -> dict[str, Any]:
    """What `release` reads in our frames."""
    engine = hosted.parse(f"sglang=={release}")
    command = [
        sys.executable, str(Path(ours.__file__)), *hosted.first_folders(engine), "--", *hosted.base_folders(engine)
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=120, check=True, text=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_reads_our_frames_as_its_own(release: str) -> None:
    found = understood(release)
    registration, destination = found["registration"], found["destination"]
    assert (registration["room"], registration["dst_port"]) == ("None", ours.REGISTRATION.port)
    assert registration["dst_kv_ptrs"] == ours.REGISTRATION.kv
    assert registration["dst_aux_ptrs"] == ours.REGISTRATION.aux
    assert registration["dst_kv_item_len"] == ours.REGISTRATION.kv_item_bytes
    assert (registration["dst_tp_rank"], registration["dst_attn_tp_size"]) == (0, 1)
    assert registration.get("staging") is None
    assert (destination["room"], destination["endpoint"]) == (ours.DESTINATION.room, "127.0.0.1")
    assert (destination["dst_kv_indices"], destination["dst_aux_index"]) == (
        ours.DESTINATION.pages,
        ours.DESTINATION.slot,
    )
    assert (destination["required_dst_info_num"], destination["is_dummy"]) == (1, False)
    if "status" in found:
        assert found["status"] == [ours.STATUS.room, ours.STATUS.status, ours.STATUS.rank]
    if "AbortAck" in found:
        assert found["AbortAck"] == {"frames": [frame.decode() for frame in ours.ACK.frames()], "room": ours.ACK.room}
        assert found["AbortNotification"]["frames"] == [frame.decode() for frame in ours.ABORT.frames()]


def test_the_newest_release_has_words_for_each_message() -> None:
    assert {"status", "AbortAck", "AbortNotification"} <= set(understood(RELEASES[-1]))


def mixed(runs: Path, release: str, *arguments: str) -> dict[str, Any]:
    ended = handoff(
        runs, "stress", "--quiet", "--json", "--engine", f"decode=sglang=={release}", "--transport", "tcp", "--requests", "1500",
        *arguments,
    )  # fmt: skip
    assert ended.code in {0, 1, 3}, ended.err
    return {**ended.results, "names": {anomaly["name"] for anomaly in ended.results["anomalies"]}}


def test_a_status_sent_first_loses_requests_before_the_fix(tmp_path: Path) -> None:
    results = mixed(tmp_path, "0.5.12.post1", *STATUS_FIRST)
    assert results["false_aborts"] > 30
    (node,) = results["hosted"].values()
    assert node["files_changed"] == []
    assert node["files_not_of_a_wheel"] == 0


def test_and_none_once_the_data_is_acknowledged(tmp_path: Path) -> None:
    assert (
        mixed(tmp_path, "0.5.12.post1", "--set", "transport.ack=true", "--set", "transport.late_fraction=0.3")["names"]
        == set()
    )


def test_a_status_sent_first_loses_none_after_the_fix(tmp_path: Path) -> None:
    results = mixed(tmp_path, "0.5.13", *STATUS_FIRST)
    assert results["names"] == set()
    assert results["window_opened"] > 30


def test_a_release_that_checks_nothing_takes_what_it_finds(tmp_path: Path) -> None:
    results = mixed(tmp_path, "0.5.8", *STATUS_FIRST)
    assert results["wrong_data"] > 30
    assert results["false_aborts"] == 0


def test_over_nixl_no_notification_comes_before_its_data(tmp_path: Path) -> None:
    ended = handoff(
        tmp_path, "stress", "--quiet", "--json", "--engine", "sglang==0.5.12.post1", "--transport", "nixl", "--requests", "1000"
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.results["window_opened"] == 0
