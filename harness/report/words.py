"""What a report says in words: verdicts, the events of a witness, rates."""

from __future__ import annotations

from typing import Any

VERDICTS = {
    "valid": "No anomaly, and the run covered enough for that to mean something.",
    "invalid": "At least one anomaly was found. Each is listed with witnesses from the recorded history.",
    "unknown": "Nothing was found, but this run could not have shown the race or was cut short. It is not a pass.",
}
LANES = ("driver", "prefill", "data plane", "decode")
"""Where an event of a witness is shown: who recorded it; a write shows where it lands, whoever recorded it."""

_SKIP = {
    "process",
    "thread",
    "incarnation",
    "seq",
    "t_us",
    "verb",
    "room",
    "slot",
    "tenure",
    "kind",
    "begin_ns",
    "tags",
}
_SAYS = {
    "ALLOC": "slot given out", "STATUS": "status received", "POLL": "polled: row not ready", "COMMIT": "row committed", "ABORT": "request aborted",
    "FREE": "slot freed", "KV_PAGE": "foreign KV page found", "USE": "row read again", "HOLD": "slot held until drained", "MADE": "row made",
    "LANDED": "blocks landed", "REFUSED": "blocks refused", "HANDOFF": "hand-off",
    "PLACEHOLDER": "placeholder row made by an earlier stage", "FAULT": "fault injected",
}  # fmt: skip


def percent(rate: float) -> str:
    """A rate in percent, three digits."""
    return f"{rate * 100:.3g} %"


def events_of(witness: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of a witness for a table: `at` (us since the first), `lane`, `who`, `says`, `details`, `room` (A, B, ... in order of appearance)."""
    names: dict[str, str] = {}
    first = witness[0]["t_us"] if witness else 0.0
    found = []
    for event in witness:
        room = str(event.get("room", ""))
        name = names.setdefault(room, chr(ord("A") + len(names) % 26)) if room else ""
        words = _details(event, names)
        kind = f" {str(event['kind']).lower()}" if event.get("kind") else ""
        found.append(
            {
                "at": f"{event['t_us'] - first:,.0f}",
                "lane": _lane(event),
                "who": event["process"],
                "says": _SAYS.get(event["verb"], str(event["verb"]).lower()) + kind,
                "details": words,
                "request": name,
                "room": room,
                "place": f"slot {event['slot']}, tenure {event.get('tenure', 0)}" if event.get("slot", -1) >= 0 else "",
            }
        )
    return found


def _lane(event: dict[str, Any]) -> str:
    if event["verb"] in {"LANDED", "REFUSED"}:
        return "data plane"
    return str(event["process"]).partition("-")[0]


def _details(event: dict[str, Any], names: dict[str, str]) -> str:
    words = []
    for key, value in event.items():
        if key in _SKIP:
            continue
        shown = str(value)
        if key == "room_word":
            key, shown = "room in the slot", _room_word(shown, names)  # noqa: PLW2901
        elif key in {"parts", "fields"}:
            shown = _parts(shown)
        elif key == "visible":
            key, shown = "the sender took its write for", "done" if value else "still under way"  # noqa: PLW2901
        words.append(f"{key.replace('_', ' ')} {shown}")
    return "; ".join(words)


def _room_word(shown: str, names: dict[str, str]) -> str:
    if shown in {"0", "0x0"}:
        return "0 (none)"
    return f"{names[shown]}'s" if shown in names else shown


def _parts(shown: str) -> str:
    words = shown.split()
    return (
        shown
        if len(words) <= 3
        else f"{', '.join(words[:2])} and {len(words) - 2} more" + (", room included" if "room" in words[2:] else "")
    )
