"""A witness of `results.json` as text: one line an event, with the time since the first, who did it, whose request it was, and what happened.

Rooms are long numbers: each gets a letter here, in the order of its first event. What is said of an event comes from the names that
`harness.check.witness.render` gives its fields; fields that are 0 are absent there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.history.event import HIDDEN_MASK, LOGPROB_MASK, TAGGED_FIELDS

Event = Mapping[str, Any]
Named = Callable[[str], str]
"""Room in hexadecimal to how it is called here."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_STATUS = {0: "Failed", 4: "Success"}
_GROUPS = {
    "all fields": frozenset(TAGGED_FIELDS),
    "logprobs": frozenset(name for i, name in enumerate(TAGGED_FIELDS) if LOGPROB_MASK >> i & 1),
    "speculation": frozenset(name for i, name in enumerate(TAGGED_FIELDS) if HIDDEN_MASK >> i & 1),
}
_ORDER = ("all fields", *TAGGED_FIELDS, "logprobs", "speculation", "room", "kv")


def render(witness: Sequence[Event]) -> str:
    """Text of `witness` (one case of an anomaly's `witnesses`), without a final newline; the first line says which letter is which room."""
    if not witness:
        return "no events"
    letters = _letters(witness)
    first_us = min(float(event["t_us"]) for event in witness)
    rows = [
        (f"{event['t_us'] - first_us:.0f}", _who(event), letters.get(event.get("room", ""), ""), _what(event, letters))
        for event in witness
    ]
    time, who, letter = (max(len(row[i]) for row in rows) for i in range(3))
    lines = [f"+{row[0]:>{time}} us  {row[1]:<{who}}  {row[2]:<{letter}}  {row[3]}".rstrip() for row in rows]
    return "\n".join([*_legend(letters), *lines])


def _letters(witness: Sequence[Event]) -> dict[str, str]:
    rooms = dict.fromkeys(event["room"] for event in witness if "room" in event)
    return {room: _LETTERS[i] if i < len(_LETTERS) else f"R{i}" for i, room in enumerate(rooms)}


def _legend(letters: Mapping[str, str]) -> list[str]:
    return ["rooms: " + ", ".join(f"{letter} = {room}" for room, letter in letters.items())] if letters else []


def _who(event: Event) -> str:
    again = "" if event.get("incarnation", 1) == 1 else f".{event['incarnation']}"
    thread = event.get("thread", "main")
    return f"{event['process']}{again}" + ("" if thread == "main" else f" {thread}")


def _what(event: Event, letters: Mapping[str, str]) -> str:
    def named(room: str) -> str:
        return f"room {letters.get(room, room)}"

    words = _WORDS.get(event["verb"])
    return str(event["verb"]) if words is None else words(event, named)


def _slot(event: Event) -> str:
    return f"slot {event['slot']} (tenure {event['tenure']})" if "slot" in event else "no slot"


def _handoff(event: Event, _: Named) -> str:
    kind = event.get("kind")
    if kind == "INVOKE":
        attempt = f", attempt {event['attempt']}" if event.get("attempt") else ""
        nodes = f"prefill-{event.get('prefill', 0)} and decode-{event.get('decode', 0)}"
        return f"request {event.get('index', 0)} sent to {nodes}{attempt}"
    if kind == "OK":
        return f"request ended well, first token {event.get('token', 0)}"
    reason = event.get("reason", "NONE")
    return f"request failed: {reason}" if kind == "FAIL" else f"nobody can say how the request ended: {reason}"


def _resource(event: Event, _: Named) -> str:
    when = "at rest" if event.get("at_rest") else "at baseline"
    size = f" of {event['size']}" if event.get("size") else ""
    return f"{when} {event.get('node', '?')} holds {event.get('held', 0)}{size} {event.get('resource', '?')}"


def _node(event: Event, _: Named) -> str:
    status = f", exit status {event['exit_status']}" if "exit_status" in event else ""
    return (
        f"{event.get('node', '?')}: {event.get('event', '?')}{status}{', asked for' if event.get('asked_for') else ''}"
    )


def _left(event: Event, named: Named) -> str:
    return f"{named(event['room_word'])} in it" if "room_word" in event else "clear"


def _status(event: Event, verb: str) -> str:
    visible = ", writes known to be visible" if event.get("visible") else ""
    status = event.get("status", 0)
    return f"{_STATUS.get(status, f'status {status}')} {verb}{visible}"


def _found(event: Event, named: Named) -> str:
    return f", found {named(event['room_word'])}" if "room_word" in event else ", found no room"


def _page(event: Event, named: Named) -> str:
    state = "torn" if event.get("torn") else "whole"
    holds = f"{state}, of {named(event['page_room'])}" if "page_room" in event else f"{state}, of no room"
    return (
        f"KV page {event.get('position', 0)} of layer {event.get('layer', 0)} (page {event.get('page', 0)}) is {holds}"
    )


def _parts(event: Event, key: str) -> str:
    """Name the fields shortly: a group of fields that are all there by the group's name."""
    names = str(event.get(key, "")).split()
    for group, members in _GROUPS.items():
        if set(names) >= members:
            names = [group, *(name for name in names if name not in members)]
    return ", ".join(sorted(names, key=_ORDER.index)) or "nothing"


def _landed(event: Event, _: Named) -> str:
    return f"{'part of the' if event.get('more') else 'the'} write landed in {_slot(event)}: {_parts(event, 'parts')}"


def _fault(event: Event, _: Named) -> str:
    held = f", held up by {event['held_ns'] / 1e6:.3g} ms" if event.get("held_ns") else ""
    return (
        f"fault {str(event.get('fault', '?')).lower().replace('_', '-')}: {str(event.get('event', '?')).lower()}{held}"
    )


_WORDS: Mapping[str, Callable[[Event, Named], str]] = {
    "HANDOFF": _handoff,
    "PHASE": lambda event, _: f"phase {event.get('phase', '?')}",
    "RESOURCE": _resource,
    "NODE": _node,
    "ALLOC": lambda event, named: f"{_slot(event)} given out, {_left(event, named)}",
    "STATUS": lambda event, _: _status(event, "received"),
    "POLL": lambda event, named: f"row not taken: {event.get('finding', '?')}{_found(event, named)}",
    "COMMIT": lambda event, named: f"committed {_slot(event)}{_found(event, named)}; uses {_parts(event, 'fields')}",
    "ABORT": lambda event, named: f"aborted: {event.get('reason', 'NONE')}{_found(event, named)}",
    "FREE": lambda event, named: f"{_slot(event)} freed, {_left(event, named)}",
    "KV_PAGE": _page,
    "USE": lambda event, _: f"row of {_slot(event)} read again: {_parts(event, 'fields')}",
    "HOLD": lambda event, _: f"{_slot(event)} held until its writer has drained",
    "MADE": lambda event, _: f"row and KV made for {_slot(event)}; uses {_parts(event, 'fields')}",
    "PLACEHOLDER": lambda event, _: f"placeholder row made by an earlier stage for {_slot(event)}",
    "SENT": lambda event, _: _status(event, "sent"),
    "LANDED": _landed,
    "FAULT": _fault,
    "REFUSED": lambda event, _: f"write refused: {event.get('refusal', '?')}, {_slot(event)}: {_parts(event, 'parts')}",
}
"""What each verb of `harness.history.event` says."""
