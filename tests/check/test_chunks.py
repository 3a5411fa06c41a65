"""The report does not depend on how many hand-offs are read at a step, nor memory on how long the run is."""

import random
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.check import Expectations, check_history
from harness.check.rules import ANOMALIES
from harness.history.event import HIDDEN_MASK, REQUIRED_MASK, NodeEvent, Reason, Role

from . import synthetic
from .builder import CLEARED, History, Request, counts, expect, tag, tags

CHUNKS = (1, 2, 7, 10_000)

Script = Iterator[object]


class Chaos:
    """Hand-offs whose events interleave at random and most of which go wrong somehow."""

    def __init__(self, history: History, seed: int, decodes: int) -> None:
        self.h, self.rng, self.decodes = history, random.Random(seed), decodes
        self.free = {(decode, slot) for decode in range(decodes) for slot in range(2)}
        self.room = 0

    def maybe(self, share: float) -> bool:
        return self.rng.random() < share

    def run(self, count: int) -> None:
        """Play `count` hand-offs, up to six of them at a time."""
        scripts: list[Script] = []
        while count or scripts:
            if count and len(scripts) < 6 and self.maybe(0.3):
                scripts.append(self.script())
                count -= 1
            elif scripts:
                script = self.rng.choice(scripts)
                if next(script, None) is None:
                    scripts.remove(script)

    def script(self) -> Script:
        self.room += 1
        decode = self.rng.randrange(self.decodes)
        mask = REQUIRED_MASK | (HIDDEN_MASK if self.maybe(0.2) else 0)
        request = self.h.request(self.room, mask=mask, decode=decode)
        yield request.invoke()
        slots = [slot for where, slot in self.free if where == decode]
        while not slots and not self.maybe(0.1):
            yield self
            slots = [slot for where, slot in self.free if where == decode]
        request.slot = self.rng.choice(sorted(slots) or [0, 1])
        self.free.discard((decode, request.slot))
        found = self.other() if self.maybe(0.3) else 0
        yield request.alloc(word=found)
        for act in self.middle(request, found):
            yield act()
        self.free.add((decode, request.slot))
        for act in self.ending(request):
            yield act()

    def other(self) -> int:
        return max(1, self.room - self.rng.randrange(8))

    def land(self, request: Request) -> object:
        by = self.h.decode(request.decode, "recv") if self.decodes > 1 else None
        return request.landed(begin=self.h.t - self.rng.randrange(4_000) if self.maybe(0.5) else None, by=by)

    def middle(self, request: Request, found: int) -> list[Callable[[], object]]:
        acts: list[Callable[[], object]] = [
            request.made,
            lambda: self.land(request),
            request.sent,
            request.status,
        ]
        self.rng.shuffle(acts)
        if self.maybe(0.1):
            acts.pop()
        if self.maybe(0.4):
            acts.append(request.poll)
        if self.maybe(0.2):
            reason = self.rng.choice([Reason.MISMATCH, Reason.PEER_LOST, Reason.TIMEOUT, Reason.REJECTED])
            acts.append(lambda: request.abort(reason, word=self.rng.choice([found, self.other()])))
        else:
            acts.append(lambda: request.commit(**self.read(request)))
        if self.maybe(0.1):
            acts.append(lambda: request.kv_page(room=self.other(), torn=self.maybe(0.5)))
        return acts

    def read(self, request: Request) -> dict[str, Any]:
        row = list(request.row)
        for field in range(9):
            if self.maybe(0.1):
                row[field] = self.rng.choice([tag(self.other(), field), CLEARED[field], 5])
        if self.maybe(0.1):
            row = tags(self.other(), request.mask)
        pages = {"pages": 5} if self.maybe(0.1) else {}
        pages |= {"mask": 0x1FF} if self.maybe(0.1) else {}
        return {"row": row, "word": request.room if self.maybe(0.8) else self.other(), **pages}

    def ending(self, request: Request) -> list[Callable[[], object]]:
        acts: list[Callable[[], object]] = [request.free] if self.maybe(0.9) else []
        if self.maybe(0.1):
            acts.append(lambda: request.free(tenure=self.rng.randrange(5)))
        if self.maybe(0.9):
            acts.append(
                self.rng.choice(
                    [
                        request.ok,
                        request.ok,
                        lambda: request.ok(value=1),
                        lambda: request.fail(Reason.PEER_LOST),
                    ]
                )
            )
        if self.maybe(0.3):
            acts.append(lambda: self.land(request))
        if self.maybe(0.3):
            acts.append(lambda: request.use(fields=3, row=request.row if self.maybe(0.5) else [5] * 9))
        self.rng.shuffle(acts)
        again = (request.ok, request.commit, lambda: self.land(request), request.sent)
        acts.extend(act for act in again if self.maybe(0.1))
        return acts


def chaos(folder: Path, seed: int, *, decodes: int = 1) -> History:
    """A finished run of 40 hand-offs."""
    h = History(folder).start()
    Chaos(h, seed, decodes).run(40)
    h.node(NodeEvent.EXIT, Role.PREFILL, seed % 3, asked=seed % 2 == 0)
    h.finish().close()
    return h


@pytest.mark.parametrize("lag", [5, 9, 4096])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), decodes=st.integers(1, 2), finished=st.booleans())
def test_any_chunk_gives_the_same_report(lag, seed, decodes, finished):
    asked = expect(hang_bound_s=30e-6, clean_slot=seed % 3 == 0, drained_release=seed % 5 == 0)
    with tempfile.TemporaryDirectory() as folder, patch("harness.check.limits.LAG", lag):
        h = chaos(Path(folder) / "h", seed, decodes=decodes)
        if not finished:
            path = h.folder / "driver.1.main.hist"
            path.write_bytes(path.read_bytes()[:-80])
        reports = [check_history(h.folder, asked, chunk=chunk).to_dict() for chunk in CHUNKS]
    assert reports[0]["requests"] == 40
    for report in reports[1:]:
        assert report == reports[0]


def test_chaos_finds_nearly_everything(tmp_path):
    total: Counter[str] = Counter()
    for seed in range(12):
        report = check_history(chaos(tmp_path / str(seed), seed).folder, expect(drained_release=seed % 2 == 0))
        total += Counter(counts(report))
    assert set(ANOMALIES) - set(total) <= {"leak", "not-refused"}


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(("window", "kind"), [(3, "another request"), (2, "unknown")])
def test_authors_are_searched_so_far_back(h, monkeypatch, chunk, window, kind):
    monkeypatch.setattr("harness.check.limits.LAG", 2)
    monkeypatch.setattr("harness.check.limits.WINDOW", window)
    h.healthy(3, 4, 5)
    h.handoff(6, slot=0, row=tags(4))  # the last owner of slot 0
    h.handoff(7, slot=0, row=tags(5))  # index 4 of 7 begun by the end
    h.healthy(8, 9, 10, 11)
    report = h.finish().check(chunk=chunk)
    assert counts(report) == {"misdelivery": 2}
    assert report.anomalies[0].detail == {
        "output_ids": 2,
        "cached_tokens": 2,
        "previous owner of the slot": 2,
        kind: 2,
    }


@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_previous_owner_is_known_however_long_ago(h, monkeypatch, chunk):
    monkeypatch.setattr("harness.check.limits.LAG", 1)
    monkeypatch.setattr("harness.check.limits.WINDOW", 1)
    h.healthy(4, 6, 8, 10, 12, 14)
    h.handoff(15, slot=1, row=tags(1))
    h.healthy(16, 18, 20)
    report = h.finish().check(chunk=chunk)
    assert report.anomalies[0].detail["previous owner of the slot"] == 2


@pytest.mark.parametrize("chunk", CHUNKS)
def test_stragglers_count_up_to_the_lag(h, monkeypatch, chunk):
    monkeypatch.setattr("harness.check.limits.LAG", 2)
    early, late = h.handoff(3), h.handoff(4)
    h.healthy(5, 6)
    early.use(fields=1, row=[9] * 9)  # 3 have begun since: too late
    late.use(fields=1, row=[9] * 9)  # 2 have begun
    late.ok()
    h.healthy(7, 8)
    early.ok()
    late.ok()  # counts once more: its first duplicate is judged by now
    report = h.finish().check(chunk=chunk)
    assert counts(report) == {"changed-after-commit": 1, "duplicate": 3}
    assert report.verdict == "invalid"
    assert [what for what in report.not_checked if what.startswith("1 commits, aborts or reads")]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_events_of_one_instant(h, chunk):
    h.tick_ns = 0
    h.healthy(3, 4, 5, 6)
    report = h.finish().check(chunk=chunk)
    assert (counts(report), report.requests, report.not_checked) == ({}, 6, [])


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_commit_of_no_request_cannot_be_valid(h, chunk):
    h.request(99, slot=0).commit()
    report = h.finish().check(chunk=chunk)
    assert (counts(report), report.verdict) == ({}, "unknown")


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_write_after_its_tenure_was_forgotten(h, monkeypatch, chunk):
    monkeypatch.setattr("harness.check.limits.LAG", 1)
    old = h.begun(3, slot=0).abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    h.healthy(4, 6, 8, 10, 12, 14)
    new = h.begun(16, slot=0)
    old.landed()
    new.landed().sent().status().commit().free().ok()
    assert counts(h.finish().check(chunk=chunk)) == {"foreign-write": 1}


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("", {}),
        ("previous", {"misdelivery": 2936}),
        ("another", {"misdelivery": 2999}),
        ("torn", {"torn": 2999}),
        ("abort", {"false-abort": 2936, "unexplained-abort": 64}),
        ("late", {"foreign-write": 2936, "late-write": 64}),
    ],
)
@pytest.mark.parametrize("chunk", [100, 777, 5000])
def test_every_handoff_wrong(tmp_path, monkeypatch, wrong, found, chunk):
    monkeypatch.setattr("harness.check.limits.LAG", 200)
    synthetic.write(tmp_path, 3_000, wrong=wrong)
    asked = Expectations(slots=64, hang_bound_s=9, clean_slot=False, drained_release=True, min_window=0)
    report = check_history(tmp_path, asked, chunk=chunk)
    assert counts(report) == found
    assert report.verdict == ("invalid" if found else "valid")


def peak_bytes(folder: Path, count: int, wrong: str) -> int:
    """Most memory held while a run of `count` hand-offs is checked."""
    synthetic.write(folder, count, wrong=wrong)
    asked = Expectations(slots=64, hang_bound_s=9, clean_slot=False, drained_release=False)
    tracemalloc.start()
    check_history(folder, asked, chunk=2_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("wrong", ["", "previous", "late"])
def test_memory_is_flat(tmp_path, wrong):
    short, long = (peak_bytes(tmp_path / str(n), n, wrong) for n in (20_000, 100_000))
    assert long < 1.3 * short
