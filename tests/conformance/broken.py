"""For each property of the conformance suite a transport that breaks it, and what the suite must say of it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any

from harness.history.event import Verb
from harness.transport.base import Block, Outcome, Ownership, Write
from harness.transport.lateness import Late

from .toys import TARGETS, Toy, ToyChannel, ToyTarget


class Spills(Toy):
    """Rounds the length of a block up."""

    def copies(self, blocks: list[Block]) -> list[Block]:
        return [(offset, memoryview(bytes(data) + b"\0"), bit) for offset, data, bit in blocks]


class Borrows(Toy):
    """Sends from the source whenever it gets to it."""

    def copies(self, blocks: list[Block]) -> list[Block]:
        return blocks


class Repeats(Toy):
    """Reports each key twice."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        super().apply(target, write, blocks, channel)
        channel.finish(write.key, ok=True)


class Early(Toy):
    """Acknowledges when it has received, not when it has applied."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        channel.finish(write.key, ok=True)
        super().apply(target, write, blocks, ToyChannel(self, target.lateness._settings, target, 0))


class SaysDone(Toy):
    """With ack, says DONE of what it has only queued."""

    def write(self, channel: ToyChannel, write: Write) -> Outcome:
        super().write(channel, write)
        return Outcome.DONE


class Silent(Toy):
    """Completes without a signal."""

    def signal(self, wake: int) -> None:
        pass


class Restless(Toy):
    """Leaves its descriptor readable."""

    def signal(self, wake: int) -> None:
        os.eventfd_write(wake, 2)

    def channel(self, settings: Any, descriptor: bytes, seed: int, recorder: Any) -> ToyChannel:
        channel = super().channel(settings, descriptor, seed, recorder)
        channel.completions = lambda: [channel.done.pop()] if channel.done else []  # type: ignore[method-assign]
        return channel


class Backwards(Toy):
    """Applies the last block first."""

    def copies(self, blocks: list[Block]) -> list[Block]:
        return super().copies(blocks)[::-1]


class NeverApart(Toy):
    """Has no late blocks, whatever was asked for."""

    def late(self, target: ToyTarget, room: int, count: int) -> Late | None:
        return None


class KeepsOrder(Toy):
    """Does not know reorder."""

    def write(self, channel: ToyChannel, write: Write) -> Outcome:
        return channel.queue(write, self.copies(list(write.blocks)), self.queue_bytes_max)


class DrawsByTurn(Toy):
    """Draws lateness for the n-th write, not for its room."""

    def __init__(self) -> None:
        self.turns = itertools.count(1)

    def late(self, target: ToyTarget, room: int, count: int) -> Late | None:
        return super().late(target, next(self.turns), count)


class IgnoresSeed(Toy):
    """Draws lateness from the room alone."""

    def target(self, settings: Any, memory: Any, owners: Ownership, seed: int, recorder: Any) -> ToyTarget:
        return super().target(settings, memory, owners, 1, recorder)


class Trusting(Toy):
    """Says that it refuses, and applies what anybody sends."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        channel.finish(write.key, ok=target.copy(write, blocks, more=False, guarded=False))


class Uncounted(Toy):
    """Refuses, but does not count it."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        super().apply(target, write, blocks, channel)
        target.refused = 0


class AsksOnce(Toy):
    """Looks at the tenure when a write begins, not when its late blocks land."""

    def rest(self, target: ToyTarget, write: Write, blocks: list[Block]) -> bool:
        return target.copy(write, blocks, more=False, guarded=False)


class LooksAhead(Toy):
    """Looks the tenure up before it takes the lock."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        _ = target.owners.tenures[write.slot]
        super().apply(target, write, blocks, channel)


class Wraps(Toy):
    """Lets an offset wrap around the end of the memory."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        size = target.memory.size_bytes
        super().apply(target, write, [(offset % (size - 64), data, bit) for offset, data, bit in blocks], channel)


class Stops(Toy):
    """Its receiver serves nobody after a write out of bounds."""

    def rest(self, target: ToyTarget, write: Write, blocks: list[Block]) -> bool:
        if target.refused:
            target.closing.wait()
        return super().rest(target, write, blocks)


class Truncates(Toy):
    """Has 22 bits for the length of a block."""

    def copies(self, blocks: list[Block]) -> list[Block]:
        return [(offset, data[: (1 << 22) - 1], bit) for offset, data, bit in super().copies(blocks)]


class SixteenBits(Toy):
    """Has 16 bits for the number of blocks."""

    def copies(self, blocks: list[Block]) -> list[Block]:
        return super().copies(blocks)[: (1 << 16) - 1]


class Loses(Toy):
    """Loses a write now and then."""

    def __init__(self) -> None:
        self.turns = itertools.count(1)

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        if next(self.turns) % 1000:
            super().apply(target, write, blocks, channel)


class Waits(Toy):
    """Its writer waits until the target has taken everything."""

    def write(self, channel: ToyChannel, write: Write) -> Outcome:
        outcome = super().write(channel, write)
        with channel.target.owners.lock:
            return outcome


class Hoards(Toy):
    """Queues without a bound."""

    queue_bytes_max = 1 << 62

    def copies(self, blocks: list[Block]) -> list[Block]:
        return blocks if len(blocks) == 1 else super().copies(blocks)  # a test need not hold so much


class Raises(Toy):
    """Lets the loss of its peer out as an exception of its own."""

    def write(self, channel: ToyChannel, write: Write) -> Outcome:
        if channel.target.closing.is_set():
            raise ConnectionResetError("the peer is gone")
        return super().write(channel, write)


class Forgets(Toy):
    """Never says what became of writes that were open when its peer went away."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        target.closing.wait()

    def lose(self, target: ToyTarget) -> None:
        pass


class Outlives(Toy):
    """Applies on the writer's thread once its target is gone."""

    def write(self, channel: ToyChannel, write: Write) -> Outcome:
        outcome = super().write(channel, write)
        if outcome is Outcome.FAILED:
            channel.target.copy(write, list(write.blocks), more=False)
        return outcome


class Crashes(Toy):
    """Takes any descriptor for one of its own."""

    def channel(self, settings: Any, descriptor: bytes, seed: int, recorder: Any) -> ToyChannel:
        return ToyChannel(self, settings, TARGETS[descriptor], seed)


class LeaksDescriptors(Toy):
    """Does not close its event."""

    kept: list[int]

    def __init__(self) -> None:
        self.kept = []

    def discard(self, wake: int) -> None:
        self.kept.append(wake)


class _Kept:
    def __init__(self, record: Any) -> None:
        self.event = record.event

    def close(self) -> None:
        """Not."""


class LeaksStreams(Toy):
    """Does not close the stream of its thread."""

    def target(self, settings: Any, memory: Any, owners: Ownership, seed: int, recorder: Any) -> ToyTarget:
        return super().target(settings, memory, owners, seed, lambda thread: _Kept(recorder(thread)))


class LeaksThreads(Toy):
    """Leaves a thread behind for each channel."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.threads: list[threading.Thread] = []

    def discard(self, wake: int) -> None:
        super().discard(wake)
        self.threads.append(threading.Thread(target=self.end.wait, name="lingers"))
        self.threads[-1].start()


class Anonymous(Toy):
    """Records another slot's number."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        other = Write(write.room, 0, write.tenure, write.decode, write.blocks, write.key)
        super().apply(target, other, blocks, channel)


class AheadOfTime(Toy):
    """Records the whole write when its first blocks land."""

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        bits = 0
        for _, _, bit in blocks:
            bits |= bit
        event = target.record.event
        event(Verb.LANDED, write.room, write.slot, write.tenure, flags=bits, a=time.monotonic_ns())
        super().apply(target, write, blocks, channel)


BROKEN: list[tuple[type[Toy], str, str]] = [
    (Spills, "lands", "bytes outside of the blocks changed"),
    (Borrows, "sources_reused", "before its blocks were visible"),
    (Repeats, "completes_once", "without being open"),
    (Early, "visible_when_reported", "before its blocks were visible"),
    (SaysDone, "visible_when_reported", "DONE with ack"),
    (Silent, "wakes", "no descriptor woke the caller"),
    (Restless, "wakes", "descriptors at rest"),
    (Backwards, "ordered", "before blocks issued before it"),
    (NeverApart, "ordered", "landed in one go"),
    (KeepsOrder, "room_first", "without the room"),
    (DrawsByTurn, "late_draws", "in another order"),
    (IgnoresSeed, "late_draws", "another seed, the same draws"),
    (Trusting, "tenures", "landed True"),
    (Uncounted, "tenures", "counted as refused"),
    (AsksOnce, "revoke_is_final", "after its tenure had been revoked"),
    (LooksAhead, "revoke_is_final", "without the owners' lock"),
    (Wraps, "bounds", "before its blocks were visible"),
    (Stops, "bounds", "not within"),
    (Truncates, "big_blocks", "before its blocks were visible"),
    (SixteenBits, "many_blocks", "reported before"),
    (Loses, "many_writes", "not within"),
    (Waits, "never_blocks", "a write blocked"),
    (Hoards, "never_blocks", "are queued and none applied"),
    (Forgets, "peer_gone", "an end of every write"),
    (Outlives, "peer_gone", "after the target's close"),
    (Crashes, "opens_or_raises", "instead of TransportError"),
    (LeaksDescriptors, "closes", "descriptors left open"),
    (LeaksStreams, "closes", "streams left open"),
    (LeaksThreads, "closes", "left running"),
    (Anonymous, "records", "recorded as"),
    (AheadOfTime, "records", "visible"),
]
"""(transport, the property that it breaks, what the suite must say)."""
