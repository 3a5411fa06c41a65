"""Guards: what differs between generations of the hand-off, each switchable on its own.

A preset names released behaviour; facts from SGLang's releases 0.5.8 to 0.5.23 and its pull requests #17430, #27374, #27372, #35049.
`NAME,+guard,-guard` edits a preset. A known bug is a preset with one guard off.
"""

from __future__ import annotations

import difflib

import msgspec

from harness import extension
from harness.errors import FieldError


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """One record of switches; `PREVENTS` says what each is for."""

    validate_room: bool = False
    copy_row: bool = False
    clear_on_free: bool = False
    notify_abort: bool = False
    terminal_failed: bool = False
    drain_on_abort: bool = False
    drain_on_commit: bool = False
    quarantine: bool = False
    tenure_on_writes: bool = False
    row_digest: bool = False
    kv_digest: bool = False
    clear_optional: bool = False
    requested_fields_only: bool = False
    notify_unadmitted: bool = False
    notify_failed: bool = False
    remember_rooms: bool = False
    refuse_duplicate: bool = False
    repeat_abort: bool = False
    await_all_ranks: bool = False
    last_stage_aux: bool = False
    min_over_ranks: bool = False
    gate_before_min: bool = False
    vote_on_data: bool = False
    count_destinations: bool = False
    named_dp_rank: bool = False
    own: tuple[str, ...] = ()
    """Guards of plugins that are on."""


PREVENTS: dict[str, str] = {
    "validate_room": "silent wrong first token: a row is committed only if it names the request's room (0 = wait, other = abort)",
    "copy_row": "a committed row that changes later: the request keeps a copy of its row, not a view of the slot",
    "clear_on_free": "false abort on slot reuse: the room word is zeroed before the slot can be allocated again",
    "notify_abort": "a write that starts after its request was aborted: decode tells prefill, which drops what it has not issued",
    "terminal_failed": "commit of a failed hand-off: a Success that comes after Failed is ignored",
    "drain_on_abort": "late write after an abort: slot and pages are held until the writer says that it drained",
    "drain_on_commit": "late write after a commit over one-sided memory: the slot is held until every block is known to be visible",
    "quarantine": "late write after a hold's deadline: a slot whose writer never drained stays out of use until the writer is known to be dead",
    "tenure_on_writes": "late write from an earlier tenure: the target applies a block only for the slot's current tenure",
    "row_digest": "torn row: commit waits until the row's fields add up to the digest that the row carries",
    "kv_digest": "incomplete or foreign KV: commit waits until the pages add up to the digest that the row carries",
    "clear_optional": "stale optional field sent along: prefill clears the fields of its row that the request does not use",
    "requested_fields_only": "stale optional field used: the request takes only the fields that it asked for",
    "notify_unadmitted": "a room that stays open at prefill: decode also tells prefill of a request that ended before it had a slot",
    "notify_failed": "a hand-off that waits for its time-out: prefill says Failed when the client gave the request up there",
    "remember_rooms": "a room begun again by a late or doubled message: both sides know the rooms that ended, also those aborted before their exchange came",
    "refuse_duplicate": "two live requests with one room: the second is refused with an answer and the first goes on",
    "repeat_abort": "a slot held for ever by a lost message: decode repeats its abort until prefill says that it drained",
    "await_all_ranks": "commit of half a hand-off: Success counts once every prefill rank that writes has reported it; one Failed is enough",
    "last_stage_aux": "placeholder row committed, or a slow stage's row in the next request's slot: only one rank of the last stage sends the row",
    "min_over_ranks": "one decode rank commits what another fails: each request is ended as the lowest of all ranks' votes says",
    "gate_before_min": "one decode rank commits while another still waits for its row: a rank votes for a commit only once the slot names a room",
    "vote_on_data": "one decode rank aborts the row that another commits: a rank votes after it has checked the data, not on the status alone",
    "count_destinations": "a room begun without one of its decode ranks: prefill waits for transfer infos of so many ranks, not for so many messages",
    "named_dp_rank": "decode waits at a DP rank that never had the request: it asks the one that the router named, not the one that the room implies",
}

# A live duplicate kills an engine of any release (sgl-project/sglang#40125); here that is a mutant of its own, not a preset.
_V8 = Guards(
    requested_fields_only=True,
    refuse_duplicate=True,
    await_all_ranks=True,
    min_over_ranks=True,
    count_destinations=True,
)
_V9 = msgspec.structs.replace(_V8, validate_room=True)
_V12 = msgspec.structs.replace(_V9, copy_row=True)
_V13 = msgspec.structs.replace(_V12, clear_on_free=True, notify_abort=True, notify_failed=True, gate_before_min=True)
_V20 = msgspec.structs.replace(_V13, drain_on_abort=True, terminal_failed=True)

PRESETS: dict[str, Guards] = {
    "sglang-0.5.8": _V8,
    "sglang-0.5.9": _V9,
    "sglang-0.5.12": _V12,
    "sglang-0.5.13": _V13,
    "sglang-0.5.20": _V20,
    "hardened": msgspec.structs.replace(Guards(), **dict.fromkeys(PREVENTS, True)),
}
DEFAULT = "hardened"


def parse(text: str) -> Guards:
    """Read `NAME[,+guard|,-guard]...`; raises FieldError (exit 2) naming what is not known."""
    name, *edits = [part.strip() for part in text.split(",")]
    if name not in PRESETS:
        raise FieldError("guards", name, _known(name, tuple(PRESETS)))
    changes = {}
    own: list[str] = []
    known = {**PREVENTS, **extension.active().guards}
    for edit in edits:
        sign, guard = edit[:1], edit[1:]
        if sign not in {"+", "-"} or guard not in known:
            raise FieldError("guards", edit, "+GUARD or -GUARD with " + _known(guard, tuple(known)))
        if guard in PREVENTS:
            changes[guard] = sign == "+"
        elif sign == "+":
            own.append(guard)
        elif guard in own:
            own.remove(guard)
    return msgspec.structs.replace(PRESETS[name], **changes, own=tuple(own))


def _known(given: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(given, names, 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return "one of " + ", ".join(names) + hint
