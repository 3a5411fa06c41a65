"""Tenures and writes: what is proved, and what is merely concurrent."""

import pytest

from harness.history.event import KV_BIT, ROOM_BIT, Reason

from .builder import TICK_NS, History, counts
from .test_delivery import clean, only


def cancelled(h: History, room: int = 3):
    """A hand-off whose request was cancelled and whose slot 0 was freed before its write."""
    return h.begun(room, slot=0).abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)


def test_a_slot_given_out_twice(h):
    first = h.begun(3, slot=0)
    second = h.begun(4, slot=0)
    first.landed(begin=h.t - 20 * TICK_NS)
    second.landed().sent().status().commit().free().ok()
    first.sent().status().commit().ok()
    only(h, "double-alloc")


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_write_of_the_first_after_a_slot_was_given_out_twice(h, chunk):
    first = h.begun(3, slot=0)
    h.healthy(5, 7)
    second = h.begun(4, slot=0)
    first.landed()
    second.landed().sent().status().commit().free().ok()
    first.sent().status().commit().ok()
    assert counts(h.finish().check(chunk=chunk)) == {"double-alloc": 1, "foreign-write": 1}


@pytest.mark.parametrize("chunk", [1, 1000])
def test_tenures_that_last_for_many_steps(h, chunk):
    first = h.begun(3, slot=0)
    h.healthy(5, 7)
    first.landed().sent().status().commit().free()
    h.healthy(9, 11)
    h.handoff(4, slot=0)
    first.free(tenure=99).ok()
    second = h.begun(6, slot=0).free()
    h.healthy(13, 15)
    second.free().fail(Reason.CANCELLED)
    assert counts(h.finish().check(chunk=chunk)) == {"double-free": 2}


@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_write_is_judged_by_who_held_the_slot_when_it_began(h, chunk):
    first = cancelled(h)
    second = h.begun(4, slot=0)
    begin = h.now()
    second.landed().sent().status().commit().free().ok()
    h.healthy(5, 7)
    h.handoff(6, slot=0)
    h.healthy(9)
    first.landed(begin=begin)
    assert counts(h.finish().check(chunk=chunk)) == {"foreign-write": 1}


def test_a_slot_given_out_after_it_was_freed(h):
    h.handoff(3, slot=0)
    h.handoff(4, slot=0)
    clean(h)


def test_a_slot_freed_twice(h):
    h.handoff(3, slot=0).free()
    only(h, "double-free")


def test_a_slot_freed_by_one_that_does_not_hold_it(h):
    first = h.handoff(3, slot=0)
    second = h.begun(4, slot=0)
    first.free()
    second.landed().sent().status().commit().free().ok()
    only(h, "double-free")


def test_a_slot_freed_before_it_was_ever_given_out(h):
    h.request(3, slot=0).invoke().free(tenure=50).fail(Reason.CANCELLED)
    only(h, "double-free")


def test_a_dirty_slot(h):
    h.handoff(3, slot=0, word=2)
    assert only(h, "dirty-slot") == {"previous owner of the slot": 1}


def test_a_dirty_slot_where_no_clean_one_is_promised(h):
    h.handoff(3, slot=0, word=2)
    clean(h, clean_slot=False)


def test_a_write_into_anothers_tenure(h):
    first = cancelled(h)
    second = h.begun(4, slot=0)
    first.landed()
    second.landed().sent().status().commit().free().ok()
    assert only(h, "foreign-write") == {"room": 1, "fields": 1, "kv": 1}


def test_a_foreign_write_is_no_late_write_as_well(h):
    first = cancelled(h)
    second = h.begun(4, slot=0)
    first.landed()
    second.landed().sent().status().commit().free().ok()
    only(h, "foreign-write", drained_release=False)


def test_a_write_under_its_own_room_into_another_slot(h):
    other = h.begun(4, slot=1)
    h.begun(3, slot=0).landed(slot=1).landed().sent().status().commit().free().ok()
    other.landed().sent().status().commit().free().ok()
    only(h, "foreign-write")


def test_a_write_after_the_next_tenure_has_ended_too(h):
    first = cancelled(h)
    h.handoff(4, slot=0)
    first.landed()
    only(h, "late-write")


def test_a_write_seen_to_begin_before_its_own_alloc_proves_nothing(h):
    other = h.begun(3, slot=0)
    begin = h.now()
    other.landed().sent().status().commit().free().ok()
    h.begun(4, slot=0).sent().status().commit().free().landed(begin=begin).ok()
    clean(h)


def test_a_room_that_gets_a_slot_twice_is_not_foreign_to_itself(h):
    request = h.begun(3, slot=0).free()
    request.alloc().landed().abort(Reason.MISMATCH).free().fail(Reason.MISMATCH)
    only(h, "unexplained-abort")


def test_a_write_that_began_in_its_own_tenure_is_concurrent(h):
    first = h.begun(3, slot=0)
    begin = h.now()
    first.abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    second = h.begun(4, slot=0)
    first.landed(begin=begin)
    second.landed().sent().status().commit().free().ok()
    clean(h)


def test_a_write_that_began_just_as_its_tenure_ended_is_concurrent(h):
    first = cancelled(h)
    begin = h.t - TICK_NS  # the time of FREE: `fail` took one tick more
    first.landed(begin=begin)
    clean(h)


def test_a_write_one_tick_after_its_tenure_ended(h):
    first = cancelled(h)
    first.landed(begin=h.t - TICK_NS + 1)
    only(h, "late-write")


def test_a_late_write_into_a_free_slot(h):
    cancelled(h).landed(flags=KV_BIT)
    assert only(h, "late-write") == {"kv": 1}


def test_a_late_write_that_nobody_finds_and_no_promise_forbids(h):
    cancelled(h).landed()
    h.handoff(4, slot=0)
    report = clean(h, drained_release=False)
    assert any("1 late writes" in note for note in report.notes)


def test_a_late_write_into_a_slot_that_is_never_used_again(h):
    cancelled(h).landed()
    report = clean(h, drained_release=False)
    assert any("1 late writes" in note for note in report.notes)


def test_a_late_write_that_the_next_tenure_finds(h):
    cancelled(h).landed()
    h.handoff(4, slot=0, word=3)
    only(h, "late-write", drained_release=False, clean_slot=False)


def test_a_late_write_after_which_another_room_is_found(h):
    cancelled(h).landed()
    h.handoff(4, slot=0, word=99)
    clean(h, drained_release=False, clean_slot=False)


def test_a_late_write_without_its_room_is_not_what_the_next_tenure_finds(h):
    h.begun(3, slot=0).landed(flags=ROOM_BIT).abort(Reason.CANCELLED).free(word=3).landed(flags=1).fail(
        Reason.CANCELLED
    )
    h.handoff(4, slot=0, word=3)
    clean(h, drained_release=False, clean_slot=False)


def test_several_writes_of_one_handoff(h):
    request = h.begun(3)
    request.landed(flags=KV_BIT).landed(flags=1).landed().sent().status().commit().free().ok()
    clean(h)


def test_a_write_that_is_still_going_on_at_commit(h):
    request = h.begun(3).sent().status()
    begin = h.now()
    request.commit().free().landed(begin=begin).ok()
    clean(h)


def test_each_late_write_counts(h):
    cancelled(h).landed().landed().landed()
    report = h.finish().check()
    assert counts(report) == {"late-write": 3}
    assert report.anomalies[0].of == 5


def test_a_history_without_writes_says_what_it_cannot_show(tmp_path):
    h = History(tmp_path / "h").start()
    for room in (1, 2):
        h.begun(room, slot=room % 2).status().poll().sent().commit().free().ok()
    report = clean(h)
    assert any("no LANDED" in what for what in report.not_checked)
