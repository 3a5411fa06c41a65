"""Resources, liveness, coverage, several nodes, restarts and histories that were cut off."""

import os

import pytest

from harness.history.event import KV_BIT, RECORD_BYTES, NodeEvent, Phase, Reason, Resource, Role

from .builder import TICK_NS, History, counts, tags
from .test_delivery import clean, only

# --- resources


@pytest.mark.parametrize("resource", [Resource.SLOTS, Resource.PAGES, Resource.ROOMS])
def test_something_is_still_held(h, resource):
    h.census(resource, 1, 1, 2)
    h.phase(Phase.REST).node(NodeEvent.EXIT, asked=True).phase(Phase.FINISHED)
    report = h.check()
    assert counts(report) == {"leak": 1}
    assert report.anomalies[0].detail == {f"decode-0 {resource.name.lower()} held": 1}
    assert report.leaked == 1
    assert report.resources["decode-0"][resource.name.lower()] == {"held": 1, "free": 1, "size": 2}


def test_something_is_missing(h):
    h.census(Resource.PAGES, 0, 6, 8)
    assert only(h, "leak") == {"decode-0 pages missing": 2}


def test_nothing_is_missing(h):
    h.census(Resource.PAGES, 0, 8, 8).census(Resource.ROOMS, 0, 5)
    clean(h)


@pytest.mark.parametrize(("grown", "found"), [(8, {}), (9, {"leak": 1})])
def test_descriptors_above_the_baseline(h, grown, found):
    h.census(Resource.DESCRIPTORS, 20, rest=False).census(Resource.DESCRIPTORS, 20 + grown)
    assert counts(h.finish().check()) == found


def test_descriptors_without_a_baseline_are_not_checked(h):
    h.census(Resource.DESCRIPTORS, 400)
    report = clean(h)
    assert any("no baseline" in what for what in report.not_checked)


def test_held_before_the_run_came_to_rest(h):
    h.census(Resource.SLOTS, 1, 1, 2, rest=False)
    clean(h)


def test_no_census_is_not_valid(h):
    report = h.finish(census=False).check()
    assert (counts(report), report.verdict) == ({}, "unknown")
    assert report.not_checked == ["leak: no census at rest was recorded"]


def test_a_node_that_was_not_counted(h):
    h.node(NodeEvent.UP, Role.PREFILL, 3)
    report = h.finish().check()
    assert report.verdict == "unknown"
    assert report.not_checked == ["leak in prefill-3: no census at rest"]


def test_counters_of_the_nodes(h):
    h.census(Resource.LATE_MESSAGES, 3).census(Resource.BAD_MESSAGES, 4)
    report = clean(h)
    assert (report.late_messages, report.bad_messages) == (3, 4)


@pytest.mark.parametrize("event", [NodeEvent.EXIT, NodeEvent.LOST])
def test_a_crash(h, event):
    h.node(event, Role.PREFILL, 1)
    assert only(h, "crash") == {"prefill-1": 1}


@pytest.mark.parametrize("asked", [True, False])
def test_an_end_that_was_asked_for_or_expected(h, asked):
    h.node(NodeEvent.EXIT, Role.PREFILL, 1, asked=asked)
    clean(h, expected_exit=not asked)


# --- liveness


def test_the_driver_stopped_waiting(h):
    h.begun(3).landed().sent().status().info(Reason.DRIVER_TIMEOUT)
    assert only(h, "hang") == {"driver stopped waiting": 1}


def test_the_engines_time_out(h):
    h.begun(3).sent().status().abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    assert only(h, "hang") == {"engine's time-out": 1}


def test_a_time_out_without_abort(h):
    h.request(3).invoke().fail(Reason.TIMEOUT)
    assert only(h, "hang") == {"engine's time-out": 1}


@pytest.mark.parametrize(("late_ns", "found"), [(0, {}), (1, {"hang": 1})])
def test_an_end_after_the_bound(h, late_ns, found):
    request = h.request(3).invoke()
    begin = h.t
    request.alloc().made().landed().sent().status().commit().free()
    h.t = begin + 10**9 - TICK_NS + late_ns
    request.ok()
    report = h.finish().check()
    assert counts(report) == found
    assert report.hung == sum(found.values())


def test_each_hang_counts_once(h):
    request = h.begun(3).sent().status().abort(Reason.TIMEOUT).free()
    h.t += 5 * 10**9
    request.info(Reason.DRIVER_TIMEOUT)
    assert only(h, "hang") == {"driver stopped waiting": 1}


# --- coverage, rate and latency


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"min_reuse": 2}, "slot reuse"),
        ({"slots": 3}, "slot reuse"),
        ({"min_window": 3}, "status before data"),
        ({"min_committed": 3}, "committed"),
        ({"min_rate_per_s": 1e9}, "rate"),
    ],
)
def test_without_coverage_the_verdict_is_unknown(h, change, name):
    report = h.finish().check(**change)
    assert (report.verdict, counts(report)) == ("unknown", {})
    assert [entry.name for entry in report.coverage if not entry.met] == [name]


def test_an_anomaly_outweighs_missing_coverage(h):
    h.handoff(3, slot=0, row=tags(2))
    assert h.finish().check(min_window=50).verdict == "invalid"


def test_what_opens_the_window(h):
    h.handoff(3)
    h.begun(4).sent().status().abort(Reason.CANCELLED).landed().free().fail(Reason.CANCELLED)
    assert clean(h).window_opened == 2


def test_a_commit_of_another_room_opens_the_window(h):
    h.handoff(4, slot=0, word_read=2)
    assert clean(h).window_opened == 3


def test_a_mismatch_abort_opens_the_window(h):
    h.begun(3).sent().status().abort(Reason.MISMATCH, word=0).free().fail(Reason.MISMATCH)
    assert h.finish().check().window_opened == 3


def test_reuse_is_counted_for_each_slot(h):
    h.healthy(4, 6, 8)
    report = clean(h)
    assert (report.reuse_min, report.reuse_max) == (1, 4)


def test_rate_and_latency_are_those_of_the_load(tmp_path):
    h = History(tmp_path / "h")
    h.node(NodeEvent.UP).phase(Phase.WARMUP).handoff(1, slot=1, poll=True)
    h.phase(Phase.LOAD)
    begin = h.t
    h.request(2).invoke(intended=h.t - 10**6).fail(Reason.CANCELLED)
    request = (
        h.request(3).invoke(intended=h.t + TICK_NS - 2 * 10**6).alloc().made().landed().sent().status().commit().free()
    )
    h.t += 10**6
    request.ok()
    h.t = begin + 10**9 - TICK_NS
    report = h.finish().check()
    assert report.rate_per_s == pytest.approx(1)
    assert report.latency_ms["max"] == pytest.approx(3, rel=0.01)
    assert report.latency_ms["p50"] == pytest.approx(report.latency_ms["max"], rel=0.01)


def test_latency_counts_from_the_invoke_where_no_time_was_intended(h):
    report = h.finish().check()
    assert report.latency_ms["max"] == pytest.approx(10 * TICK_NS / 1e6)


# --- the three verdicts of runs that ended early


def test_an_interrupted_run_may_be_valid(h):
    h.begun(3).landed().info(Reason.INTERRUPTED)
    h.phase(Phase.INTERRUPTED)
    report = clean(h)
    assert report.interrupted


def test_an_interrupted_run_without_coverage_is_unknown(h):
    report = h.phase(Phase.INTERRUPTED).finish().check(min_window=10)
    assert (report.interrupted, report.verdict) == (True, "unknown")


def cut(h: History, process: str, thread: str = "main") -> None:
    """Cut a stream within its last record, as SIGKILL does."""
    h.close()
    path = h.folder / f"{process}.1.{thread}.hist"
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.truncate(size - 4)
        file.seek(0, os.SEEK_END)
        file.write(bytes(RECORD_BYTES * 3))


def test_a_driver_that_was_killed(h):
    h.finish()
    cut(h, "driver")
    report = h.check()
    assert (report.verdict, report.complete, counts(report)) == ("unknown", False, {})


def test_an_anomaly_before_the_driver_was_killed_counts(h):
    h.handoff(3, slot=0, row=tags(2))
    h.finish()
    cut(h, "driver")
    report = h.check()
    assert (report.verdict, counts(report)) == ("invalid", {"misdelivery": 1})


def test_a_node_that_was_killed_leaves_a_whole_history(h):
    request = h.begun(3)
    request.landed().sent().status().history.node(NodeEvent.EXIT, asked=True)
    request.info(Reason.NODE_EXIT)
    h.finish()
    cut(h, "decode-0")
    report = h.check()
    assert (report.verdict, counts(report)) == ("valid", {})


# --- several nodes, restarts


def test_slots_of_two_decodes_are_different_slots(h):
    h.healthy(4)
    first = h.begun(5, slot=0, decode=0)
    second = h.begun(6, slot=0, decode=1)
    for request in (first, second):
        request.landed().sent().status().poll().commit().free().ok()
    h.handoff(7, slot=1, decode=1)
    report = clean(h)
    assert (report.reuse_min, report.reuse_max) == (1, 3)


def test_a_slot_of_the_second_decode_that_was_never_used(h):
    h.handoff(3, slot=0, decode=1)
    report = h.finish().check()
    assert (report.reuse_min, report.verdict) == (0, "unknown")


def test_a_foreign_write_in_the_second_decode(h):
    first = h.begun(3, slot=0, decode=1).abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    h.handoff(4, slot=1, decode=1)
    second = h.begun(5, slot=0, decode=1)
    first.landed(flags=KV_BIT)
    second.landed().sent().status().commit().free().ok()
    only(h, "foreign-write")


def test_previous_owners_are_those_of_the_same_decode(h):
    h.handoff(3, slot=0, decode=1)
    h.handoff(4, slot=1, decode=1)
    h.handoff(5, slot=0, decode=1, row=tags(2))
    assert only(h, "misdelivery")["another request"] == 2


def test_a_restarted_decode_begins_with_free_slots(h):
    h.begun(3, slot=0).info(Reason.NODE_EXIT)
    h.node(NodeEvent.EXIT, asked=True).node(NodeEvent.UP)
    h.incarnations[0] = 2
    h.handoff(4, slot=0)
    report = clean(h)
    assert report.reuse_max == 3


def test_a_write_for_the_dead_that_lands_in_the_living(h):
    old = h.begun(3, slot=0)
    old.info(Reason.NODE_EXIT)
    h.node(NodeEvent.EXIT, asked=True).node(NodeEvent.UP)
    h.incarnations[0] = 2
    new = h.begun(4, slot=0)
    old.landed(by=h.decode(0, "recv"))
    new.landed(by=h.decode(0, "recv")).sent().status().commit().free().ok()
    only(h, "foreign-write")


def test_several_prefills(h):
    h.request(3, prefill=1).invoke().alloc().made().landed().sent().status().commit().free().ok()
    clean(h)
