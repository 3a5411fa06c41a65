"""What makes a history unfit to be judged, and what does not."""

import json

import pytest

from harness.check import assumptions
from harness.check.assumptions import survey
from harness.errors import HistoryError
from harness.history.event import HEADER_BYTES, MAGIC, Kind, Reason, Verb
from harness.history.reader import open_streams

from .builder import History, counts, tags
from .test_delivery import clean


def broken(h: History) -> list[str]:
    """Finish, require that nothing was judged, and return what was broken."""
    h.handoff(50, slot=0, row=tags(2))  # an anomaly, which must not be told
    report = h.finish().check()
    assert (report.verdict, counts(report), report.requests, report.coverage) == ("unknown", {}, 0, [])
    assert report.not_checked
    return [note.removeprefix("assumption broken: ") for note in report.notes]


def test_a_gap_in_a_sequence(h):
    h.decode()._seq += 1
    assert broken(h) == ["decode-0.1.main record 11: seq does not count on from the record before"]


def test_time_that_runs_backwards(h):
    h.t -= 10**6
    h.prefill().event(Verb.SENT, 9)
    h.t += 10**6
    assert broken(h) == ["prefill-0.1.main record 5: time runs backwards"]


def test_equal_times_are_in_order(h):
    h.t -= 1_000
    h.driver.event(Verb.NODE, code=1)
    clean(h)


def test_an_unknown_verb(h):
    h.decode().event(99)
    assert broken(h) == ["decode-0.1.main record 11: unknown verb"]


@pytest.mark.parametrize("kind", [0, 5])
def test_an_unknown_kind(h, kind):
    h.driver.event(Verb.HANDOFF, 5, kind=kind)
    assert broken(h) == ["driver.1.main record 8: unknown kind"]


def test_a_gap_in_the_indices(h):
    h.request(3).invoke(index=3).fail(6)
    assert broken(h)[0] == "driver.1.main record 8: invoke index has a gap"


@pytest.mark.parametrize("room", [0, 2**63])
def test_a_room_that_cannot_be(h, room):
    h.request(room).invoke().fail(6)
    assert broken(h) == ["driver.1.main record 8: room is 0 or above 63 bits"]


def test_the_largest_room(h):
    h.driver.event(Verb.HANDOFF, 2**63 - 1, kind=Kind.INVOKE, b=2)
    h.driver.event(Verb.HANDOFF, 2**63 - 1, kind=Kind.INFO, code=Reason.INTERRUPTED, b=2)
    clean(h)


def test_a_room_that_is_used_again(h):
    h.request(2).invoke().fail(6)
    assert broken(h) == ["driver.1.main record 8: room was used before"]


def test_a_room_that_is_used_again_within_one_block(h):
    h.request(3).invoke().fail(6)
    h.request(3).invoke().fail(6)
    assert broken(h) == ["driver.1.main record 10: room was used before"]


def test_a_room_that_is_used_again_while_it_is_open(h, monkeypatch):
    monkeypatch.setattr(assumptions, "RECENT_ROOMS", 2)
    h.request(3).invoke()
    h.healthy(4, 5, 6, 7)
    h.request(3).invoke().fail(6)
    assert broken(h) == ["room 0x3 was used again while its hand-off was open"]


def test_a_room_that_was_used_long_ago(h, monkeypatch):
    monkeypatch.setattr(assumptions, "RECENT_ROOMS", 2)
    monkeypatch.setattr("harness.check.limits.LAG", 1)
    h.healthy(4, 5, 6, 7, 8)
    h.request(4).invoke().fail(Reason.CANCELLED)
    assert counts(h.finish().check(chunk=1)) == {}


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_rooms_are_recent_across_blocks(h, monkeypatch, block):
    monkeypatch.setattr(assumptions, "BLOCK", block)
    h.request(2).invoke().fail(6)
    assert broken(h) == ["driver.1.main record 8: room was used before"]


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_sequences_and_times_go_on_across_blocks(h, monkeypatch, block):
    monkeypatch.setattr(assumptions, "BLOCK", block)
    h.decode()._seq += 1
    h.t -= 10**6
    h.prefill().event(Verb.SENT, 9)
    h.t += 10**6
    assert broken(h) == [
        "decode-0.1.main record 11: seq does not count on from the record before",
        "prefill-0.1.main record 5: time runs backwards",
    ]


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist(h, slot):
    h.request(3, slot=slot).invoke().alloc().fail(6)
    assert broken(h) == ["decode-0.1.main record 11: slot outside the 2 that each decode has"]


def test_no_driver(tmp_path):
    h = History(tmp_path / "h")
    h.request(3).alloc()
    report = h.check()
    assert report.verdict == "unknown"
    assert report.notes == ["assumption broken: 0 driver streams; exactly one is needed"]


def test_two_drivers(h):
    h.stream("driver-1").event(Verb.PHASE, code=1)
    assert broken(h) == ["2 driver streams; exactly one is needed"]


def test_two_threads_that_give_out_slots(h):
    h.decode(0, "other").event(Verb.ALLOC, 9, 0, 9)
    assert broken(h) == ["decode-0.1.main and decode-0.1.other both give out slots; only one's order is known"]


def test_a_hole_in_a_stream(h):
    h.finish().close()
    path = h.folder / "prefill-0.1.main.hist"
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + 80 * 2)
        file.write(bytes(80))
    report = h.check()
    assert report.verdict == "unknown"
    assert len(report.notes) == 1
    assert "prefill-0.1.main record" in report.notes[0]


def test_several_broken_assumptions_are_all_told(h):
    h.decode().event(99)
    h.prefill().event(98)
    assert len(broken(h)) == 2


def test_an_empty_stream_is_no_harm(h):
    h.decode(0, "recv")
    clean(h)


def test_a_driver_that_recorded_nothing(tmp_path):
    h = History(tmp_path / "h")
    assert h.driver is not None
    assert h.check().verdict == "unknown"


def test_no_history_is_an_error(tmp_path):
    with pytest.raises(HistoryError):
        History(tmp_path / "h").check()


def test_the_span_of_a_run(h):
    begin = h.t
    h.finish().close()
    found = survey(open_streams(h.folder), 2)
    assert found.first_ns < begin < found.last_ns == h.t
    assert json.loads((h.folder / "driver.1.main.hist").read_bytes()[len(MAGIC) : HEADER_BYTES].rstrip(b"\0"))
