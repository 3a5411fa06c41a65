"""Shows findings to a human: the few events that tell what happened, looked up again once it is known which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from harness.check.arrays import U64, take
from harness.check.names import name_of, node_name
from harness.check.tally import Case, Tally
from harness.history.event import (
    KV_BIT,
    ROOM_BIT,
    ROW_VERBS,
    TAGGED_FIELDS,
    FaultEvent,
    FaultKind,
    Finding,
    Kind,
    NodeEvent,
    Phase,
    Reason,
    Refusal,
    Resource,
    Verb,
)
from harness.history.reader import Records, Stream

EVENTS = 12
"""Shown of one case."""
BLOCK = 16_384
_PER_ROOM = 64
"""Records kept of one room: it may have thousands of pages."""

Event = tuple[Stream, Records]

_SUBJECT = (
    Verb.ALLOC, Verb.COMMIT, Verb.ABORT, Verb.HANDOFF, Verb.FREE, Verb.LANDED, Verb.STATUS, Verb.MADE, Verb.USE,
    Verb.KV_PAGE, Verb.POLL, Verb.SENT, Verb.HOLD, Verb.REFUSED, Verb.FAULT,
)  # fmt: skip
_OTHER = (Verb.FREE, Verb.ALLOC, Verb.LANDED, Verb.MADE, Verb.COMMIT, Verb.ABORT)
_RANK = {(1, verb): 2 * i for i, verb in enumerate(_SUBJECT)} | {(0, verb): 2 * i + 5 for i, verb in enumerate(_OTHER)}
"""What is shown first where there is too much: of the subject, and of the others named in the case."""


def witnesses(streams: Sequence[Stream], tally: Tally, first_ns: int) -> dict[str, list[list[dict[str, Any]]]]:
    """Events of every case in `tally`, by anomaly; times are relative to `first_ns`. Walks the streams once more."""
    rooms = {room for finding in tally.found.values() for case in finding.cases for room in case.rooms}
    events = _events(streams, np.array(sorted(rooms), np.uint64)) if rooms else {}
    result = {}
    for name, finding in tally.found.items():
        cases = [_select(case, events) for case in finding.cases] + finding.shown
        result[name] = [[render(stream, record, first_ns) for stream, record in case[:EVENTS]] for case in cases[:3]]
    return result


def _events(streams: Sequence[Stream], rooms: U64) -> dict[int, list[Event]]:
    """Look up the records of each of `rooms`, sorted (n,)."""
    events: dict[int, list[Event]] = defaultdict(list)
    for stream in streams:
        for records in stream.chunks(BLOCK):
            at = np.searchsorted(rooms, records["room"])
            at[at == len(rooms)] = 0
            for i in np.flatnonzero(rooms[at] == records["room"]):
                kept = events[int(records["room"][i])]
                if len(kept) < _PER_ROOM:
                    kept.append((stream, take(records, np.array([i]))))
    return events


def _select(case: Case, events: Mapping[int, list[Event]]) -> list[Event]:
    """Choose the events that matter most and put them in the order of their times."""
    ranked = []
    for room in case.rooms:
        subject = int(room == case.rooms[0])
        for stream, record in events.get(room, []):
            rank = _RANK.get((subject, Verb(int(record["verb"][0]))), 99)
            ranked.append((rank, int(record["t_ns"][0]), stream.name, int(record["seq"][0]), (stream, record)))
    chosen = sorted(ranked, key=lambda entry: entry[:4])[:EVENTS]
    return [entry[4] for entry in sorted(chosen, key=lambda entry: entry[1:4])]


def _named(kind: type[IntEnum]) -> Callable[[int], str]:
    return lambda value: name_of(kind, value)


def _mask(value: int) -> str:
    names = [name for i, name in enumerate(TAGGED_FIELDS) if value >> i & 1]
    return " ".join(names + ["room"] * bool(value & ROOM_BIT) + ["kv"] * bool(value & KV_BIT))


def _plain(value: int) -> int:
    return value


Decoder = tuple[str, str, Callable[[int], Any]]
"""Field of the record, its name here, and how its value is shown."""

_NODE: Decoder = ("value", "node", node_name)
_WORD: Decoder = ("value", "room_word", hex)
_REASON: Decoder = ("code", "reason", _named(Reason))
_FIELDS: Decoder = ("code", "fields", _mask)
_BEGIN: Decoder = ("a", "begin_ns", _plain)
_PARTS: Decoder = ("flags", "parts", _mask)
_DIGEST: Decoder = ("flags", "kv_digest", hex)

_FORMS: Mapping[Verb, Sequence[Decoder]] = {
    Verb.PHASE: [("code", "phase", _named(Phase))],
    Verb.RESOURCE: [
        ("code", "resource", _named(Resource)), _NODE, ("flags", "at_rest", _plain), ("a", "held", _plain),
        ("b", "free", _plain), ("c", "size", _plain),
    ],
    Verb.NODE: [
        ("code", "event", _named(NodeEvent)), _NODE, ("flags", "asked_for", _plain),
        ("a", "exit_status", lambda value: value - 2**32), ("b", "pid", _plain),
    ],
    Verb.ALLOC: [_WORD, ("a", "pages", _plain), ("c", "prefill", _plain)],
    Verb.STATUS: [("code", "status", _plain), ("flags", "rank", _plain), ("a", "visible", _plain)],
    Verb.POLL: [("code", "finding", _named(Finding)), _WORD],
    Verb.COMMIT: [_FIELDS, _DIGEST, _WORD],
    Verb.ABORT: [_REASON, _WORD],
    Verb.FREE: [_WORD],
    Verb.KV_PAGE: [
        ("value", "page_room", hex), ("code", "torn", _plain), ("a", "layer", _plain), ("b", "page", _plain),
        ("c", "position", _plain),
    ],
    Verb.USE: [_FIELDS],
    Verb.MADE: [_FIELDS, _DIGEST, _WORD],
    Verb.SENT: [
        ("code", "status", _plain), ("flags", "visible", _plain), ("a", "posted_ns", _plain), ("b", "token", _plain),
    ],
    Verb.LANDED: [_PARTS, _BEGIN, ("code", "more", _plain)],
    Verb.REFUSED: [_PARTS, _BEGIN, ("code", "refusal", _named(Refusal))],
    Verb.FAULT: [
        ("code", "event", _named(FaultEvent)), ("flags", "fault", lambda value: name_of(FaultKind, value >> 16)), _NODE,
        ("a", "held_ns", _plain), ("b", "probe", _plain), ("c", "answer", _named(Reason)),
    ],
}  # fmt: skip
_INVOKE: Sequence[Decoder] = [
    ("code", "wants", _plain), ("a", "intended_ns", _plain), ("b", "index", _plain), ("c", "prefill", _plain),
    ("d", "decode", _plain), ("e", "attempt", _plain),
]  # fmt: skip
_END: Sequence[Decoder] = [_REASON, ("b", "index", _plain), ("value", "token", _plain)]


def render(stream: Stream, record: Records, first_ns: int) -> dict[str, Any]:
    """One event by the names of `harness.history.event`; fields that are 0 are left out. `record` has shape (1,)."""
    verb, kind = Verb(int(record["verb"][0])), int(record["kind"][0])
    shown: dict[str, Any] = {
        "process": stream.process,
        "thread": stream.thread,
        "incarnation": stream.incarnation,
        "seq": int(record["seq"][0]),
        "t_us": (int(record["t_ns"][0]) - first_ns) / 1e3,
        "verb": verb.name,
    }
    if kind:
        shown["kind"] = Kind(kind).name
    if record["room"][0]:
        shown["room"] = hex(int(record["room"][0]))
    if record["slot"][0] >= 0:
        shown |= {"slot": int(record["slot"][0]), "tenure": int(record["tenure"][0])}
    forms = (_INVOKE if kind == Kind.INVOKE else _END) if verb == Verb.HANDOFF else _FORMS.get(verb, ())
    for source, name, decode in forms:
        value = int(record[source][0])
        if value:
            shown[name] = decode(value)
    if verb in ROW_VERBS:
        tags = zip(TAGGED_FIELDS, record["tags"][0].tolist(), strict=True)
        shown["tags"] = {name: hex(tag) for name, tag in tags if tag}
    return shown
