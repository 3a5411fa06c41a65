"""A time-out while the machine stood still is neither an anomaly nor a pass; whatever else happened then is what it is."""

from __future__ import annotations

import pytest

from harness.history.event import NodeEvent, Reason, Role, Verb

from .builder import History, counts

SECOND_NS = 1_000_000_000


def _stall(h: History, length_ns: int) -> None:
    """The driver was not run for so long, up to now."""
    h.t += length_ns
    h.driver.event(Verb.NODE, code=NodeEvent.STALLED, flags=1, value=Role.DRIVER << 32, a=length_ns)


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.DRIVER_TIMEOUT])
def test_a_time_out_in_a_stall_is_not_known_to_be_a_hang(h: History, reason: Reason) -> None:
    request = h.begun(3)
    _stall(h, 5 * SECOND_NS)
    if reason == Reason.TIMEOUT:
        request.abort(reason).free().fail(reason)
    else:
        request.info(reason)
    report = h.finish(census=reason == Reason.TIMEOUT).check()
    assert not {"hang", "crash"} & counts(report).keys()
    assert report.verdict != "valid"
    assert any("1 time-outs while the driver itself was not run (5.0 s in all)" in what for what in report.not_checked)


def test_an_end_that_is_late_by_a_stall_is_not_known_to_be_a_hang(h: History) -> None:
    request = h.begun(3)
    _stall(h, 5 * SECOND_NS)
    request.landed().sent().status().commit().free().ok()
    report = h.finish().check()
    assert counts(report) == {}
    assert report.verdict == "unknown"


def test_a_time_out_outside_the_stall_is_a_hang(h: History) -> None:
    early = h.begun(3, slot=0)
    h.t += 5 * SECOND_NS
    early.abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    _stall(h, 5 * SECOND_NS)
    late = h.begun(4, slot=1)
    h.t += 5 * SECOND_NS
    late.abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    assert counts(h.finish().check()) == {"hang": 2}


def test_a_short_stall_explains_no_time_out(h: History) -> None:
    request = h.begun(3)
    h.t += 4 * SECOND_NS
    _stall(h, SECOND_NS)
    request.abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    assert counts(h.finish().check()) == {"hang": 1}


def test_two_stalls_add_up(h: History) -> None:
    request = h.begun(3)
    for _ in range(2):
        h.t += SECOND_NS
        _stall(h, 2 * SECOND_NS)
    request.abort(Reason.TIMEOUT).free().fail(Reason.TIMEOUT)
    assert counts(h.finish().check()) == {}


def test_wrong_data_in_a_stall_is_wrong_data(h: History) -> None:
    request = h.begun(3)
    _stall(h, 5 * SECOND_NS)
    request.row = h.request(2).row
    request.landed().sent().status().commit().free().ok()
    assert counts(h.finish().check()) == {"misdelivery": 1}


def test_a_stall_that_nothing_timed_out_in_changes_nothing(h: History) -> None:
    _stall(h, 5 * SECOND_NS)
    assert h.healthy(3, 4).finish().check().verdict == "valid"
