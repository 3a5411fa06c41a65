"""Both ends of a transport in one process, on real memory: what the conformance suite works with."""

from __future__ import annotations

import functools
import random
import select
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from harness.history.event import EVENT_STRUCT, KV_BIT, Verb
from harness.protocol.memory import Memory
from harness.protocol.settings import TransportSettings
from harness.transport.base import Block, Channel, Done, Lack, Outcome, Ownership, Transport, Write

BITS = (KV_BIT, KV_BIT, *(1 << bit for bit in range(10)))
"""Blocks of one hand-off as prefill issues them: KV first, then the row's fields, the room last."""
LAST = len(BITS) - 1
BLOCK_BYTES = 64
STRIDE = 2 * BLOCK_BYTES * len(BITS)
"""Bytes a slot: as much space as blocks, so that a block that lands beside its place shows."""
SLOTS = 16
BACKGROUND = 0xA5
MIB = 1 << 20
QUEUE_BYTES_MAX = 320 * MIB
"""What a channel may at most queue for a target that does not read; beyond it a write must fail."""
WATCHED = frozenset({Outcome.POSTED, Outcome.PENDING})
JUNK = (
    b"",
    b"\xff\xfe",
    b"null",
    b"5",
    b"[1]",
    b"{}",
    b'{"path": "/", "size": "a"}',
    b'{"host": 1, "token": 2}',
)
"""Descriptors that no target gave."""


class Violation(AssertionError):
    """A transport does not keep one of the properties; the message says which and what was seen."""


class Event(NamedTuple):
    """One record as the history would hold it. `seen`: mask of the hand-off's blocks that were visible at that moment."""

    verb: int
    room: int
    slot: int
    tenure: int
    code: int
    flags: int
    begin_ns: int
    end_ns: int
    seen: int


class Events(list[Event]):
    """A RecorderFactory that keeps every record of every thread in one list."""

    def __init__(self, seen: Callable[[int], int]) -> None:
        """`seen` maps a room to the mask of its blocks that are visible now."""
        super().__init__()
        self._seen = seen
        self.streams: list[str] = []
        """Threads whose streams are open."""

    def __call__(self, thread: str) -> Events:
        """Return the stream of `thread`."""
        if thread != "main":
            self.streams.append(thread)
        return self

    def event(
        self, verb: int, room: int = 0, slot: int = -1, tenure: int = 0, kind: int = 0, code: int = 0, flags: int = 0,
        value: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0,
    ) -> None:  # fmt: skip
        """Keep one event; raises struct.error, as a recorder does, for one that does not fit the record."""
        now = time.monotonic_ns()
        EVENT_STRUCT.pack(now, room, slot, tenure, verb, kind, code, flags, value, a, b, c, d, e, 1)
        self.append(Event(verb, room, slot, tenure, code, flags, a, now, self._seen(room)))

    def row(self, *_: object) -> None:
        """Transports record no rows."""

    def close(self) -> None:
        """What was recorded stays."""
        self.streams.pop()

    def of(self, verb: Verb, room: int) -> list[Event]:
        """Return the records of `verb` about `room`, in the order in which they were made."""
        return [event for event in self[:] if event.verb == verb and event.room == room]

    def ended(self, room: int) -> bool:
        """Return True once every block of `room` is recorded as landed, and one record says that none is to come."""
        landed = self.of(Verb.LANDED, room)
        flags = functools.reduce(lambda mask, event: mask | event.flags, landed, 0)
        return flags == KV_BIT | 1023 and any(not event.code for event in landed)


def blocks_of(room: int, slot: int) -> list[Block]:
    """Return the blocks of a hand-off to `slot`, on sources of their own; contents are a function of `room`."""
    data = random.Random(room).randbytes(BLOCK_BYTES * len(BITS))
    cut = [memoryview(bytearray(data[i * BLOCK_BYTES :][:BLOCK_BYTES])) for i in range(len(BITS))]
    return [(slot * STRIDE + i * 2 * BLOCK_BYTES, cut[i], bit) for i, bit in enumerate(BITS)]


class Rig:
    """Both ends of one connection. Use as a context manager; `done` holds (key, ok) of every completion so far."""

    def __init__(
        self, transport: Transport, deadline_s: float, *, size: int = SLOTS * STRIDE, enforce: bool = False,
        seed: int = 7, **settings: Any,
    ) -> None:  # fmt: skip
        """Memory of `size` bytes full of BACKGROUND, a target and a channel; `settings`: those of TransportSettings."""
        plain = {
            "name": transport.name,
            "version": getattr(transport, "version", ""),
            "late_fraction": 0.0,
            "jitter_us": 0.0,
        }
        self.transport, self.deadline_s, self.seed = transport, deadline_s, seed
        self.acks = Lack.ACK not in transport.lacks
        settings["ack"] = self.acks and settings.get("ack", False)
        self.settings = TransportSettings(**{**plain, **settings})
        self.memory = Memory.create("conformance", size)
        self.memory.bytes[:] = BACKGROUND
        self.image = bytearray([BACKGROUND]) * size
        self.owners = Ownership(SLOTS, enforce=enforce)
        self.sent: dict[object, list[tuple[int, bytes, int]]] = {}
        self.done: list[tuple[object, bool]] = []
        self.open: set[object] = set()
        self.posted: set[object] = set()
        self.events = Events(self.visible)
        self.target = transport.target(self.settings, self.memory, self.owners, seed, self.events)
        self.channel = self.connect(self.target.descriptor())

    def connect(self, descriptor: bytes) -> Channel:
        """Open one more channel."""
        return self.transport.channel(self.settings, descriptor, self.seed, self.events)

    def __enter__(self) -> Self:
        """Return the rig."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the channel, the target and the memory."""
        self.channel.close()
        self.target.close()
        self.memory.close()

    def write(
        self, room: int, slot: int = 0, tenure: int = 1, blocks: Sequence[Block] | None = None, *, lands: bool = True
    ) -> Outcome:  # fmt: skip
        """Write a hand-off whose key is its room; with `lands` the memory is held to it, else it may be refused."""
        blocks = blocks_of(room, slot) if blocks is None else blocks
        self.sent[room] = [(offset, bytes(data), bit) for offset, data, bit in blocks]
        for offset, data, _ in blocks if lands else ():
            self.image[offset : offset + len(data)] = data
        outcome = self.channel.write(Write(room, slot, tenure, 0, blocks, room))
        if outcome in WATCHED:
            self.open.add(room)
        if outcome is Outcome.POSTED:
            self.posted.add(room)
        require(not self.settings.ack or outcome is not Outcome.POSTED, "POSTED in spite of ack")
        require(
            not lands or outcome is not Outcome.FAILED,
            f"write of {len(blocks)} blocks FAILED without a cause",
        )
        return outcome

    def burst(self, rooms: Iterable[int]) -> None:
        """Write `rooms`, one to each slot from 0 on, each of tenure 40 + slot."""
        for slot, room in enumerate(rooms):
            self.write(room, slot, 40 + slot)

    def visible(self, room: object) -> int:
        """Return the mask of the blocks of `room` (by number) that the memory holds now."""
        view, blocks = self.memory.view, enumerate(self.sent.get(room, ()))
        return sum(1 << i for i, (offset, data, _) in blocks if view[offset : offset + len(data)] == data)

    def whole(self, room: object) -> bool:
        """Return True if every block of `room` is visible."""
        return self.visible(room) == (1 << len(self.sent.get(room, ()))) - 1

    def pump(self) -> None:
        """Take completions; each key must be one that is open, and visible by now."""
        for key, ok in self.channel.completions():
            require(key in self.open, f"key {key!r} completed without being open: twice, or after DONE or FAILED")
            self.open.remove(key)
            require(
                not ok or not self.tells(key) or self.whole(key), f"key {key!r} reported before its blocks were visible"
            )
            self.done.append((key, ok))

    def tells(self, key: object) -> bool:
        """Return True if the completion of `key` says that it is visible: not where a write is done when its bytes left."""
        promised = self.settings.ack or key in self.posted or self.transport.done(self.settings) is Done.VISIBLE
        return promised and self.acks

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Pump until `condition`; raises Violation saying that `what` did not come by the deadline."""
        deadline = time.monotonic() + self.deadline_s
        while not condition():
            require(time.monotonic() < deadline, f"not within {self.deadline_s:g} s: {what}")
            self.pump()
            readable(self.channel, 1)

    def settle(self) -> None:
        """Wait until all that was sent is visible and every open key has completed, well; compare the whole memory."""
        self.until(lambda: all(map(self.whole, self.sent)), "all blocks visible")
        self.until(lambda: not self.open, "all keys completed")
        self.pump()
        require(all(ok for _, ok in self.done), f"failed without a cause, in {self.done}")
        self.compare("bytes outside of the blocks changed")

    def compare(self, what: str) -> None:
        """Raise Violation unless the memory is as the image says."""
        if not self.acks:  # what was reported may be on its way
            self.until(lambda: self.memory.view == self.image, what)
        view = bytes(self.memory.view)
        at = next((i for i in range(len(view)) if view[i] != self.image[i]), 0) if view != self.image else -1
        require(at < 0, f"{what}: first at byte {at}, in slot {at // STRIDE}")


def require(condition: bool, what: str) -> None:
    """Raise Violation unless `condition`."""
    if not condition:
        raise Violation(what)


def readable(channel: Channel, timeout_ms: int) -> bool:
    """Return True if a descriptor of the channel becomes readable within `timeout_ms`."""
    poller = select.poll()
    for descriptor in channel.descriptors():
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_ms))
