"""Faults excuse what they explain, of the request that they were done to, and nothing else."""

import pytest

from harness.history.event import FaultEvent, FaultKind, Kind, Loss, NodeEvent, Reason, Role, Verb

from .builder import counts
from .test_delivery import clean, only

SECOND_NS = 1_000_000_000


def test_cancelled_without_anybodys_asking(h):
    h.begun(3).abort(Reason.CANCELLED, asked=False).free().fail(Reason.CANCELLED, asked=False)
    assert only(h, "abort") == {"CANCELLED": 1}


def test_another_requests_abort_is_no_excuse(h):
    h.begun(3, slot=0).abort(Reason.CANCELLED, asked=False).free().fail(Reason.CANCELLED, asked=False)
    h.begun(4, slot=1).hit(FaultKind.ABORT).landed().sent().status().poll().commit().free().ok()
    only(h, "abort")


@pytest.mark.parametrize("kind", [FaultKind.FAIL, FaultKind.ABORT])
def test_prefill_may_fail_what_was_failed_or_given_up(h, kind):
    h.begun(3).hit(kind).abort(Reason.PREFILL_FAILED).free().fail(Reason.PREFILL_FAILED)
    clean(h)


@pytest.mark.parametrize(
    "kind", [FaultKind.HOLD_WRITE, FaultKind.DELAY, FaultKind.DROP, FaultKind.CORRUPT, FaultKind.KILL]
)
def test_prefill_may_not_fail_what_was_merely_slow(h, kind):
    h.begun(3).hit(kind).abort(Reason.PREFILL_FAILED).free().fail(Reason.PREFILL_FAILED)
    only(h, "abort")


def test_what_was_lost_explains_a_time_out(h):
    h.begun(3).hit(FaultKind.DROP, loss=Loss.NEEDED).abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    clean(h)


@pytest.mark.parametrize("kind", [FaultKind.ABORT, FaultKind.DUPLICATE, FaultKind.FAIL, FaultKind.KILL])
def test_where_nothing_was_lost_a_time_out_is_a_hang(h, kind):
    h.begun(3).hit(kind).abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    only(h, "hang")


def test_what_the_client_was_not_told_explains_only_its_own_patience(h):
    h.begun(3, slot=0).hit(FaultKind.DROP, loss=Loss.CLIENT).info(Reason.DRIVER_TIMEOUT)
    h.begun(4, slot=1).hit(FaultKind.DROP, loss=Loss.NEEDED).info(Reason.DRIVER_TIMEOUT)
    assert only(h, "hang") == {"driver stopped waiting": 1}


@pytest.mark.parametrize(("held_ns", "found"), [(SECOND_NS, {}), (10, {"hang": 1})])
def test_a_hold_explains_a_time_out_that_it_mostly_made(h, held_ns, found):
    h.begun(3).hit(FaultKind.HOLD_WRITE, held_ns=held_ns).abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    h.healthy(5, 6)
    assert counts(h.finish().check()) == found


def _stopped(h, *, end_before: bool, kind: FaultKind = FaultKind.STOP):
    fault = {"flags": kind << 16, "value": Role.DECODE << 32}
    h.driver.event(Verb.FAULT, code=FaultEvent.BEGIN, **fault)
    if end_before:
        h.driver.event(Verb.FAULT, code=FaultEvent.END, **fault)
    request = h.begun(3)
    if not end_before:
        h.driver.event(Verb.FAULT, code=FaultEvent.END, **fault)
    request.abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)


@pytest.mark.parametrize("kind", [FaultKind.STOP, FaultKind.FILL_QUEUE, FaultKind.LINK])
def test_a_stopped_node_explains_time_outs_of_requests_open_then(h, kind):
    _stopped(h, end_before=False, kind=kind)
    clean(h)


@pytest.mark.parametrize("kind", [FaultKind.STOP, FaultKind.LINK])
def test_a_stop_that_was_over_explains_nothing(h, kind):
    _stopped(h, end_before=True, kind=kind)
    only(h, "hang")


def test_another_nodes_stop_explains_nothing(h):
    h.driver.event(Verb.FAULT, code=FaultEvent.BEGIN, flags=FaultKind.STOP << 16, value=Role.DECODE << 32 | 5)
    h.begun(3).abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    only(h, "hang")


def test_a_cut_link_explains_time_outs_of_all_nodes_and_nothing_else(h):
    h.driver.event(Verb.FAULT, code=FaultEvent.BEGIN, flags=FaultKind.LINK << 16)
    h.begun(3, slot=0).abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    h.begun(4, slot=1).abort(Reason.PREFILL_FAILED).free().fail(Reason.PREFILL_FAILED)
    only(h, "abort")


def test_wrong_data_is_never_excused(h):
    kinds = [kind for kind in FaultKind if kind not in {FaultKind.BAD_ROOM, FaultKind.DUPLICATE_ROOM}]
    for kind in kinds:
        h.handoff(10 + kind, slot=kind % 2, pages=1).hit(kind, loss=Loss.NEEDED)
    assert counts(h.finish().check()) == {"foreign-kv": len(kinds)}


def test_a_corrupted_room_may_be_called_a_mismatch_but_a_stale_one_not(h):
    h.begun(3, slot=0).sent().status().hit(FaultKind.CORRUPT).abort(Reason.MISMATCH, word=9).free().fail(
        Reason.MISMATCH
    )
    h.begun(4, slot=1).sent().status().hit(FaultKind.ABORT).abort(Reason.MISMATCH, word=9).free().fail(Reason.MISMATCH)
    only(h, "foreign-abort")


def test_a_late_write_is_not_excused_by_an_abort(h):
    first = h.begun(3, slot=0)
    first.abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    begin = h.now()
    first.landed(begin=begin)
    only(h, "late-write")


def _probe(h, code: FaultEvent, answer: Reason = Reason.NONE, kind: FaultKind = FaultKind.BAD_ROOM):
    h.driver.event(Verb.FAULT, code=FaultEvent.HIT, flags=kind << 16, b=1 << 48)
    if code is not FaultEvent.HIT:
        h.driver.event(Verb.FAULT, code=code, flags=kind << 16, b=1 << 48, c=answer)


def test_a_probe_that_was_refused(h):
    _probe(h, FaultEvent.ANSWERED, Reason.REJECTED)
    h.healthy(3, 4)
    clean(h)


@pytest.mark.parametrize(
    ("code", "answer", "what"),
    [
        (FaultEvent.ANSWERED, Reason.NONE, "served"),
        (FaultEvent.ANSWERED, Reason.TIMEOUT, "failed otherwise"),
        (FaultEvent.SILENT, Reason.NONE, "not answered"),
        (FaultEvent.HIT, Reason.NONE, "no answer recorded"),
    ],
)
def test_a_probe_that_was_not(h, code, answer, what):
    _probe(h, code, answer)
    h.healthy(3, 4)
    assert only(h, "not-refused") == {what: 1}


def _lost(h, room: int, loss: Loss = Loss.CLIENT):
    h.driver.event(Verb.FAULT, room, code=FaultEvent.HIT, flags=FaultKind.DROP << 16, c=loss)


def _silent(h, room: int, number: int = 0):
    h.driver.event(Verb.FAULT, code=FaultEvent.HIT, flags=FaultKind.DUPLICATE_ROOM << 16, b=(1 << 48) + number)
    h.driver.event(Verb.FAULT, room, code=FaultEvent.SILENT, flags=FaultKind.DUPLICATE_ROOM << 16, b=(1 << 48) + number)


def test_nobody_answers_a_probe_that_was_lost_on_purpose(h):
    _silent(h, 77)
    _lost(h, 77)  # the swarm's: what picks a room loses its first request and the second
    h.healthy(3, 4)
    clean(h)


@pytest.mark.parametrize(("room", "loss"), [(78, Loss.CLIENT), (77, Loss.NEEDED)])
def test_a_probe_is_not_excused_by_what_was_lost_elsewhere(h, room, loss):
    _silent(h, 77)
    _lost(h, room, loss)
    h.healthy(3, 4)
    assert only(h, "not-refused") == {"not answered": 1}


def test_one_lost_message_excuses_one_probe(h):
    _silent(h, 0, 0)
    _silent(h, 0, 1)
    _lost(h, 0)
    h.healthy(3, 4)
    assert only(h, "not-refused") == {"not answered": 1}


def test_a_probe_with_a_live_room_is_not_done_to_its_owner(h):
    request = h.begun(3)
    h.driver.event(Verb.FAULT, 3, code=FaultEvent.HIT, flags=FaultKind.ABORT << 16, b=1 << 48)
    request.abort(Reason.CANCELLED, asked=False).free().fail(Reason.CANCELLED, asked=False)
    only(h, "abort")


def test_an_armed_fault_that_never_fired_is_no_pass(h):
    h.healthy(3, 4)
    report = h.finish().check(faults=("abort", "burst"))
    assert (report.verdict, counts(report)) == ("unknown", {})
    assert [(c.name, c.met) for c in report.coverage][-2:] == [("fault abort", False), ("fault burst", False)]


def test_armed_faults_that_fired(h):
    h.handoff(3, slot=0, poll=True).hit(FaultKind.DELAY, number=1)
    h.handoff(4, slot=1)
    h.prefill().event(Verb.FAULT, 4, code=FaultEvent.HIT, flags=FaultKind.DELAY << 16)
    report = h.finish().check(faults=("delay", "delay:message=abort"))
    assert (report.verdict, counts(report)) == ("valid", {})


def _registry_away(h, during, *, asked: bool = True):
    """The registry is killed, `during` happens, and it is back."""
    fault = {"flags": FaultKind.KILL << 16, "value": Role.REGISTRY << 32}
    h.driver.event(Verb.FAULT, code=FaultEvent.BEGIN, **fault)
    h.node(NodeEvent.EXIT, Role.REGISTRY, 0, asked=asked)
    during()
    h.node(NodeEvent.UP, Role.REGISTRY, 0)
    h.driver.event(Verb.FAULT, code=FaultEvent.END, **fault)


def test_requests_succeed_while_the_registry_is_away(h):
    _registry_away(h, lambda: h.healthy(3, 4))
    assert clean(h, faults=("kill:node=registry",)).committed == 4


def test_a_registry_that_nobody_killed_is_a_crash(h):
    _registry_away(h, lambda: h.healthy(3, 4), asked=False)
    only(h, "crash")


@pytest.mark.parametrize(
    ("reason", "name", "detail"),
    [
        (Reason.PEER_LOST, "abort", "peer was there"),
        (Reason.REJECTED, "abort", "REJECTED"),
        (Reason.TIMEOUT, "hang", "engine's time-out"),
    ],
)
def test_a_registry_that_is_away_excuses_no_failure(h, reason, name, detail):
    _registry_away(h, lambda: h.begun(3).abort(reason).free().fail(reason))
    assert only(h, name) == {detail: 1}


def test_a_killed_node_is_no_crash_and_its_end_no_excuse_for_a_time_out(h):
    h.node(NodeEvent.EXIT, Role.PREFILL, 0, asked=True)
    h.node(NodeEvent.UP, Role.PREFILL, 0)
    h.begun(3).abort(Reason.TIMEOUT).free()
    h.driver.event(Verb.HANDOFF, 3, kind=Kind.FAIL, code=Reason.TIMEOUT, b=2)
    report = h.finish().check()
    assert counts(report) == {"hang": 1}
