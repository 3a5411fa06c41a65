"""Failures: whose fault they were, and which are none."""

import pytest

from harness.history.event import NodeEvent, Reason, Role

from .builder import History, counts
from .test_delivery import clean, only


def aborted(h: History, *, found: int, read: int, room: int = 3):
    """A hand-off of slot 0 that is aborted as mismatched before its data has come."""
    request = h.begun(room, slot=0, word=found).sent().status()
    request.abort(Reason.MISMATCH, word=read)
    return request


def test_the_room_was_there_at_alloc(h):
    aborted(h, found=2, read=2).landed().free().fail(Reason.MISMATCH)
    assert only(h, "false-abort", clean_slot=False) == {"previous owner of the slot": 1}


def test_attribution_of_a_stale_room(h):
    aborted(h, found=2, read=2).landed().free().fail(Reason.MISMATCH)
    report = h.finish().check(clean_slot=False)
    assert report.abort_attribution == {"stale_room": 1, "foreign_write": 0, "unexplained": 0}
    assert (report.mismatch_aborts, report.false_aborts, report.other_aborts) == (1, 1, 0)


def test_an_older_room_that_was_there_at_alloc(h):
    aborted(h, found=77, read=77).landed().free().fail(Reason.MISMATCH)
    assert only(h, "false-abort", clean_slot=False) == {"another request": 1}


def test_another_room_came_after_alloc(h):
    aborted(h, found=0, read=2).landed().free().fail(Reason.MISMATCH)
    only(h, "foreign-abort")


def test_another_room_replaced_the_one_at_alloc(h):
    aborted(h, found=1, read=2).landed().free().fail(Reason.MISMATCH)
    report = h.finish().check(clean_slot=False)
    assert counts(report) == {"foreign-abort": 1}
    assert report.abort_attribution["foreign_write"] == 1


def test_a_foreign_write_landed_though_the_room_read_is_own(h):
    victim = h.request(4, slot=0)
    first = h.begun(3, slot=0).sent().status()
    begin = h.now()
    first.abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    victim.invoke().alloc().made().sent().status()
    first.landed(begin=begin)
    victim.abort(Reason.MISMATCH, word=4).free().fail(Reason.MISMATCH)
    only(h, "foreign-abort")


def test_nothing_explains_it(h):
    aborted(h, found=0, read=0).landed().free().fail(Reason.MISMATCH)
    report = h.finish().check()
    assert counts(report) == {"unexplained-abort": 1}
    assert report.abort_attribution["unexplained"] == 1


def test_its_own_room_explains_nothing(h):
    aborted(h, found=0, read=3).landed().free().fail(Reason.MISMATCH)
    only(h, "unexplained-abort")


def test_an_empty_slot_never_makes_a_false_abort(h):
    aborted(h, found=0, read=0).landed().free().fail(Reason.MISMATCH)
    assert h.finish().check().false_aborts == 0


def test_a_stale_room_that_is_replaced_in_time_is_no_abort(h):
    h.handoff(3, slot=0, word=2)
    clean(h, clean_slot=False)


def test_mismatch_aborts_are_anomalies_though_aborts_are_allowed(h):
    aborted(h, found=2, read=2).landed().free().fail(Reason.MISMATCH)
    only(h, "false-abort", clean_slot=False, aborts_allowed=True)


@pytest.mark.parametrize("reason", [Reason.PREFILL_FAILED, Reason.REJECTED])
def test_other_failures(h, reason):
    h.begun(3).abort(reason).free().fail(reason)
    assert only(h, "abort") == {reason.name: 1}


def test_a_failure_without_abort_or_slot(h):
    h.request(3).invoke().fail(Reason.REJECTED)
    assert only(h, "abort") == {"REJECTED": 1}


def test_aborts_on_purpose(h):
    h.begun(3).abort(Reason.PREFILL_FAILED).free().fail(Reason.PREFILL_FAILED)
    report = clean(h, aborts_allowed=True)
    assert report.other_aborts == 1


def test_cancelled_by_the_client(h):
    h.begun(3).abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    clean(h)


def test_a_peer_that_was_there(h):
    h.begun(3).abort(Reason.PEER_LOST).free().fail(Reason.PEER_LOST)
    assert only(h, "abort") == {"peer was there": 1}


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_peer_that_ended(h, role):
    h.begun(3).abort(Reason.PEER_LOST).free()
    h.node(NodeEvent.EXIT, role, 0, asked=True)
    h.driver.event(1, 3, kind=3, code=Reason.PEER_LOST, b=2)
    h.node(NodeEvent.UP, Role.DECODE, 0)
    clean(h)


def test_another_nodes_end_explains_nothing(h):
    h.begun(3).abort(Reason.PEER_LOST).free().fail(Reason.PEER_LOST)
    h.node(NodeEvent.EXIT, Role.PREFILL, 5, asked=True)
    assert only(h, "abort") == {"peer was there": 1}
