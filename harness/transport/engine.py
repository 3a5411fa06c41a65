"""What real transfer engines have in common as transports: blocking calls on threads of their own, from memory registered with the engine.

`EngineChannel.write` copies the blocks into a mover's staging memory and returns PENDING; the mover's thread calls the engine, and the
completion comes when that call has returned. With injected lateness (`late_fraction`) the thread holds the tail of the blocks back, and
an unacknowledged write is POSTED, as with shm.

A `Lifeline` is a listening socket that nobody accepts from: the kernel completes the connection, and resets it when the target closes or
its process dies. It carries no data; it tells a channel that its peer is gone, which one-sided engines do not.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.history.event import Verb
from harness.history.recorder import Observer
from harness.protocol.settings import TransportSettings
from harness.transport.base import Block, Outcome, RecorderFactory, TransportError, Write
from harness.transport.lateness import Late, Lateness

STAGING_BYTES = 256 << 20
"""What one mover may hold for a peer that does not take it; beyond it writes fail. Touched only as far as it is used."""
CLOSE_TIMEOUT_S = 2.0
"""A closing channel waits so long for a call into the engine; then its thread ends by itself when the call returns."""
CONNECT_TIMEOUT_S = 5.0
Part = tuple[int, int, int]
"""(offset in the target's region, offset in the staging memory, bytes)."""


class PeerGone(Exception):
    """The engine can reach its peer no more: every write of the channel fails from now on."""


class Mover(Protocol):
    """One connection of an engine: used by one thread."""

    staging: Staging

    def move(self, parts: Sequence[Part], gone: Callable[[], bool]) -> bool:
        """Move and wait for the engine's answer; False where the target refused. Raises PeerGone; `gone` says whether the lifeline broke."""

    def close(self) -> None:
        """Give back what was registered."""


class Staging:
    """Page-aligned memory for sources, given out front to back and taken back in the same order."""

    def __init__(self, size_bytes: int = STAGING_BYTES) -> None:
        """Reserve the addresses; pages come as they are used, from the front again whenever all is free."""
        self.size_bytes = size_bytes
        self._map = mmap.mmap(-1, size_bytes)
        self.view = memoryview(self._map)
        self._head = 0
        self._taken: collections.deque[tuple[int, int]] = collections.deque()
        self._lock = threading.Lock()

    @property
    def address(self) -> int:
        """Address of byte 0 in this process."""
        return address_of(self.view)

    def take(self, size_bytes: int) -> int | None:
        """Offset of `size_bytes` free bytes, or None where there are none."""
        with self._lock:
            size_bytes = max(size_bytes, 1)
            if not self._taken:
                self._head = 0
            tail = self._taken[0][0] if self._taken else 0
            wrapped = bool(self._taken) and self._head <= tail
            start = self._head
            if not wrapped and start + size_bytes > self.size_bytes:
                start, wrapped = 0, bool(self._taken)
            if size_bytes > (tail if wrapped else self.size_bytes) - start:
                return None
            self._head = start + size_bytes
            self._taken.append((start, size_bytes))
            return start

    def give(self) -> None:
        """Take the oldest piece back."""
        with self._lock:
            self._taken.popleft()

    def undo(self) -> None:
        """Take the newest piece back: nothing was put there."""
        with self._lock:
            self._head, _ = self._taken.pop()

    def close(self) -> None:
        """Unmap, unless something still views it."""
        self.view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


class Wake:
    """An eventfd that threads signal and one caller polls; a thread may outlive it."""

    def __init__(self) -> None:
        """At rest."""
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Readable once it was signalled; -1 when closed."""
        return self._descriptor

    def signal(self) -> None:
        """Make it readable, unless it is closed."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Put it to rest."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


def address_of(view: memoryview) -> int:
    """Address of the first byte of a writable view."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@dataclass(slots=True)
class _Job:
    """One share of a write, on its way through one mover."""

    write: Write
    parts: list[Part]
    bits: list[int]
    late: Late | None
    more: bool
    open: _Open


@dataclass(slots=True)
class _Open:
    """A write that has shares outstanding."""

    key: object
    left: int
    ok: bool = True


class _Worker(threading.Thread):
    """Carries out the jobs of one mover in order."""

    def __init__(self, channel: EngineChannel, mover: Mover, record: Observer | None) -> None:
        super().__init__(name="engine", daemon=True)
        self.mover = mover
        self._channel = channel
        self._record = record
        self._jobs: collections.deque[_Job | None] = collections.deque()
        self._ready = threading.Semaphore(0)
        self.start()

    def post(self, job: _Job | None) -> None:
        """Queue a job; None ends the thread. Bounded by the staging memory that every job takes first."""
        self._jobs.append(job)
        self._ready.release()

    def run(self) -> None:
        try:
            while self._ready.acquire() and (job := self._jobs.popleft()) is not None:
                self._carry_out(job)
        finally:
            self.mover.close()
            if self._record is not None:
                self._record.close()

    def _carry_out(self, job: _Job) -> None:
        channel = self._channel
        ok = False
        try:
            ok = not channel.broken and self._move(job)
        except PeerGone:
            channel.broken = True  # the engine may still read its source: nothing is put there any more
        except BaseException:
            channel.broken = True
            raise
        finally:
            if not channel.broken:
                self.mover.staging.give()
            channel.settle(job.open, ok=ok)

    def _move(self, job: _Job) -> bool:
        late = job.late
        if late is None:
            return self._part(job, 0, len(job.parts), more=job.more)
        if late.cut and not self._part(job, 0, late.cut, more=True):
            return False
        channel = self._channel
        channel.closing.wait(late.delay_s)
        return not channel.closing.is_set() and self._part(job, late.cut, len(job.parts), more=job.more)

    def _part(self, job: _Job, start: int, end: int, *, more: bool) -> bool:
        begin = time.monotonic_ns()
        if not self.mover.move(job.parts[start:end], self._channel.gone):
            return False
        if self._record is not None:
            bits = 0
            for bit in job.bits[start:end]:
                bits |= bit
            write = job.write
            self._record.event(
                Verb.LANDED, write.room, write.slot, write.tenure, code=int(more), flags=bits, a=begin
            )  # fmt: skip
        return True


class EngineChannel:
    """Prefill's end: one mover and thread for each of `settings.connections`."""

    def __init__(
        self, settings: TransportSettings, seed: int, recorder: RecorderFactory, movers: Sequence[Mover], lifeline: socket.socket,
        size_bytes: int, *, observes: bool,
    ) -> None:  # fmt: skip
        """Start the threads. `size_bytes`: of the target's region; `observes`: a call that returned means that the blocks are visible."""
        self.closing = threading.Event()
        self.broken = False
        self._ack = settings.ack
        self._size_bytes = size_bytes
        self._plain = settings.reorder == "none"
        self._lateness = Lateness(settings, seed)
        self._lifeline = lifeline
        self._wake = Wake()
        self._landed: collections.deque[tuple[object, bool]] = collections.deque()
        self._lock = threading.Lock()
        self._turn = 0
        self._workers = [_Worker(self, mover, recorder("engine") if observes else None) for mover in movers]

    def write(self, write: Write) -> Outcome:
        """Copy the blocks and queue them: PENDING, or POSTED where they are to be late and nobody waits for them."""
        blocks = write.blocks if self._plain else self._lateness.order(write.room, write.blocks)
        if self.gone() or any(offset + len(data) > self._size_bytes for offset, data, _ in blocks):
            return Outcome.FAILED
        jobs = self._jobs(write, blocks)
        if jobs is None:
            return Outcome.FAILED
        for worker, job in jobs:
            worker.post(job)
        late = bool(jobs) and jobs[0][1].late is not None
        return Outcome.POSTED if late and not self._ack else Outcome.PENDING

    def _jobs(self, write: Write, blocks: Sequence[Block]) -> list[tuple[_Worker, _Job]] | None:
        """The shares of a write with their staging memory, or None where that is full."""
        count = len(self._workers)
        self._turn += 1
        shares = [(self._workers[(i + self._turn) % count], blocks[i::count]) for i in range(count)]
        shares = [share for share in shares if share[1]] or shares[:1]
        opened = _Open(write.key, len(shares))
        jobs: list[tuple[_Worker, _Job]] = []
        for number, (worker, part) in enumerate(shares):
            parts = _stage(worker.mover.staging, part)
            if parts is None:
                for taken, _ in jobs:
                    taken.mover.staging.undo()
                return None
            late = self._lateness.late(write.room, len(part))
            more = number < len(shares) - 1
            jobs.append((worker, _Job(write, parts, [bit for _, _, bit in part], late, more, opened)))
        return jobs

    def settle(self, opened: _Open, *, ok: bool) -> None:
        """A worker is done with one share."""
        with self._lock:
            opened.left -= 1
            opened.ok = opened.ok and ok
            if opened.left:
                return
        self._landed.append((opened.key, opened.ok))
        self._wake.signal()

    def gone(self) -> bool:
        """True once the peer is known to be gone."""
        if not self.broken:
            try:
                self._lifeline.recv(1, socket.MSG_PEEK)  # nothing is ever sent on it
            except BlockingIOError:
                return False
            except OSError:
                pass  # reset
            self.broken = True
        return True

    def completions(self) -> list[tuple[object, bool]]:
        """Writes whose calls have returned."""
        self.gone()
        self._wake.clear()
        done = []
        while self._landed:
            done.append(self._landed.popleft())
        return done

    def descriptors(self) -> list[int]:
        """The threads' wake-up, and the lifeline."""
        return [self._wake.fileno()] if self.broken else [self._wake.fileno(), self._lifeline.fileno()]

    @property
    def busy(self) -> bool:
        """Nothing here waits for the caller to move it."""
        return False

    def close(self) -> None:
        """End the threads; what is queued is dropped. A call into the engine that does not return is left to end by itself."""
        self.broken = True
        self.closing.set()
        for worker in self._workers:
            worker.post(None)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in self._workers:
            worker.join(max(deadline - time.monotonic(), 0.0))
        self._lifeline.close()
        self._wake.close()


def _stage(staging: Staging, blocks: Sequence[Block]) -> list[Part] | None:
    """Copy the blocks one after the other into free memory; None where there is too little."""
    at = staging.take(sum(len(data) for _, data, _ in blocks))
    if at is None:
        return None
    view, parts = staging.view, []
    for offset, data, _ in blocks:
        view[at : at + len(data)] = data
        parts.append((offset, at, len(data)))
        at += len(data)
    return parts


class EngineTarget:
    """Decode's end of a one-sided engine: says where the memory is, and holds the lifeline."""

    def __init__(self, host: str, where: dict[str, object], close: Callable[[], None]) -> None:
        """`where`: what the channel needs beside the lifeline's address; `close` takes the memory from the engine. Raises OSError."""
        self._listener = lifeline_server(host)
        self._where = {**where, "host": host, "port": self._listener.getsockname()[1]}
        self._close = close

    def descriptor(self) -> bytes:
        """JSON."""
        return json.dumps(self._where).encode()

    def counters(self) -> dict[str, int]:
        """Nothing that this end would see."""
        return {"bad_frames": 0, "refused": 0}

    def close(self) -> None:
        """Drop the lifeline, then take the memory from the engine."""
        self._listener.close()
        self._close()


def lifeline_server(host: str) -> socket.socket:
    """Decode's end of a lifeline; raises OSError."""
    return socket.create_server((host, 0), backlog=128)


def lifeline(host: str, port: int) -> socket.socket:
    """Prefill's end of a lifeline; raises TransportError where nobody listens."""
    try:
        connection = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
    except OSError as error:
        raise TransportError(f"cannot reach {host}:{port}: {error}") from error
    connection.setblocking(False)
    return connection
