"""Expectations, intervals, and what a human is shown."""

import json

import pytest

from harness.check import ANOMALIES, RULES, Expectations
from harness.check.names import name_of, node_name
from harness.check.report import interval95
from harness.check.rules import DENOMINATORS
from harness.errors import FieldError
from harness.history.event import NodeEvent, Reason, Role

from .builder import expect, tags


def test_every_anomaly_has_a_subject_and_a_denominator():
    assert sorted(name for names in RULES.values() for name in names) == sorted(ANOMALIES)
    assert set(DENOMINATORS) == set(ANOMALIES)


def test_expectations_survive_json():
    asked = expect(min_rate_per_s=3, aborts_allowed=True)
    assert Expectations.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 0}, "slots: 0 is not allowed; use a whole number of at least 1"),
        ({"slots": True}, "slots: True is not allowed; use a whole number of at least 1"),
        ({"min_reuse": 1.5}, "min_reuse: 1.5 is not allowed; use a whole number of at least 0"),
        ({"hang_bound_s": -1}, "hang_bound_s: -1 is not allowed; use a number of at least 0"),
        ({"hang_bound_s": float("nan")}, "hang_bound_s: nan is not allowed; use a number of at least 0"),
        ({"hang_bound_s": "1"}, "hang_bound_s: '1' is not allowed; use a number of at least 0"),
        ({"clean_slot": 1}, "clean_slot: 1 is not allowed; use true or false"),
    ],
)
def test_values_that_are_not_allowed(change, message):
    with pytest.raises(FieldError) as caught:
        Expectations.from_dict(expect().to_dict() | change)
    assert str(caught.value) == message


def test_fields_that_are_unknown_or_missing():
    with pytest.raises(FieldError, match=r"^minimum: 3 is not allowed; use one of the fields slots, "):
        Expectations.from_dict(expect().to_dict() | {"minimum": 3})
    with pytest.raises(FieldError, match=r"^slots: None is not allowed"):
        Expectations.from_dict({"hang_bound_s": 1, "clean_slot": True, "drained_release": True})


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [
        (0, 0, 0, 1),
        (0, 2, 0, 1),
        (0, 300, 0, 0.01),
        (380, 3000, 0.11526, 0.13905),
        (10, 10, 0.72247, 1),
    ],
)
def test_intervals(count, of, low, high):
    assert interval95(count, of) == pytest.approx((low, high), abs=2e-5)


def test_a_report_is_json(h):
    h.handoff(3, slot=0, row=tags(2))
    report = h.finish().check()
    values = json.loads(json.dumps(report.to_dict()))
    found = values["anomalies"][0]
    assert (found["name"], found["count"], found["of"]) == ("misdelivery", 1, 3)
    assert found["rate"] == pytest.approx(1 / 3)
    assert found["meaning"] == ANOMALIES["misdelivery"]
    assert found["interval"][0] < 1 / 3 < found["interval"][1]
    assert len(values["unseen"]) == len(ANOMALIES) - 1
    lost = values["unseen"][0]
    assert (lost["name"], lost["interval"]) == ("lost", [0, 1])


def test_a_witness_tells_the_story(h):
    h.handoff(3, slot=0, poll=True, row=tags(2))
    report = h.finish().check()
    (witness,) = report.anomalies[0].witnesses
    times = [event["t_us"] for event in witness]
    assert times == sorted(times)
    assert len(witness) == 12
    told = [(event["verb"], event["room"]) for event in witness]
    for event in (("FREE", "0x2"), ("ALLOC", "0x3"), ("STATUS", "0x3"), ("COMMIT", "0x3"), ("FREE", "0x3")):
        assert event in told
    commit = witness[told.index(("COMMIT", "0x3"))]
    assert commit["fields"] == "output_ids cached_tokens"
    assert commit["tags"]["output_ids"] == hex(tags(2)[0])
    assert (commit["process"], commit["thread"], commit["slot"], commit["room_word"]) == (
        "decode-0",
        "main",
        0,
        "0x3",
    )
    alloc = witness[told.index(("ALLOC", "0x3"))]
    assert "room_word" not in alloc
    invoke = next(event for event in witness if event.get("kind") == "INVOKE" and event["room"] == "0x3")
    assert invoke["index"] == 2


def test_at_most_three_witnesses_and_those_of_the_first(h):
    for room in range(3, 10):
        h.handoff(room, slot=0, row=[5] * 9)
    (found,) = h.finish().check().anomalies
    assert found.count == 7
    rooms = [{event["room"] for event in witness} for witness in found.witnesses]
    assert [sorted(names) for names in rooms] == [["0x2", "0x3"], ["0x3", "0x4"], ["0x4", "0x5"]]


def test_a_write_is_shown_with_its_victim(h):
    first = h.begun(3, slot=0).abort(Reason.CANCELLED).free().fail(Reason.CANCELLED)
    second = h.begun(4, slot=0)
    first.landed()
    second.landed().sent().status().commit().free().ok()
    (found,) = h.finish().check().anomalies
    told = {(event["verb"], event["room"]) for event in found.witnesses[0]}
    assert {("FREE", "0x3"), ("LANDED", "0x3"), ("ALLOC", "0x4")} <= told
    landed = next(event for event in found.witnesses[0] if event["verb"] == "LANDED" and event["room"] == "0x3")
    assert landed["parts"].endswith("output_hidden_states room kv")


def test_a_crash_is_shown(h):
    h.node(NodeEvent.LOST, Role.PREFILL, 1)
    (found,) = h.finish().check().anomalies
    ((event,),) = found.witnesses
    assert (event["event"], event["node"], event["process"]) == ("LOST", "prefill-1", "driver")


def test_names_of_unknown_codes():
    assert name_of(Reason, 77) == "77"
    assert node_name(9 << 32 | 4) == "9-4"
