"""The load: what is issued when, on a clock that the test moves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness import scenario as scenarios
from harness.history.event import Reason, Wants
from harness.load import Load
from harness.protocol.rooms import room_of
from harness.scenario import DEFAULT_DURATION_S


def _load(**changes: Any) -> Load:
    fields = {field.replace("__", "."): value for field, value in {"workload__warmup": 0, **changes}.items()}
    return Load(scenarios.load(None, fields))


def _issue_due(load: Load, now: float) -> list[tuple[int, float]]:
    """Issue whatever is due; (room, intended) of each."""
    issued = []
    while (intended := load.due(now)) is not None:
        issued.append((load.issue(now, intended)[0], intended))
    return issued


def test_closed_loop_keeps_its_concurrency_in_flight() -> None:
    load = _load(workload__concurrency=3, workload__requests=5)
    load.begin(10.0)
    first = _issue_due(load, 10.0)
    assert [intended for _, intended in first] == [10.0] * 3
    assert load.due(11.0) is None
    ended = load.finish(first[1][0], 0, 11.0)
    assert ended is not None
    assert (ended.index, ended.since, ended.intended) == (1, 10.0, 10.0)
    assert [intended for _, intended in _issue_due(load, 11.5)] == [11.5]
    assert len(load.open) == 3
    load.finish(first[0][0], 0, 12.0)
    load.finish(first[2][0], 0, 12.0)
    assert len(_issue_due(load, 12.0)) == 1
    assert load.exhausted(12.0)
    assert load.issued == 5
    assert load.due(12.0) is None


def test_rooms_indices_and_wants_come_from_the_seed() -> None:
    twins = [_load(seed=seed, workload__concurrency=1000, workload__requests=1000) for seed in (3, 3, 4)]
    runs = []
    for load in twins:
        load.begin(0.0)
        runs.append([load.issue(0.0, 0.0) for _ in range(1000)])
    assert runs[0] == runs[1]
    assert [room for room, _, _ in runs[0]] == [room_of(3, index) for index in range(1000)]
    assert [index for _, index, _ in runs[0]] == list(range(1000))
    assert not {room for room, _, _ in runs[0]} & {room for room, _, _ in runs[2]}


@pytest.mark.parametrize(("logprob", "hidden"), [(0.0, 1.0), (1.0, 0.0), (0.25, 0.5)])
def test_wants_follow_their_fractions_independently(logprob: float, hidden: float) -> None:
    load = _load(workload__logprob_fraction=logprob, workload__hidden_fraction=hidden)
    wants = [load.issue(0.0, 0.0)[2] for _ in range(4000)]
    for flag, fraction in ((Wants.LOGPROBS, logprob), (Wants.HIDDEN, hidden)):
        assert abs(sum(bool(want & flag) for want in wants) / 4000 - fraction) < 0.04
    both = sum(want == Wants.LOGPROBS | Wants.HIDDEN for want in wants) / 4000
    assert abs(both - logprob * hidden) < 0.04


def test_warm_up_is_closed_and_ends_by_itself() -> None:
    load = _load(
        workload__warmup=4,
        workload__requests=2,
        workload__arrival="fixed",
        workload__rate_per_s=1.0,
        workload__concurrency=3,
    )
    assert not load.warm
    warming = _issue_due(load, 0.0)
    assert len(warming) == 3
    load.finish(warming[0][0], 0, 0.0)
    assert len(_issue_due(load, 0.0)) == 1
    assert load.exhausted(0.0)
    load.begin(100.0)
    assert load.warm
    assert not load.exhausted(100.0)
    for room in list(load.open):
        load.finish(room, 0, 100.0)
    assert [intended for _, intended in _issue_due(load, 101.5)] == [100.0, 101.0]
    assert load.exhausted(101.5)
    assert load.issued == 6


def test_fixed_arrivals_keep_their_schedule_however_late_they_are_issued() -> None:
    load = _load(workload__arrival="fixed", workload__rate_per_s=4.0, workload__duration_s=100.0)
    load.begin(50.0)
    assert [intended for _, intended in _issue_due(load, 50.6)] == [50.0, 50.25, 50.5]
    assert load.due(50.74) is None
    assert [intended for _, intended in _issue_due(load, 52.0)] == [50.75, 51.0, 51.25, 51.5, 51.75, 52.0]


def test_poisson_arrivals_have_the_mean_rate_and_come_from_the_seed() -> None:
    runs = []
    for seed in (1, 1, 2):
        load = _load(
            seed=seed,
            workload__arrival="poisson",
            workload__rate_per_s=100.0,
            workload__duration_s=1e3,
            workload__concurrency=65536,
        )
        load.begin(0.0)
        runs.append([intended for _, intended in _issue_due(load, 100.0)])
    assert runs[0] == runs[1] != runs[2]
    assert 9600 < len(runs[0]) < 10400
    gaps = [after - before for before, after in zip(runs[0], runs[0][1:], strict=False)]
    assert min(gaps) >= 0
    assert 0.3 < sum(gap > 0.01 for gap in gaps) / len(gaps) < 0.43  # 1/e of exponential gaps are over the mean
    assert max(gaps) > 0.05


def test_open_loop_latency_counts_from_the_intended_time() -> None:
    load = _load(
        workload__arrival="fixed",
        workload__rate_per_s=1.0,
        workload__concurrency=1,
        workload__duration_s=99.0,
    )
    load.begin(0.0)
    ((first, _),) = _issue_due(load, 0.0)
    assert load.due(5.0) is None, "more in flight than allowed"
    load.finish(first, 0, 5.0)
    ((second, intended),) = _issue_due(load, 5.0)
    assert intended == 1.0
    load.finish(second, 0, 5.5)
    assert list(load.recent_ms) == pytest.approx([5000.0, 4500.0])


def test_only_commits_have_a_latency_and_every_end_is_counted() -> None:
    load = _load(workload__concurrency=4)
    load.begin(0.0)
    rooms = [room for room, _ in _issue_due(load, 0.0)]
    assert load.finish(rooms[0], 0, 0.25) is not None
    assert load.finish(rooms[1], Reason.MISMATCH, 0.5) is not None
    assert load.finish(rooms[0], 0, 0.6) is None
    assert load.finish(12345, 0, 0.6) is None
    assert list(load.recent_ms) == pytest.approx([250.0])
    assert load.ended == {Reason.NONE: 1, Reason.MISMATCH: 1}
    assert set(load.open) == set(rooms[2:])


@pytest.mark.parametrize(
    ("changes", "requests", "end"),
    [
        ({}, 0, DEFAULT_DURATION_S),
        ({"workload__duration_s": 3.0}, 0, 3.0),
        ({"workload__requests": 7}, 7, math.inf),
        ({"workload__requests": 7, "workload__duration_s": 3.0}, 7, 3.0),
    ],
)
def test_limits(changes: dict[str, Any], requests: int, end: float) -> None:
    load = _load(workload__concurrency=100, **changes)
    load.begin(1000.0)
    assert load.progress == (requests, 1000.0 + end)
    assert len(_issue_due(load, 1000.0)) == (requests or 100)
    assert load.exhausted(1000.0) == bool(requests)
    if end < math.inf:
        load.open.clear()
        late = math.nextafter(1000.0 + end, math.inf)
        assert load.exhausted(late)
        assert load.due(late) is None


def test_stop_ends_it_at_once() -> None:
    for warm in (False, True):
        load = _load(workload__warmup=5)
        if warm:
            load.begin(0.0)
        assert not load.exhausted(0.0)
        load.stop()
        assert load.exhausted(0.0)
        assert load.due(0.0) is None


def test_overdue_hand_offs_are_open_no_more() -> None:
    load = _load(limits__request_timeout_s=2.0, workload__arrival="fixed", workload__rate_per_s=1.0)
    load.begin(0.0)
    rooms = [room for now in (0.0, 1.0, 2.0) for room, _ in _issue_due(load, now)]
    load.finish(rooms[1], 0, 2.0)
    assert load.overdue(1.99) == []
    assert [(room, opened.index, opened.since) for room, opened in load.overdue(2.0)] == [(rooms[0], 0, 0.0)]
    assert load.overdue(3.99) == []
    assert [room for room, _ in load.overdue(100.0)] == [rooms[2]]
    assert load.open == {}
    assert load.ended[Reason.DRIVER_TIMEOUT] == 2
    assert load.finish(rooms[0], 0, 101.0) is None


def test_hand_offs_of_a_lost_decode_are_open_no_more() -> None:
    load = _load(workload__concurrency=6)
    load.begin(0.0)
    rooms = [load.issue(0.0, 0.0, 2)[0] for _ in range(6)]
    assert [room for room, _ in load.orphaned(1)] == rooms[1::2]
    assert list(load.open) == rooms[0::2]
    assert load.orphaned(1) == load.orphaned(2) == []
    assert load.ended == {Reason.NODE_EXIT: 3}


def test_an_overdue_hand_off_counts_from_its_issue_not_from_its_intention() -> None:
    load = _load(
        limits__request_timeout_s=2.0,
        workload__arrival="fixed",
        workload__rate_per_s=1.0,
        workload__duration_s=99.0,
    )
    load.begin(0.0)
    _issue_due(load, 10.0)
    assert load.overdue(11.9) == []
    assert len(load.overdue(12.0)) == 11


def test_wait_is_bounded_and_ends_when_something_is_due() -> None:
    load = _load(workload__arrival="fixed", workload__rate_per_s=50.0)
    load.begin(0.0)
    assert load.wait_s(0.0) == 0.0
    _issue_due(load, 0.0)
    assert load.wait_s(0.0) == pytest.approx(0.02)
    assert load.wait_s(0.015) == pytest.approx(0.005)
    slow = _load(workload__arrival="fixed", workload__rate_per_s=0.1)
    slow.begin(0.0)
    _issue_due(slow, 0.0)
    assert slow.wait_s(0.0) == pytest.approx(0.05)
    assert _load().wait_s(0.0) == pytest.approx(0.05)
