"""The deterministic checks find each bug of a toy release, and nothing in a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from releases import toy_release

from harness.releases import check, hosted

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "base_folders", lambda _: [])


def checked(folder: Path, *bugs: str) -> dict[str, Any]:
    return check.check_release(f"path:{toy_release.write(folder, *bugs)}", timeout_s=100)


def test_a_good_release_has_no_hole(tmp_path: Path) -> None:
    answer = checked(tmp_path)
    assert answer["error"] == ""
    assert answer["problems"] == {}
    assert answer["found"] == dict.fromkeys(check.MEANINGS, False)


@pytest.mark.parametrize(
    ("bug", "holes"),
    [
        ("stale torn", {"false-abort"}),
        ("torn", {"torn-row"}),
        ("room_last torn", {"torn-row", "torn-read"}),
        ("unchecked", {"stale-commit", "torn-row"}),
        ("undrained", {"late-write"}),
        ("resurrects", {"success-after-failed", "abort-forgotten"}),
        ("revives", {"cleared-room-revived"}),
        ("looks_twice", {"lookup-race"}),
        ("shares", {"mixed-frames"}),
    ],
)
def test_each_bug_is_found(tmp_path: Path, bug: str, holes: set[str]) -> None:
    answer = checked(tmp_path, *bug.split())
    assert answer["error"] == ""
    assert holes <= {hole for hole, found in answer["found"].items() if found}, answer
    assert set(answer["provoked"]) == holes & {"lookup-race", "mixed-frames"}
    assert answer["dead_threads"] == []


def test_a_row_is_not_torn_by_its_read_where_the_room_is_read_first(tmp_path: Path) -> None:
    found = checked(tmp_path, "torn")["found"]
    assert (found["torn-row"], found["torn-read"]) == (True, False)


def test_a_dead_thread_is_named(tmp_path: Path) -> None:
    answer = checked(tmp_path, "dies")
    assert "thread 'decode_thread' died: KeyError" in answer["dead_threads"][0]
    assert answer["problems"]["success_after_clear"] == answer["dead_threads"][0]


def test_a_release_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    folder = toy_release.write(tmp_path)
    (folder / "sglang" / "srt" / "disaggregation" / "decode.py").write_text("1 / 0")
    answer = check.check_release(f"path:{folder}", timeout_s=100)
    assert answer["error"] == "the release cannot be imported: ZeroDivisionError: division by zero"


def test_a_release_that_never_ends_is_ended(tmp_path: Path) -> None:
    folder = toy_release.write(tmp_path)
    (folder / "sglang" / "srt" / "disaggregation" / "decode.py").write_text("import time\nwhile True: time.sleep(1)")
    assert check.check_release(f"path:{folder}", timeout_s=8)["error"] == "not checked within 8 s"
