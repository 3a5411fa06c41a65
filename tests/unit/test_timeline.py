"""A witness as text: relative times, letters for rooms, and every verb in words."""

from __future__ import annotations

from harness.history.event import TAGGED_FIELDS, Verb
from harness.timeline import _WORDS, render

A, B = "0x5dcccb213a853afb", "0x65ed4f83f6995e37"


def _event(verb: str, t_us: float, room: str | None = None, **fields: object) -> dict:
    event = {"process": "decode-0", "thread": "main", "incarnation": 1, "seq": 1, "t_us": t_us, "verb": verb}
    return event | ({"room": room, "slot": 9, "tenure": 8} if room else {}) | fields


def test_a_false_abort_reads_as_what_happened() -> None:
    text = render(
        [
            _event("FREE", 1000.4, A, room_word=A),
            _event("ALLOC", 1100.4, B, room_word=A),
            _event("STATUS", 1200.4, B, status=4, visible=1),
            _event("ABORT", 12000.4, B, reason="MISMATCH", room_word=A),
            _event("LANDED", 12100.4, B, thread="recv", parts=" ".join((*TAGGED_FIELDS, "room", "kv"))),
            _event("HANDOFF", 12200.4, B, process="driver-0", kind="FAIL", reason="MISMATCH"),
        ]
    )
    assert text.splitlines() == [
        f"rooms: A = {A}, B = {B}",
        "+    0 us  decode-0       A  slot 9 (tenure 8) freed, room A in it",
        "+  100 us  decode-0       B  slot 9 (tenure 8) given out, room A in it",
        "+  200 us  decode-0       B  Success received, writes known to be visible",
        "+11000 us  decode-0       B  aborted: MISMATCH, found room A",
        "+11100 us  decode-0 recv  B  the write landed in slot 9 (tenure 8): all fields, room, kv",
        "+11200 us  driver-0       B  request failed: MISMATCH",
    ]


def test_every_verb_has_words_and_bears_missing_fields() -> None:
    assert _WORDS.keys() == {verb.name for verb in Verb}
    for verb in Verb:
        for kind in ({}, {"kind": "INVOKE"}, {"kind": "OK"}, {"kind": "INFO"}):
            assert render([_event(verb.name, 0.0, **kind)]).startswith("+0 us  decode-0")


def test_rooms_of_no_event_stay_numbers_and_more_rooms_than_letters_are_told_apart() -> None:
    assert render([_event("ALLOC", 0.0, A, room_word="0x7")]).endswith("given out, room 0x7 in it")
    many = render([_event("FREE", float(i), hex(i + 1)) for i in range(30)]).splitlines()
    assert len({line.split("decode-0")[1].split()[0] for line in many[1:]}) == 30


def test_fields_are_named_by_their_group_where_all_of_it_is_there() -> None:
    parts = "output_ids cached_tokens " + " ".join(TAGGED_FIELDS[2:6]) + " output_topk_p room"
    line = render([_event("LANDED", 0.0, A, parts=parts, more=1)]).splitlines()[-1]
    assert line.endswith(
        "part of the write landed in slot 9 (tenure 8): output_ids, cached_tokens, output_topk_p, logprobs, room"
    )


def test_events_of_no_request_and_of_a_restarted_node() -> None:
    text = render([_event("NODE", 5.0, process="driver-0", node="decode-0", event="EXIT", exit_status=-9)])
    assert text == "+0 us  driver-0    decode-0: EXIT, exit status -9"
    assert "decode-0.2" in render([_event("FREE", 5.0, A, incarnation=2)])
    assert render([]) == "no events"
