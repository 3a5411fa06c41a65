"""A transport within one process, as small as one can be. What a broken one does differently is a method of `Toy`."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import time
from typing import Any

from harness.history.event import Refusal, Verb
from harness.transport.base import Block, Done, Lack, Outcome, Ownership, TransportError, Write
from harness.transport.conformance import MIB
from harness.transport.lateness import Late, Lateness

TARGETS: dict[bytes, ToyTarget] = {}
NUMBERS = itertools.count(1)
Job = tuple[Write, list[Block], "ToyChannel"]


class ToyTarget:
    """Decode's end: one thread that applies what was queued, in order."""

    def __init__(self, toy: Toy, settings: Any, memory: Any, owners: Ownership, seed: int, recorder: Any) -> None:
        self.toy, self.memory, self.owners = toy, memory, owners
        self.lateness = Lateness(settings, seed)
        self.record = recorder("recv")
        self.refused = 0
        self.jobs: collections.deque[Job] = collections.deque()
        self.queued_bytes = 0
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self.name = b"toy %d" % next(NUMBERS)
        TARGETS[self.name] = self
        self.thread = threading.Thread(target=self.serve, name="toy")
        self.thread.start()

    def descriptor(self) -> bytes:
        return self.name

    def counters(self) -> dict[str, int]:
        return {"bad_frames": 0, "refused": self.refused}

    def serve(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.jobs or self.closing.is_set())
                if self.closing.is_set():
                    self.record.close()
                    return
                write, blocks, channel = self.jobs.popleft()
            self.toy.apply(self, write, blocks, channel)
            with self.changed:
                self.queued_bytes -= sum(len(data) for _, data, _ in blocks)

    def copy(self, write: Write, blocks: list[Block], *, more: bool, guarded: bool = True) -> bool:
        """One part of a write, under the lock, and its record."""
        begin, refusal, bits = time.monotonic_ns(), 0, 0
        for _, _, bit in blocks:
            bits |= bit
        with self.owners.lock:
            size = self.memory.size_bytes
            if any(offset + len(data) > size for offset, data, _ in blocks):
                refusal = Refusal.BOUNDS
            elif guarded and self.owners.enforce and not 0 < write.tenure == self.owners.tenures[write.slot]:
                refusal = Refusal.TENURE
            else:
                for offset, data, _ in blocks:
                    self.memory.view[offset : offset + len(data)] = data
        self.refused += bool(refusal)
        verb = Verb.REFUSED if refusal else Verb.LANDED
        self.record.event(verb, write.room, write.slot, write.tenure, code=refusal or more, flags=bits, a=begin)
        return not refusal

    def close(self) -> None:
        with self.changed:
            self.closing.set()
            self.changed.notify()
        self.thread.join()
        TARGETS.pop(self.name, None)
        self.toy.lose(self)
        self.jobs.clear()


class ToyChannel:
    """Prefill's end."""

    def __init__(self, toy: Toy, settings: Any, target: ToyTarget, seed: int) -> None:
        self.toy, self.target, self.ack = toy, target, settings.ack
        self.lateness = Lateness(settings, seed)
        self.wake = os.eventfd(0, os.EFD_NONBLOCK)
        self.lock = threading.Lock()
        self.done: list[tuple[object, bool]] = []
        self.open = True

    def write(self, write: Write) -> Outcome:
        return self.toy.write(self, write)

    def queue(self, write: Write, blocks: list[Block], limit: int) -> Outcome:
        """Have the target apply `blocks`, unless it is gone or too much waits for it."""
        target = self.target
        size = sum(len(data) for _, data, _ in blocks)
        with target.changed:
            if target.closing.is_set() or target.queued_bytes + size > limit:
                return Outcome.FAILED
            target.queued_bytes += size
            target.jobs.append((write, blocks, self))
            target.changed.notify()
        return Outcome.PENDING if self.ack else Outcome.POSTED

    def finish(self, key: object, *, ok: bool) -> None:
        with self.lock:
            self.done.append((key, ok))
            if self.open:
                self.toy.signal(self.wake)

    def completions(self) -> list[tuple[object, bool]]:
        with self.lock:
            done, self.done = self.done, []
            if done:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.wake)
        return done

    def descriptors(self) -> list[int]:
        return [self.wake]

    @property
    def busy(self) -> bool:
        return False

    def close(self) -> None:
        with self.lock:
            self.open = False
            self.toy.discard(self.wake)


class Toy:
    """The transport; what a broken one does differently is a method here."""

    name = "toy"
    refuses = True
    lacks: frozenset[Lack] = frozenset()
    queue_bytes_max = 64 * MIB

    def done(self, settings: Any) -> Done:
        return Done.VISIBLE if settings.ack else Done.LEFT

    def target(self, settings: Any, memory: Any, owners: Ownership, seed: int, recorder: Any) -> ToyTarget:
        return ToyTarget(self, settings, memory, owners, seed, recorder)

    def channel(self, settings: Any, descriptor: bytes, seed: int, recorder: Any) -> ToyChannel:
        if descriptor not in TARGETS:
            raise TransportError(f"no toy target {descriptor!r}")
        return ToyChannel(self, settings, TARGETS[descriptor], seed)

    def write(self, channel: ToyChannel, write: Write) -> Outcome:
        blocks = list(channel.lateness.order(write.room, write.blocks))
        return channel.queue(write, self.copies(blocks), self.queue_bytes_max)

    def copies(self, blocks: list[Block]) -> list[Block]:
        return [(offset, memoryview(bytes(data)), bit) for offset, data, bit in blocks]

    def late(self, target: ToyTarget, room: int, count: int) -> Late | None:
        return target.lateness.late(room, count)

    def apply(self, target: ToyTarget, write: Write, blocks: list[Block], channel: ToyChannel) -> None:
        late = self.late(target, write.room, len(blocks))
        cut = 0 if late is None else late.cut
        ok = not cut or target.copy(write, blocks[:cut], more=True)
        if late is not None:
            target.closing.wait(late.delay_s)
        ok = not target.closing.is_set() and self.rest(target, write, blocks[cut:]) and ok
        channel.finish(write.key, ok=ok)

    def rest(self, target: ToyTarget, write: Write, blocks: list[Block]) -> bool:
        return target.copy(write, blocks, more=False)

    def lose(self, target: ToyTarget) -> None:
        for write, _, channel in target.jobs:
            channel.finish(write.key, ok=False)

    def signal(self, wake: int) -> None:
        os.eventfd_write(wake, 1)

    def discard(self, wake: int) -> None:
        os.close(wake)
