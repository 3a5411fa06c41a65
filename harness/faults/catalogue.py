"""Every kind of fault, what it does and where it can apply: what `handoff faults` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness import extension
from harness.errors import FieldError
from harness.faults.spec import FAULTS_MAX, FRACTION, WHEN, Fault, Kind, Param, parse
from harness.history.event import FaultKind

MESSAGES = ("request", "exchange", "status", "drained", "abort", "result")
"""Names of messages: driver to nodes, decode to prefill, prefill to decode, the same, decode to prefill, decode to driver."""

MESSAGE = Param("status", "which message", choices=MESSAGES)
"""The parameter of faults of messages."""
_NODE = Param("prefill", "which node is hit; `any`: prefill and decode in turn", choices=("prefill", "decode", "any"))
_KILLED = _NODE._replace(
    doc="which node is hit; `any`: prefill and decode in turn; `registry`: the bootstrap registry, which must not disturb a request",
    choices=(*_NODE.choices, "registry"),
)
_EVERY_S = Param(3, "seconds from one end to the next begin", 0.01, 3600)


def _ms(default: float, doc: str) -> Param:
    return Param(default, doc, 0, 60_000)


_KINDS = (
    Kind("abort", FaultKind.ABORT, "driver", "any state of a request", "the client gives a request up", {
        "fraction": FRACTION,
        "ms": _ms(20, "at a time drawn from 0 to so many ms after it was sent"),
        "side": Param("both", "who is told", choices=("both", "decode", "prefill")),
        "state": Param("any", "any: at the drawn time; queued: with the request itself; exchange: once decode has sent its slot; "
                       "writing: once its write was begun; sent: just before its status; status: just after it",
                       choices=("any", "queued", "exchange", "writing", "sent", "status")),
    }, "cancelled, failed by prefill"),
    Kind("hold-write", FaultKind.HOLD_WRITE, "prefill", "the write", "the transfer call takes longer: blocks from `where` on move late, and the status waits", {
        "fraction": FRACTION._replace(default=1.0),
        "ms": _ms(40, "for a time drawn from 0 to so many ms"),
        "where": Param("all", "kv or all: everything; row: KV moves at once, the row late", choices=("kv", "row", "all")),
        "status": Param("after", "after: the status waits for the data; before: it does not", choices=("after", "before")),
    }, "time-out, if the hold was most of its time"),
    Kind("delay", FaultKind.DELAY, "sender", "a message", "a message leaves later", {
        "message": MESSAGE, "fraction": FRACTION, "ms": _ms(20, "by a time drawn from 0 to so many ms"),
    }, "time-out, if the delay was most of its time"),
    Kind("drop", FaultKind.DROP, "sender", "a message", "a message is lost", {"message": MESSAGE, "fraction": FRACTION._replace(default=0.01)}, "time-out"),
    Kind("duplicate", FaultKind.DUPLICATE, "sender", "a message", "a message comes twice", {
        "message": MESSAGE, "fraction": FRACTION, "ms": _ms(20, "the second one later by a time drawn from 0 to so many ms"),
    }),
    Kind("reorder", FaultKind.REORDER, "sender", "a message", "a message is overtaken by those that are sent to the same peer after it", {
        "message": MESSAGE, "fraction": FRACTION, "by": Param(4, "by so many", 1, 1000), "ms": _ms(50, "or goes after so many ms"),
    }),
    Kind("fail", FaultKind.FAIL, "prefill", "the write", "the transfer fails, and prefill says so", {
        "fraction": FRACTION._replace(default=0.05),
        "when": Param("before", "before: nothing was written; during: half of it; after: all of it; short: all but half of the KV; "
                      "silent: all of it, and no status follows", choices=("before", "during", "after", "short", "silent")),
    }, "failed by prefill; silent: time-out"),
    Kind("corrupt", FaultKind.CORRUPT, "prefill", "the write", "one bit of a block is flipped on its way: a test of the detector", {
        "fraction": FRACTION._replace(default=0.01),
        "where": Param("kv", "which block", choices=("kv", "row", "room")),
    }, "mismatch, time-out (wrong data that is used is never excused)"),
    Kind("kill", FaultKind.KILL, "driver", "a node", "a node is killed (SIGKILL) and started again under the same address", {
        "node": _KILLED, "every_s": _EVERY_S._replace(doc="seconds from one kill to the next; a node that is back late serves for half a second first"),
        "for_ms": _ms(0, "started again after so many ms"),
    }, "peer lost, node exit"),
    Kind("stop", FaultKind.STOP, "driver", "a node", "a node is stopped (SIGSTOP) for a while", {
        "node": _NODE, "every_s": _EVERY_S, "for_ms": Param(500, "for so many ms: a node silent for 5 s is given up", 0, 3000),
    }, "time-out, peer lost, of rooms open meanwhile"),
    Kind("slow", FaultKind.SLOW, "driver", "a node", "a node gets half of its CPU: stopped and continued every 10 ms", {
        "node": _NODE, "every_s": _EVERY_S, "for_ms": _ms(1000, "for so many ms"),
    }),
    Kind("fill-queue", FaultKind.FILL_QUEUE, "driver, sender", "messages to a node", "a node does not read (SIGSTOP) and what waits for it is filled up to ZMQ's high-water mark: more is lost", {
        "node": Param("prefill", "which role, each node in turn", choices=("prefill", "decode")),
        "every_s": _EVERY_S, "for_ms": Param(1000, "for so many ms: a node silent for 5 s is given up", 0, 3000),
    }, "time-out"),
    Kind("partition", FaultKind.PARTITION, "sender", "messages between prefill and decode", "messages between prefill and decode are lost for a while", {
        "direction": Param("both", "which", choices=("both", "to-prefill", "to-decode")),
        "every_s": _EVERY_S, "for_ms": _ms(300, "for so many ms"),
    }, "time-out"),
    Kind("link", FaultKind.LINK, "driver", "every packet", "all nodes of one role are behind a link (network namespaces; needs root) that is cut, lossy or slow for a while", {
        "node": Param("prefill", "which role is behind it", choices=("prefill", "decode")),
        "every_s": _EVERY_S, "for_ms": Param(300, "for so many ms: TCP may stay silent twice as long, and a node silent for 5 s is given up", 0, 2000),
        "loss": Param(1, "share of the packets that are lost, both ways; 1: the link is cut", 0, 1),
        "delay_ms": Param(0, "those that are not lost are late by so many ms", 0, 1000),
    }, "time-out, of rooms open meanwhile"),
    Kind("duplicate-room", FaultKind.DUPLICATE_ROOM, "driver", "admission", "a second request with the room of a live one; it must be refused", {
        "fraction": FRACTION,
    }),
    Kind("bad-room", FaultKind.BAD_ROOM, "driver", "admission", "requests with room 0, a negative one or one above 63 bits; they must be refused", {
        "fraction": FRACTION,
    }),
    Kind("orphan-room", FaultKind.ORPHAN_ROOM, "driver", "admission", "a request reaches only one side", {
        "fraction": FRACTION._replace(default=0.01),
        "side": Param("decode", "who is told: decode waits for its time-out; prefill, with a room of its own, forgets it", choices=("decode", "prefill")),
    }, "time-out"),
    Kind("burst", FaultKind.BURST, "driver", "the load", "many requests at once, above the concurrency", {
        "every_s": _EVERY_S._replace(default=1), "size": Param(200, "so many", 1, 100_000),
    }, "refused by a full queue"),
    Kind("starve", FaultKind.STARVE, "decode", "allocation", "most of decode's slots or pages are taken away for a while", {
        "what": Param("slots", "which", choices=("slots", "pages")), "keep": Param(1, "so many free ones stay", 0, 1e7),
        "every_s": _EVERY_S._replace(default=1), "for_ms": _ms(200, "for so many ms"),
    }),
)  # fmt: skip

KINDS: Mapping[str, Kind] = {
    kind.name: Kind(kind.name, kind.number, kind.by, kind.point, kind.doc, {**kind.params, **WHEN}, kind.excuses)
    for kind in _KINDS
}
"""By name: those that are built in."""


def kinds() -> Mapping[str, Kind]:
    """All that a scenario can name now, those of its plugins too."""
    return {**KINDS, **extension.active().faults}


def parse_all(texts: Iterable[str]) -> tuple[Fault, ...]:
    """Read a scenario's faults; raises FieldError for the first that is not one."""
    known = kinds()
    faults = tuple(parse(text, number, known) for number, text in enumerate(texts))
    if len(faults) > FAULTS_MAX:
        raise FieldError("faults", len(faults), f"at most {FAULTS_MAX}")
    return faults
