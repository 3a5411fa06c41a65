"""The page, the Markdown and the series of a run, from results that are known."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check.builder import History

from harness import scenario as scenarios
from harness.errors import HistoryError, UsageError
from harness.history.event import Kind, Verb
from harness.report import markdown, page, render, write
from harness.report.series import BINS, series
from harness.report.words import events_of
from harness.runfolder import RunFolder
from harness.stress import expectations, judge

VOID = {"meta", "br", "img", "link", "hr"}


def _results(**change: Any) -> dict[str, Any]:
    anomaly = {
        "name": "false-abort", "meaning": "merely late", "count": 3, "of": 200, "rate": 0.015, "interval": [0.005, 0.04],
        "detail": {"previous owner of the slot": 3}, "witnesses": [_witness()],
    }  # fmt: skip
    return {
        "verdict": "invalid", "guards": "sglang-0.5.12", "transport": "tcp", "planes": "split", "seed": 7, "requests": 200,
        "committed": 197, "mismatch_aborts": 3, "false_aborts": 3, "other_aborts": 0, "wrong_data": 0, "hung": 0, "leaked": 0,
        "rate_per_s": 1234.5, "latency_ms": {"p50": 1.0, "p99": 2.0}, "interrupted": False, "anomalies": [anomaly],
        "unseen": [{**anomaly, "name": "torn", "count": 0, "rate": 0.0, "interval": [0.0, 0.015], "witnesses": []}],
        "coverage": [{"name": "slot reuse", "seen": 5, "needed": 2, "met": True, "meaning": "tenures"}],
        "notes": [], "not_checked": [], "versions": {"python": "3"}, "machine": {"system": "L", "release": "1", "arch": "x", "cores": 2},
        "command": "handoff stress --seed 7", "folder": "runs/x", **change,
    }  # fmt: skip


def _witness() -> list[dict[str, Any]]:
    base = {"thread": "main", "incarnation": 1, "slot": 3}
    return [
        {**base, "process": "decode-0", "t_us": 10.0, "verb": "FREE", "room": "0xa", "tenure": 1, "room_word": "0xa"},
        {**base, "process": "decode-0", "t_us": 25.0, "verb": "ALLOC", "room": "0xb", "tenure": 2, "room_word": "0xa"},
        {**base, "process": "decode-0", "t_us": 30.5, "verb": "LANDED", "room": "0xb", "tenure": 2, "parts": "a b c room"},
        {"process": "driver-0", "t_us": 90.0, "verb": "HANDOFF", "kind": "FAIL", "room": "0xb", "reason": "MISMATCH"},
    ]  # fmt: skip


class _Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_witness_names_requests_by_letter_and_puts_each_event_into_its_lane() -> None:
    events = events_of(_witness())
    assert [(e["at"], e["lane"], e["request"]) for e in events] == [
        ("0", "decode", "A"), ("15", "decode", "B"), ("20", "data plane", "B"), ("80", "driver", "B"),
    ]  # fmt: skip
    assert events[1]["details"] == "room in the slot A's"
    assert events[2]["details"] == "parts a, b and 2 more, room included"
    assert events[3]["place"] == ""


def test_the_page_says_all_that_matters_and_needs_no_network() -> None:
    text = page.render(_results(), None)
    checker = _Balance()
    checker.feed(text)
    assert checker.open == []
    for wanted in ("INVALID", "sglang-0.5.12", "false-abort", "3 of 200", "1.5 %", "0.5 % to 4 %", "slot reuse",
                   "handoff stress --seed 7", "torn", "slot given out", "2 cores"):  # fmt: skip
        assert wanted in text, wanted
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", text)


@pytest.mark.parametrize("verdict", ["valid", "unknown"])
def test_other_verdicts_have_a_page_and_a_summary(verdict: str) -> None:
    missing = [{"name": "status before data", "seen": 0, "needed": 10, "met": False, "meaning": "window"}]
    results = _results(
        verdict=verdict, anomalies=[], coverage=missing, latency_ms={}, notes=["a note"], not_checked=["crash"]
    )
    text = page.render(results, None)
    assert verdict.upper() in text
    assert "not met" in text
    assert "Not checked: crash" in text
    summary = markdown.render(results)
    assert f"## Hand-off stress: {verdict.upper()}" in summary
    assert "**not met**" in summary
    assert "### Anomalies" not in summary


def test_what_a_run_says_cannot_become_markup() -> None:
    bad = "<script>alert(1)</script> a|b"
    text = page.render(_results(notes=[bad], command=bad), None)
    assert "<script" not in text
    summary = markdown.render(_results(anomalies=[{**_results()["anomalies"][0], "meaning": "a|b\nc"}]))
    assert "a\\|b c" in summary


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    cells = 0
    for line in markdown.render(_results()).splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        found = len(re.findall(r"(?<!\\)\|", line))
        assert cells in {0, found}, line
        cells = found


def _history(folder: Path) -> None:
    with_gap = History(folder)
    for room in range(1, 41):
        with_gap.handoff(room, slot=room % 2)
    with_gap.close()


def test_the_series_counts_every_end_once(tmp_path: Path) -> None:
    _history(tmp_path)
    found = series(tmp_path)
    assert found is not None
    width = found.t_s[1] - found.t_s[0]
    assert len(found.t_s) == BINS
    assert round(float(found.ok_per_s.sum() * width)) == 40
    assert found.other_per_s.sum() == 0
    assert len(found.latency_ms) == 40
    assert np.all(np.diff(found.latency_ms) >= 0)
    assert found.latency_ms[0] > 0


def test_latency_is_from_begin_to_end_of_the_same_hand_off(tmp_path: Path) -> None:
    history = History(tmp_path)
    driver = history.stream("driver-0")
    for index, (begin, end) in enumerate(((1_000_000, 3_000_000), (2_000_000, 9_000_000))):
        history.t = begin - history.tick_ns
        driver.event(Verb.HANDOFF, index + 1, kind=Kind.INVOKE, b=index)
        history.t = end - history.tick_ns
        driver.event(Verb.HANDOFF, index + 1, kind=Kind.OK, b=index)
    history.close()
    found = series(tmp_path)
    assert found is not None
    assert found.latency_ms.tolist() == pytest.approx([2.0, 7.0])


def test_a_history_without_an_end_has_no_series_and_one_without_driver_is_an_error(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.stream("driver-0").event(Verb.HANDOFF, 1, kind=Kind.INVOKE)
    history.close()
    assert series(tmp_path) is None
    other = tmp_path / "other"
    other.mkdir()
    alone = History(other)
    alone.stream("decode-0").event(Verb.ALLOC, 1, slot=0)
    alone.close()
    with pytest.raises(HistoryError, match="no driver"):
        series(other)


def _folder(runs: Path) -> RunFolder:
    scenario = scenarios.load(None, {"limits.min_window": 0, "engine.slots": 2})
    return RunFolder.create(runs, scenario, expectations(scenario), ["handoff", "stress"])


def test_a_judged_run_has_a_page_with_charts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = _folder(tmp_path)
    _history(folder.history)
    judge(folder)
    text = render(folder.path, "html")
    assert text.count("<svg") == 2
    assert text == render(folder.path, "html")
    assert "Hand-off stress" in render(folder.path, "github")
    assert render(folder.path, "text").startswith("verdict: ")


def test_without_matplotlib_the_page_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path)
    _history(folder.history)
    judge(folder)
    monkeypatch.setattr(page, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = render(folder.path, "html")
    assert page.NO_CHARTS in text
    assert "<svg" not in text


def test_a_run_that_was_not_judged_is_a_usage_error_that_says_what_to_do(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with pytest.raises(UsageError, match="handoff check"):
        render(folder.path, "html")


def test_a_report_is_written_in_one_step(tmp_path: Path) -> None:
    write(tmp_path / "r.html", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
