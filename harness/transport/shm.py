"""Shared memory: a one-sided copy into decode's region, as RDMA does it. Nobody at the target takes part or can refuse.

Blocks land field by field, in order within a hand-off unless `reorder` says otherwise, and nothing orders them against the status:
blocks that the seed makes late are moved by a thread of their own after `write` has returned POSTED.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import threading
import time
from collections import deque
from collections.abc import Sequence

from harness.history.event import Verb
from harness.history.recorder import Observer
from harness.protocol.settings import TransportSettings
from harness.transport.base import (
    Block,
    Channel,
    Done,
    Lack,
    MemoryLike,
    Outcome,
    Ownership,
    RecorderFactory,
    Target,
    TransportError,
    Write,
)
from harness.transport.lateness import Lateness


class ShmTarget:
    """Decode's end: only says where the memory is."""

    def __init__(self, memory: MemoryLike) -> None:
        """Nothing runs here."""
        self._memory = memory

    def descriptor(self) -> bytes:
        """Path and size of the region."""
        return json.dumps({"path": self._memory.path, "size": self._memory.size_bytes}).encode()

    def counters(self) -> dict[str, int]:
        """Nothing can go wrong that this end would see."""
        return {"bad_frames": 0, "refused": 0}

    def close(self) -> None:
        """Nothing to stop."""


class _Mover(threading.Thread):
    """Moves late blocks when they are due. The source was copied when the write was posted: those bytes have left."""

    def __init__(self, view: memoryview, record: Observer, wake: int, writer: int) -> None:
        super().__init__(name="mover", daemon=True)
        self._view = view
        self._record = record
        self._wake = wake
        self._writer = writer
        self._due: list[tuple[float, int, Write, list[tuple[int, bytes, int]]]] = []
        self._serial = 0
        self._changed = threading.Condition()
        self._open = True
        self.landed: deque[object] = deque()

    def post(self, due: float, write: Write, blocks: Sequence[Block]) -> None:
        """Have `blocks` land at `due` (time.monotonic)."""
        copies = [(offset, bytes(data), bit) for offset, data, bit in blocks]
        with self._changed:
            self._serial += 1
            heapq.heappush(self._due, (due, self._serial, write, copies))
            self._changed.notify()

    def close(self) -> None:
        """Drop what has not landed and end the thread."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self.join()

    def run(self) -> None:
        try:
            while (due := self._next()) is not None:
                self._land(*due)
        finally:
            self._record.close()

    def _next(self) -> tuple[Write, list[tuple[int, bytes, int]]] | None:
        """Wait for what is due; None once closed."""
        with self._changed:
            while self._open and (not self._due or self._due[0][0] > time.monotonic()):
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                self._changed.wait(wait_s if wait_s is None else max(wait_s, 0.0))
            return heapq.heappop(self._due)[2:] if self._open else None

    def _land(self, write: Write, copies: list[tuple[int, bytes, int]]) -> None:
        begin = time.monotonic_ns()
        bits = 0
        for offset, data, bit in copies:
            self._view[offset : offset + len(data)] = data
            bits |= bit
        self._record.event(Verb.LANDED, write.room, write.slot, write.tenure, flags=bits, a=begin, b=self._writer)
        self.landed.append(write.key)
        os.eventfd_write(self._wake, 1)


class ShmChannel:
    """Prefill's end: the mapping of one decode node's region."""

    def __init__(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> None:
        """Map the region; raises TransportError when it is gone."""
        from harness.protocol.memory import Memory  # noqa: PLC0415  torch is not needed to parse settings

        try:
            where = json.loads(descriptor)
            self._memory = Memory.attach(where["path"], where["size"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise TransportError(f"cannot map the region: {error}") from error
        self._view = self._memory.view
        self._ack = settings.ack
        self._writer = settings.writer
        self._lateness = Lateness(settings, seed)
        self._plain = settings.reorder == "none"
        self._record = recorder("main")
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._recorder = recorder
        self._mover: _Mover | None = None
        self._unread = 0

    def write(self, write: Write) -> Outcome:
        """Copy the blocks; POSTED (PENDING with ack) when some of them will land later."""
        blocks = write.blocks if self._plain else self._lateness.order(write.room, write.blocks)
        late = self._lateness.late(write.room, len(blocks), self._writer)
        now_blocks = blocks if late is None else blocks[: late.cut]
        if late is not None and any(offset + len(data) > len(self._view) for offset, data, _ in blocks):
            return Outcome.FAILED
        view = self._view
        begin = time.monotonic_ns()
        bits = 0
        try:
            for offset, data, bit in now_blocks:
                view[offset : offset + len(data)] = data
                bits |= bit
        except ValueError:
            return Outcome.FAILED  # out of bounds: the slice was shorter than the data, and nothing was copied
        if late is None:
            self._record.event(Verb.LANDED, write.room, write.slot, write.tenure, flags=bits, a=begin, b=self._writer)
            return Outcome.DONE
        if now_blocks:
            self._record.event(
                Verb.LANDED, write.room, write.slot, write.tenure, code=1, flags=bits, a=begin, b=self._writer
            )
        if self._mover is None:
            self._mover = _Mover(view, self._recorder("mover"), self._wake, self._writer)
            self._mover.start()
        self._mover.post(time.monotonic() + late.delay_s, write, blocks[late.cut :])
        return Outcome.PENDING if self._ack else Outcome.POSTED

    def completions(self) -> list[tuple[object, bool]]:
        """Writes whose late blocks have landed."""
        if self._mover is None or not (self._mover.landed or self._unread):
            return []
        done: list[tuple[object, bool]] = []
        while self._mover.landed:
            done.append((self._mover.landed.popleft(), True))
        # The mover appends first and signals then, so a key may be here before its signal; left unread, it would wake for ever.
        self._unread += len(done)
        with contextlib.suppress(BlockingIOError):
            self._unread -= os.eventfd_read(self._wake)
        return done

    def descriptors(self) -> list[int]:
        """The mover's wake-up."""
        return [self._wake]

    @property
    def busy(self) -> bool:
        """Nothing here waits for the caller to move it."""
        return False

    def close(self) -> None:
        """End the mover; late blocks that have not landed never will."""
        if self._mover is not None:
            self._mover.close()
        os.close(self._wake)


class ShmTransport:
    """`--transport shm`."""

    name = "shm"
    refuses = False
    lacks: frozenset[Lack] = frozenset()

    def done(self, settings: TransportSettings) -> Done:
        """Blocks are copied when `write` returns, but for those that the seed makes late."""
        return Done.LEFT if settings.late_fraction and not settings.ack else Done.VISIBLE

    def target(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> Target:
        """Expose the region by its path."""
        del settings, owners, seed, recorder
        return ShmTarget(memory)

    def channel(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> Channel:
        """Map the region of `descriptor`."""
        return ShmChannel(settings, descriptor, seed, recorder)
