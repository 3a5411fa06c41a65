"""Golden histories of instances with several ranks: each decode rank for itself, each against the writers that are its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import FieldError
from harness.history.event import KV_BIT, FaultEvent, FaultKind, NodeEvent, Reason, Role, Verb

from .builder import ROOM_AND_FIELDS, History, Request, counts, expect, kv, tags, token

STAGED: dict[str, Any] = {"prefill_pp": 2}
"""Prefill 0 and 1 are the stages of one instance."""
PAIR: dict[str, Any] = {"prefill_tp": 2, "decode_tp": 2}
"""Prefill 0 writes to decode 0, prefill 1 to decode 1."""


def _placeholder(h: History, room: int) -> list[int]:
    """Stage 0 sends a row that is not the request's; returns its tags."""
    row = tags(1000 + room)
    h.prefill(0).row(Verb.PLACEHOLDER, room, 0, 1, 3, 0, room, row)
    return row


def _staged(h: History, room: int, *, late: bool = False, **commit: Any) -> Request:
    """A hand-off of two stages on slot 0: both write the slot. `late`: the first stage's row lands after the slot was freed."""
    request = h.request(room, prefill=1, slot=0).invoke().alloc()
    _placeholder(h, room)
    if not late:
        request.landed(by=h.prefill(0))
    request.made().landed().sent().status().poll().commit(**commit).free()
    if late:
        request.landed(by=h.prefill(0), flags=ROOM_AND_FIELDS)
    return request.ok()


def test_two_stages_that_write_one_slot_are_healthy(h: History) -> None:
    for room in range(3, 7):
        _staged(h, room)
    h.healthy(9, 11)
    assert counts(h.finish().check(**STAGED)) == {}


def test_a_row_of_an_earlier_stage_is_a_misdelivery_and_its_author_is_named(h: History) -> None:
    h.healthy(9, 11)
    _staged(h, 4, row=tags(1004))
    report = h.finish().check(**STAGED)
    assert counts(report) == {"misdelivery": 1}
    assert report.anomalies[0].detail["pipeline stage before the last"] == 2


def test_half_a_placeholder_is_a_torn_row(h: History) -> None:
    h.healthy(9, 11)
    _staged(h, 4, row=[tags(1004)[0], *tags(4)[1:]])
    report = h.finish().check(**STAGED)
    assert counts(report) == {"torn": 1}
    assert report.anomalies[0].detail["pipeline stage before the last"] == 1


def test_another_requests_placeholder_is_found_too(h: History) -> None:
    _staged(h, 4)
    _staged(h, 5, row=tags(1004))
    report = h.healthy(9, 11).finish().check(**STAGED)
    assert counts(report) == {"misdelivery": 1}
    assert report.anomalies[0].detail["pipeline stage before the last"] == 2


def test_a_slow_stage_writes_late(h: History) -> None:
    h.healthy(9, 11)
    _staged(h, 4, late=True)
    assert counts(h.finish().check(**STAGED)) == {"late-write": 1}


def test_a_slow_stage_writes_into_the_next_requests_slot(h: History) -> None:
    h.healthy(9, 11)
    first = h.request(4, slot=0).invoke().alloc()
    _placeholder(h, 4)
    first.made().landed().sent().status().commit().free().ok()
    second = h.begun(5, slot=0)
    first.landed(by=h.prefill(0), flags=ROOM_AND_FIELDS)
    second.status().abort(Reason.MISMATCH, word=4).free().fail(Reason.MISMATCH)
    assert counts(h.finish().check(**STAGED)) == {"foreign-write": 1, "foreign-abort": 1}


def test_only_the_rank_that_knows_the_token_is_asked_for_it(h: History) -> None:
    h.healthy(9, 11)
    request = h.request(4, slot=0).invoke().alloc()
    h.prefill(0).event(Verb.SENT, 4, code=4, b=0)
    request.made().landed().sent().status().commit().free().ok()
    assert counts(h.finish().check(**STAGED)) == {}


# Two decode ranks --------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> History:
    """A run that has begun, with nothing in it."""
    return History(tmp_path / "pair").start()


def _rank(h: History, request: Request, slot: int) -> Request:
    """The same request at decode rank 1, written by prefill rank 1."""
    other = h.request(request.room, slot=slot, prefill=1, decode=1)
    other.index = request.index
    return other


def _both(h: History, room: int, *, slots: tuple[int, int] = (0, 1)) -> tuple[Request, Request]:
    """A request with a slot at both ranks, written at both; not ended."""
    first = h.request(room, slot=slots[0]).invoke().alloc().made()
    second = _rank(h, first, slots[1]).alloc().made()
    for request in (first, second):
        request.landed().sent().status().poll()
    return first, second


def _healthy(h: History, *rooms: int, begin: Callable[..., tuple[Request, Request]] = _both) -> History:
    for room in rooms:
        first, second = begin(h, room, slots=(room % 2, (room + 1) % 2))
        second.commit().free()
        first.commit().free().ok()
    return h


def test_two_ranks_that_commit_are_no_duplicate(pair: History) -> None:
    report = _healthy(pair, 3, 4, 5, 6).finish().check(**PAIR)
    assert counts(report) == {}
    assert report.committed == 4
    assert report.reuse_min == 2


def test_taken_for_one_rank_the_same_history_is_wrong(pair: History) -> None:
    assert counts(_healthy(pair, 3, 4, 5, 6).finish().check())["duplicate"] == 4


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_rank_that_aborts_what_the_first_one_commits(pair: History, chunk: int) -> None:
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4)
    second.abort(Reason.CANCELLED).free()
    first.commit().free().ok()
    report = pair.finish().check(chunk=chunk, **PAIR)
    assert counts(report) == {"outcome-mismatch": 1}
    assert report.anomalies[0].detail == {"another rank did not commit": 1}


def test_a_rank_that_commits_what_the_first_one_aborts(pair: History) -> None:
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4)
    pair.driver.event(Verb.FAULT, 4, code=FaultEvent.HIT, flags=FaultKind.ABORT << 16)
    first.abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    second.commit().free()
    report = pair.finish().check(faults=("abort:fraction=0.2",), **PAIR)
    assert counts(report) == {"outcome-mismatch": 1}
    assert report.anomalies[0].detail == {"another rank committed": 1}


def test_a_commit_twice_at_one_rank_is_a_duplicate(pair: History) -> None:
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4)
    second.commit().commit().free()
    first.commit().free().ok()
    assert counts(pair.finish().check(**PAIR)) == {"duplicate": 1}


def test_a_wrong_row_at_the_second_rank(pair: History) -> None:
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4)
    second.commit(row=tags(6)).free()
    first.commit().free().ok()
    assert counts(pair.finish().check(**PAIR)) == {"misdelivery": 1}


def test_pages_of_another_decode_rank_are_foreign(pair: History) -> None:
    """Each rank's pages have a content of their own: what its own writers made counts, not what the first rank's did."""
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4)
    second.commit(pages=7).free()
    first.commit().free().ok()
    assert counts(pair.finish().check(**PAIR)) == {"foreign-kv": 1}


def test_each_rank_has_slots_of_its_own(pair: History) -> None:
    """Slot 0 of one rank and slot 0 of the other are two: neither given out twice, and a write into one is none into the other."""
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4, slots=(0, 0))
    first.commit().free().ok()
    third = pair.begun(8, slot=0)
    second.landed(flags=KV_BIT).commit().free()  # still in its own tenure, at the other rank
    third.landed().sent().status().commit().free()
    fourth = _rank(pair, third, 0).alloc().made().landed().sent().status().commit().free()
    third.ok()
    assert fourth.slot == 0
    assert counts(pair.finish().check(**PAIR)) == {}


def test_a_late_write_at_the_second_rank(pair: History) -> None:
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4)
    second.commit().free().landed()
    first.commit().free().ok()
    assert counts(pair.finish().check(**PAIR)) == {"late-write": 1}


def test_a_rank_that_is_gone_excuses_its_whole_instance(pair: History) -> None:
    _healthy(pair, 5, 6)
    first, second = _both(pair, 4)
    pair.node(NodeEvent.EXIT, Role.PREFILL, 1, asked=True)
    second.abort(Reason.PEER_LOST).free()
    first.abort(Reason.PEER_LOST).free().fail(Reason.PEER_LOST)
    assert counts(pair.finish().check(**PAIR)) == {}


def test_a_lost_hand_off_is_counted_once(pair: History) -> None:
    _healthy(pair, 5, 6)
    _both(pair, 4)
    assert counts(pair.finish().check(**PAIR))["lost"] == 1


# One prefill rank that serves two decode ranks --------------------------------------------------------------------

SERVES: dict[str, Any] = {"prefill_tp": 1, "decode_tp": 2}


class _Served(Request):
    """A request's part for one of two decode ranks, which prefill 0 has a stream of its own for."""

    def alloc(self, *, word: int = 0) -> Request:
        self.tenure = self.history.next_tenure()
        self._main().event(Verb.ALLOC, self.room, self.slot, self.tenure, value=word, a=4)
        return self

    def made(self) -> Request:
        stream = self.history.prefill(0, f"main@{self.decode}")
        stream.row(Verb.MADE, self.room, 0, self.tenure, self.mask, kv(self.room, self.decode), self.room, self.row)
        return self

    def landed(self, **change: Any) -> Request:
        return super().landed(**{"by": self.history.prefill(0, f"mover@{self.decode}")} | change)

    def sent(self, *, value: int | None = None) -> Request:
        first = token(self.room) if value is None else value
        self.history.prefill(0, f"main@{self.decode}").event(Verb.SENT, self.room, code=4, b=first)
        return self

    def commit(self, **change: Any) -> Request:
        return super().commit(**{"pages": kv(self.room, self.decode)} | change)


def _served(h: History, room: int, *, slots: tuple[int, int] = (0, 1)) -> tuple[_Served, _Served]:
    """A request with a slot at both ranks, both written by prefill 0; not ended."""
    first, second = (_Served(h, room, slot=slot, mask=3, prefill=0, decode=decode) for decode, slot in enumerate(slots))
    first.invoke()
    second.index = first.index
    for part in (first, second):
        part.alloc().made()
    for part in (first, second):
        part.landed().sent().status().poll()
    return first, second


@pytest.mark.parametrize("chunk", [1, 1000])
def test_one_prefill_rank_may_write_a_request_to_two_decode_ranks(pair: History, chunk: int) -> None:
    report = _healthy(pair, 3, 4, 5, 6, begin=_served).finish().check(chunk=chunk, **SERVES)
    assert counts(report) == {}
    assert report.committed == 4
    assert report.verdict == "valid"


def test_the_pages_of_the_other_decode_rank_are_foreign(pair: History) -> None:
    _healthy(pair, 5, 6, begin=_served)
    first, second = _served(pair, 4)
    second.commit(pages=kv(4, 0)).free()
    first.commit().free().ok()
    assert counts(pair.finish().check(**SERVES)) == {"foreign-kv": 1}


def test_a_late_write_to_one_of_two_decode_ranks(pair: History) -> None:
    """A tenure of the one rank is over, that of the other is not: it counts for whom the write was."""
    _healthy(pair, 5, 6, begin=_served)
    first, second = _served(pair, 4, slots=(0, 0))
    second.commit().free()
    first.landed()
    second.landed()
    first.commit().free().ok()
    assert counts(pair.finish().check(**SERVES)) == {"late-write": 1}


def test_a_write_for_one_decode_rank_in_anothers_tenure_of_the_same_slot(pair: History) -> None:
    _healthy(pair, 5, 6, begin=_served)
    first, second = _served(pair, 4, slots=(0, 0))
    second.commit().free()
    third, fourth = _served(pair, 8, slots=(1, 0))
    second.landed(flags=KV_BIT)
    for part in (fourth, third, first):
        part.commit().free()
    first.ok()
    third.ok()
    assert counts(pair.finish().check(**SERVES)) == {"foreign-write": 1}


def test_a_decode_rank_that_was_left_out_is_a_hang(pair: History) -> None:
    """The room began with the other rank's part alone."""
    _healthy(pair, 5, 6, begin=_served)
    first = _Served(pair, 4, slot=0, mask=3, prefill=0, decode=0)
    second = _Served(pair, 4, slot=0, mask=3, prefill=0, decode=1)
    first.invoke().alloc().made().landed().sent().status().poll()
    second.alloc()
    for part in (second, first):
        part.abort(Reason.TIMEOUT).free()
    first.fail(Reason.TIMEOUT)
    assert counts(pair.finish().check(**SERVES)) == {"hang": 1}


ASTRAY = "decode asked another prefill than the router chose"


@pytest.mark.parametrize("asked", [0, 1])
def test_a_hang_says_whether_decode_asked_who_the_router_chose(h: History, asked: int) -> None:
    """Two data parallel ranks of prefill, an instance each as far as a history goes."""
    h.healthy(9, 11)
    request = h.request(4, prefill=1).invoke()
    request.prefill = asked
    request.alloc().abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    report = h.finish().check()
    assert counts(report) == {"hang": 1}
    assert (ASTRAY in report.anomalies[0].detail) == (asked == 0)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FieldError, match=r"^prefill_tp: 3 is not allowed; use a multiple of decode_tp"):
        expect(prefill_tp=3, decode_tp=2)
    with pytest.raises(FieldError, match=r"^prefill_tp: 2 is not allowed; .* or a number that divides it"):
        expect(prefill_tp=2, decode_tp=3)
    with pytest.raises(FieldError, match=r"^decode_tp"):
        expect(decode_tp=0)
