"""Builds recorded histories in a few readable lines, through the real recorder, with a clock of its own.

Rooms are small numbers. `History.handoff(room, slot=...)` records a whole healthy hand-off; its keywords change one
thing. Where two hand-offs must interleave, use the methods of `Request`, one for each event.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from harness.check import Expectations, Report, check_history
from harness.history.event import (
    HIDDEN_MASK,
    KV_BIT,
    LOGPROB_MASK,
    REQUIRED_MASK,
    ROOM_BIT,
    FaultEvent,
    FaultKind,
    Kind,
    Loss,
    NodeEvent,
    Phase,
    Reason,
    Resource,
    Role,
    Verb,
)
from harness.history.recorder import Recorder

TICK_NS = 1_000
ROOM_AND_FIELDS = ROOM_BIT | 0x1FF
CLEARED = [zlib.crc32(b"cleared %d" % field) for field in range(9)]


def tag(room: int, field: int) -> int:
    """What `room` makes of `field`."""
    return zlib.crc32(b"%d %d" % (room, field))


def tags(room: int, mask: int = REQUIRED_MASK) -> list[int]:
    """The row that is made for `room` when it uses the fields of `mask`."""
    return [tag(room, field) if mask >> field & 1 else CLEARED[field] for field in range(9)]


def kv(room: int, decode_rank: int = 0) -> int:
    """Digest of the pages of `room` at a decode rank."""
    return zlib.crc32(b"kv %d" % room, decode_rank)


def token(room: int) -> int:
    """First token of `room`."""
    return room * 31 % 50_000


def expect(**change: Any) -> Expectations:
    """Two slots, an engine with every promise, and little coverage."""
    values: dict[str, Any] = {"slots": 2, "hang_bound_s": 1.0, "clean_slot": True, "drained_release": True}
    return Expectations(**(values | {"min_reuse": 1, "min_window": 1} | change))


class Request:
    """One hand-off; each method records one event and returns the request, so that they chain."""

    def __init__(self, history: History, room: int, *, slot: int, mask: int, prefill: int, decode: int) -> None:
        self.history, self.room, self.slot, self.mask = history, room, slot, mask
        self.prefill, self.decode = prefill, decode
        self.tenure = 0
        self.asked = False
        self.row = tags(room, mask)

    def _driver(self, **fields: Any) -> Self:
        self.history.driver.event(Verb.HANDOFF, self.room, **fields)
        return self

    def _main(self) -> Recorder:
        return self.history.decode(self.decode)

    def invoke(self, *, intended: int = 0, index: int | None = None) -> Self:
        self.index = self.history.next_index() if index is None else index
        fields = {"a": intended, "b": self.index, "c": self.prefill, "d": self.decode}
        return self._driver(kind=Kind.INVOKE, **fields)

    def alloc(self, *, word: int = 0) -> Self:
        self.tenure = self.history.next_tenure()
        self._main().event(Verb.ALLOC, self.room, self.slot, self.tenure, value=word, a=4, c=self.prefill)
        return self

    def made(self) -> Self:
        stream = self.history.prefill(self.prefill)
        stream.row(Verb.MADE, self.room, 0, self.tenure, self.mask, kv(self.room), self.room, self.row)
        return self

    def landed(
        self,
        *,
        begin: int | None = None,
        slot: int | None = None,
        tenure: int | None = None,
        flags: int = ROOM_AND_FIELDS | KV_BIT,
        by: Recorder | None = None,
    ) -> Self:
        start = self.history.now() if begin is None else begin
        where = self.slot if slot is None else slot
        whose = self.tenure if tenure is None else tenure
        stream = by or self.history.prefill(self.prefill, "mover")
        stream.event(Verb.LANDED, self.room, where, whose, a=start, flags=flags)
        return self

    def sent(self, *, value: int | None = None) -> Self:
        first = token(self.room) if value is None else value
        self.history.prefill(self.prefill).event(Verb.SENT, self.room, code=4, b=first)
        return self

    def status(self) -> Self:
        self._main().event(Verb.STATUS, self.room, self.slot, self.tenure, code=4)
        return self

    def poll(self, *, word: int = 0) -> Self:
        self._main().event(Verb.POLL, self.room, self.slot, self.tenure, code=1, value=word)
        return self

    def commit(
        self,
        *,
        row: Sequence[int] | None = None,
        mask: int | None = None,
        word: int | None = None,
        pages: int | None = None,
    ) -> Self:
        self._main().row(
            Verb.COMMIT,
            self.room,
            self.slot,
            self.tenure,
            self.mask if mask is None else mask,
            kv(self.room) if pages is None else pages,
            self.room if word is None else word,
            self.row if row is None else row,
        )
        return self

    def kv_page(self, *, room: int, torn: bool = False) -> Self:
        self._main().event(Verb.KV_PAGE, self.room, self.slot, self.tenure, value=room, code=int(torn), a=1, b=2)
        return self

    def use(self, *, fields: int, row: Sequence[int] | None = None) -> Self:
        full = self.row if row is None else row
        read = [full[f] if fields >> f & 1 else 0 for f in range(9)]
        self._main().row(Verb.USE, self.room, self.slot, self.tenure, fields, 0, 0, read)
        return self

    def hit(self, kind: FaultKind, *, held_ns: int = 0, loss: Loss = Loss.NONE, number: int = 0) -> Self:
        """A fault was injected into this hand-off."""
        fields = {"code": FaultEvent.HIT, "flags": kind << 16 | number, "a": held_ns, "c": loss}
        self.history.driver.event(Verb.FAULT, self.room, **fields)
        return self

    def _asked(self, reason: Reason, *, asked: bool) -> None:
        """The client asked for what is told as cancelled."""
        if reason is Reason.CANCELLED and asked and not self.asked:
            self.asked = True
            self.hit(FaultKind.ABORT)

    def abort(self, reason: Reason, *, word: int = 0, asked: bool = True) -> Self:
        self._asked(reason, asked=asked)
        self._main().event(Verb.ABORT, self.room, self.slot, self.tenure, code=reason, value=word)
        return self

    def free(self, *, tenure: int | None = None, word: int = 0) -> Self:
        whose = self.tenure if tenure is None else tenure
        self._main().event(Verb.FREE, self.room, self.slot, whose, value=word)
        return self

    def ok(self, *, value: int | None = None) -> Self:
        return self._driver(kind=Kind.OK, b=self.index, value=token(self.room) if value is None else value)

    def fail(self, reason: Reason, *, asked: bool = True) -> Self:
        self._asked(reason, asked=asked)
        return self._driver(kind=Kind.FAIL, code=reason, b=self.index)

    def info(self, reason: Reason) -> Self:
        return self._driver(kind=Kind.INFO, code=reason, b=self.index)


class History:
    """Streams of one run in `folder`. `t` is the time in ns; every event takes a tick."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.t = 1_000_000_000
        self.tick_ns = TICK_NS
        self.incarnations: dict[int, int] = {}
        self._streams: dict[tuple[str, str, int], Recorder] = {}
        self._tenure = 0
        self._index = 0

    def now(self) -> int:
        """Time of the next event, and a tick."""
        self.t += self.tick_ns
        return self.t

    def next_tenure(self) -> int:
        self._tenure += 1
        return self._tenure

    def next_index(self) -> int:
        self._index += 1
        return self._index - 1

    def stream(self, process: str, thread: str = "main", incarnation: int = 1) -> Recorder:
        """The stream of that name, opened when it is first asked for."""
        key = (process, thread, incarnation)
        if key not in self._streams:
            path = self.folder / f"{process}.{incarnation}.{thread}.hist"
            recorder = Recorder(path, process, thread, incarnation=incarnation)
            recorder._now = self.now
            self._streams[key] = recorder
        return self._streams[key]

    @property
    def driver(self) -> Recorder:
        return self.stream("driver")

    def decode(self, index: int = 0, thread: str = "main") -> Recorder:
        return self.stream(f"decode-{index}", thread, self.incarnations.get(index, 1))

    def prefill(self, index: int = 0, thread: str = "main") -> Recorder:
        return self.stream(f"prefill-{index}", thread)

    def request(
        self, room: int, *, slot: int = 0, mask: int = REQUIRED_MASK, prefill: int = 0, decode: int = 0
    ) -> Request:
        return Request(self, room, slot=slot, mask=mask, prefill=prefill, decode=decode)

    def handoff(
        self,
        room: int,
        *,
        slot: int = 0,
        word: int = 0,
        poll: bool = False,
        left: int = 0,
        decode: int = 0,
        word_read: int | None = None,
        **commit: Any,
    ) -> Request:
        """A whole healthy hand-off; `word` is found at ALLOC, `word_read` at COMMIT, `left` at FREE; other keywords are those of `commit`."""
        request = self.begun(room, slot=slot, word=word, decode=decode).landed().sent().status()
        if poll:
            request.poll()
        if word_read is not None:
            commit["word"] = word_read
        return request.commit(**commit).free(word=left).ok()

    def begun(self, room: int, *, slot: int = 0, word: int = 0, **at: Any) -> Request:
        """A hand-off up to MADE."""
        return self.request(room, slot=slot, **at).invoke().alloc(word=word).made()

    def healthy(self, *rooms: int, slots: int = 2) -> Self:
        """Healthy hand-offs, over the slots in turn; all saw their status first."""
        for room in rooms:
            self.handoff(room, slot=room % slots, poll=True)
        return self

    def phase(self, phase: Phase) -> Self:
        self.driver.event(Verb.PHASE, code=phase)
        return self

    def node(self, event: NodeEvent, role: Role = Role.DECODE, index: int = 0, *, asked: bool = False) -> Self:
        fields = {"value": role << 32 | index, "a": 2**32, "flags": int(asked)}
        self.driver.event(Verb.NODE, code=event, **fields)
        return self

    def census(self, resource: Resource, held: int, free: int = 0, size: int = 0, *, rest: bool = True) -> Self:
        fields = {"value": Role.DECODE << 32, "flags": int(rest), "a": held, "b": free, "c": size}
        self.driver.event(Verb.RESOURCE, code=resource, **fields)
        return self

    def start(self) -> Self:
        """Begin the run: one decode, counted, and the load."""
        self.node(NodeEvent.UP)
        self.census(Resource.THREADS, 5, rest=False)
        return self.phase(Phase.LOAD)

    def finish(self, *, census: bool = True) -> Self:
        """Drain, count and end the run."""
        self.phase(Phase.DRAIN)
        if census:
            self.census(Resource.SLOTS, 0, 2, 2).census(Resource.THREADS, 5)
            self.phase(Phase.REST)
        return self.node(NodeEvent.EXIT, asked=True).phase(Phase.FINISHED)

    def close(self) -> None:
        """Close the streams; they can be asked for no more."""
        for recorder in self._streams.values():
            recorder.close()

    def check(self, *, chunk: int = 20_000, **change: Any) -> Report:
        """Close and check."""
        self.close()
        return check_history(self.folder, expect(**change), chunk=chunk)


def counts(report: Report) -> dict[str, int]:
    """Anomalies by name."""
    return {anomaly.name: anomaly.count for anomaly in report.anomalies}


__all__ = [
    "HIDDEN_MASK",
    "LOGPROB_MASK",
    "ROOM_AND_FIELDS",
    "TICK_NS",
    "History",
    "Request",
    "counts",
    "expect",
    "kv",
    "tags",
    "token",
]
