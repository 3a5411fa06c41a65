"""What every transport is: a `Target` beside decode's memory and a `Channel` at each prefill.

"Done" differs, and a channel says which it means: `DONE` (as far as this transport ever knows), `POSTED` (bytes left; a
completion will follow once they are visible) or `PENDING` (nothing may be reported yet; a completion will follow, and means what
`Transport.done` says). Third parties register theirs under the
entry-point group `pd_handoff.transports` as a `Transport` object.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.history.recorder import Observer
from harness.protocol.settings import TransportSettings


class TransportError(Exception):
    """A channel cannot be opened, or its peer is gone."""


class Outcome(enum.Enum):
    """What `Channel.write` says of the blocks that it was given."""

    DONE = "done"
    POSTED = "posted"
    PENDING = "pending"
    FAILED = "failed"


Block = tuple[int, memoryview, int]
"""(offset, data, bit): `data` goes to byte `offset` of the target's region; `bit` names it in masks, a field's bit or KV_BIT.

A plain tuple: a hand-off has about twenty, and a class of their own costs as much as the copy.
"""


class Done(enum.Enum):
    """What a transport knows when it reports a write as done."""

    LEFT = "left"
    """The bytes left the sender; a status may overtake them."""
    VISIBLE = "visible"
    """The bytes are in decode's memory."""


class Lack(enum.Enum):
    """What a transport cannot promise; the conformance suite does not ask it for what it says that it lacks."""

    ACK = "ack"
    """It cannot tell when blocks are visible: with `ack`, too, "done" means that they left."""
    RECORDS = "records"
    """Nobody sees the blocks land, so no LANDED is recorded."""
    ORDER = "order"
    """The blocks of one write land in any order."""


@dataclass(slots=True)
class Write:
    """The blocks of one hand-off, in the order in which they are issued; a source may be reused once `write` returned."""

    room: int
    slot: int
    tenure: int
    decode: int
    blocks: Sequence[Block]
    key: object = None


class Ownership:
    """Who owns each slot now: shared between decode's engine and the threads that apply writes.

    With `enforce`, a write is applied only under its own tenure; check and copy happen under one lock with grant and revoke, so a
    write cannot slip in between. Without it, whatever is in bounds is applied, as released engines do.
    """

    def __init__(self, slots: int, *, enforce: bool) -> None:
        """No slot is owned; tenure 0 is nobody's."""
        self.enforce = enforce
        self.tenures = [0] * slots
        self.lock = threading.Lock()

    def grant(self, slot: int, tenure: int) -> None:
        """Begin a tenure."""
        if self.enforce:
            with self.lock:
                self.tenures[slot] = tenure

    def revoke(self, slot: int) -> None:
        """End it: once this returns, no write of that tenure will be applied any more."""
        if self.enforce:
            with self.lock:
                self.tenures[slot] = 0


class Target(Protocol):
    """Decode's end."""

    def descriptor(self) -> bytes:
        """What a peer needs to open a channel; opaque to everybody else."""

    def counters(self) -> dict[str, int]:
        """Counts since the start: `bad_frames`, `refused`."""

    def close(self) -> None:
        """Stop; no write is applied after this returns."""


class Channel(Protocol):
    """Prefill's end of one connection to one decode node; used by one thread."""

    def write(self, write: Write) -> Outcome:
        """Begin to move the blocks; never blocks for the peer."""

    def completions(self) -> list[tuple[object, bool]]:
        """(key, ok) of each write that was POSTED or PENDING and is done now (or failed). Also moves what is queued."""

    def descriptors(self) -> list[int]:
        """File descriptors whose readability means that `completions` has something."""

    @property
    def busy(self) -> bool:
        """True while something is queued that only `completions` will move."""

    def close(self) -> None:
        """Drop what is outstanding."""


class Transport(Protocol):
    """A named pair of ends."""

    name: str
    refuses: bool
    """True where the target can refuse a write (tcp); False for one-sided memory (shm)."""
    lacks: frozenset[Lack]
    """What it does not promise."""

    def done(self, settings: TransportSettings) -> Done:
        """What "done" means, as declared; `handoff probe` measures it."""

    def target(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> Target:
        """Expose `memory`."""

    def channel(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> Channel:
        """Open a channel to a target; raises TransportError."""


class MemoryLike(Protocol):
    """The region as a transport needs it."""

    path: str
    size_bytes: int
    view: memoryview


class RecorderFactory(Protocol):
    """Opens one history stream for one thread of the calling process."""

    def __call__(self, thread: str) -> Observer:
        """The stream of `thread`; the caller keeps it for itself and closes it when its thread ends. `main` stays: it is the node's."""
