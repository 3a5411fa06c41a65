"""How full the slots were and how long hand-offs waited, to the nanosecond of a clock that the test sets."""

import pytest

from harness.history.event import NodeEvent, Phase, Resource

from .builder import History


def held(h, room, *, slot, begin, end, invoke=None):
    """A healthy hand-off that holds `slot` from `begin` to `end` ns after the load began."""
    request = h.request(room, slot=slot)
    h.t = h.zero + (begin - 10 if invoke is None else invoke) - h.tick_ns
    request.invoke()
    h.t = h.zero + begin - h.tick_ns
    request.alloc().made().landed().sent().status().poll().commit()
    assert h.t < h.zero + end
    h.t = h.zero + end - h.tick_ns
    request.free().ok()


@pytest.fixture
def h(tmp_path):
    made = History(tmp_path)
    made.tick_ns = 1
    made.node(NodeEvent.UP)
    return made


def load(h, at):
    h.t = at - h.tick_ns
    h.phase(Phase.LOAD)
    h.zero = at


def drain(h, at):
    h.t = h.zero + at - h.tick_ns
    return h.finish()


@pytest.mark.parametrize("chunk", [1, 2, 20_000])
def test_the_share_of_slots_held_is_weighted_by_time_and_counts_the_load_only(h, chunk):
    h.zero = h.t + 100_000
    held(h, 1, slot=0, begin=-2000, end=-1000)  # warm-up: not counted
    load(h, h.zero)
    held(h, 2, slot=0, begin=1000, end=4000)
    held(h, 3, slot=1, begin=5000, end=6000)
    report = drain(h, 10_000).check(chunk=chunk)
    assert report.slot_occupancy == pytest.approx((3000 + 1000) / (2 * 10_000))


@pytest.mark.parametrize("chunk", [1, 2, 20_000])
def test_a_slot_that_is_held_across_the_ends_of_the_load_counts_in_part(h, chunk):
    h.zero = h.t + 100_000
    early, late = h.request(1, slot=0), h.request(2, slot=1)
    h.t = h.zero - 5000
    early.invoke().alloc().made().landed().sent().status().poll().commit()
    h.census(Resource.THREADS, 5, rest=False)  # with one hand-off at a step the tenure lies across two steps
    load(h, h.zero)
    h.t = h.zero + 2000 - 1
    early.free().ok()
    h.t = h.zero + 7000 - 11
    late.invoke()
    h.t = h.zero + 7000 - 1
    late.alloc().made().landed().sent().status().poll().commit()
    h.t = h.zero + 10_000 - 1
    h.phase(Phase.DRAIN)
    late.free().ok()
    h.phase(Phase.FINISHED)
    assert h.check(chunk=chunk).slot_occupancy == pytest.approx((2000 + 3000) / (2 * 10_000))


def test_the_wait_for_a_slot_runs_from_the_request_to_its_alloc(h):
    h.zero = h.t + 100_000
    load(h, h.zero)
    held(h, 1, slot=0, begin=2_000_000, end=2_100_000, invoke=1_000_000)
    report = drain(h, 3_000_000).check()
    assert report.slot_wait_ms["p50"] == pytest.approx(1.0, rel=0.01)
    assert report.slot_wait_ms["max"] == pytest.approx(1.0)


def test_nothing_ran(h):
    h.zero = h.t
    load(h, h.zero + 1000)
    report = drain(h, 1000).check()
    assert (report.slot_occupancy, report.slot_wait_ms) == (0.0, {})
