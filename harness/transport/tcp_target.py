"""Decode's end of the tcp transport: receive threads that apply frames, under the slot's tenure where that is enforced."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import threading
import time
from typing import NamedTuple, Protocol

from harness.history.event import Refusal, Verb
from harness.history.recorder import Observer
from harness.protocol.settings import TransportSettings
from harness.transport.base import MemoryLike, Ownership, RecorderFactory
from harness.transport.lateness import Late, Lateness
from harness.transport.tcp_frame import (
    ACK,
    CONNECT_TIMEOUT_S,
    ENTRY,
    FRAME_BYTES_MAX,
    HEAD,
    HELLO,
    MAGIC,
    MORE,
    WANT_ACK,
    WRITER_SHIFT,
)

BUFFER_BYTES = 1 << 20


class _Frame(NamedTuple):
    size: int
    room: int
    slot: int
    tenure: int
    blocks: int
    flags: int
    ticket: int


class _BadFrame(Exception):
    """Bytes that are not a frame: the connection is closed, since nothing after them can be trusted."""


class Connection(Protocol):
    """What a receiver reads frames from: a socket, or what stands for one."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Bytes of the stream; 0 at its end. Raises OSError."""

    def sendall(self, data: bytes, /) -> None:
        """Answer. Raises OSError."""


class Receiver:
    """Applies the frames of one connection in order, on the thread that calls `serve`."""

    def __init__(self, target: TcpTarget, connection: Connection, record: Observer) -> None:
        """Records go to `record`, which only this thread uses."""
        self._target = target
        self._connection = connection
        self._record = record
        self._buffer = bytearray(BUFFER_BYTES)

    def serve(self) -> None:
        """Until the peer leaves, the target closes or something comes that is no frame."""
        try:
            self._serve()
        except (_BadFrame, struct.error):
            self._target.bad_frames += 1
        except OSError:
            pass  # the peer went away or the target closes: whoever wrote learns it from its own end

    def _serve(self) -> None:
        start = end = 0
        while True:
            while end - start >= HEAD.size:
                size = self._check(start)
                if end - start < size:
                    break
                self._apply(start)
                start += size
            start, end = self._make_room(start, end)
            got = self._connection.recv_into(memoryview(self._buffer)[end:])
            if not got:
                if end > start:
                    self._target.bad_frames += 1
                return
            end += got

    def _check(self, start: int) -> int:
        """Size of the frame at `start`; raises _BadFrame."""
        magic, size, _, _, _, count, _, _ = HEAD.unpack_from(self._buffer, start)
        if magic != MAGIC or not HEAD.size + count * ENTRY.size <= size <= FRAME_BYTES_MAX:
            raise _BadFrame
        return int(size)

    def _make_room(self, start: int, end: int) -> tuple[int, int]:
        """Move what is left to the front, and grow for a frame that is larger than the buffer."""
        if start:
            self._buffer[: end - start] = self._buffer[start:end]
            start, end = 0, end - start
        if end >= HEAD.size and self._check(0) > len(self._buffer):
            self._buffer.extend(bytes(self._check(0) - len(self._buffer)))
        elif end == len(self._buffer):
            self._buffer.extend(bytes(BUFFER_BYTES))
        return start, end

    def _apply(self, start: int) -> None:
        frame = _Frame(*HEAD.unpack_from(self._buffer, start)[1:])
        entries_end = start + HEAD.size + frame.blocks * ENTRY.size
        blocks = []
        source = memoryview(self._buffer)
        at = entries_end
        for offset, size, bit in ENTRY.iter_unpack(source[start + HEAD.size : entries_end]):
            blocks.append((offset, source[at : at + size], bit))
            at += size
        if at != start + frame.size:
            raise _BadFrame
        late = self._target.lateness.late(frame.room, frame.blocks, frame.flags >> WRITER_SHIFT)
        applied = self._copy(frame, blocks, last=True) if late is None else self._copy_late(frame, blocks, late)
        if frame.flags & WANT_ACK:
            self._connection.sendall(ACK.pack(frame.ticket, applied))
        del blocks, source  # the buffer cannot grow while views of it are alive

    def _copy_late(self, frame: _Frame, blocks: list[tuple[int, memoryview, int]], late: Late) -> bool:
        if late.cut:
            self._copy(frame, blocks[: late.cut], last=False)
        self._target.closing.wait(late.delay_s)
        return self._copy(frame, blocks[late.cut :], last=True)

    def _copy(self, frame: _Frame, blocks: list[tuple[int, memoryview, int]], *, last: bool) -> bool:
        """Apply blocks under the slot's tenure, or refuse them; one record either way."""
        target = self._target
        view, limit = target.memory.view, target.memory.size_bytes
        begin = time.monotonic_ns()
        bits = refusal = 0
        for _, _, bit in blocks:
            bits |= bit
        with target.owners.lock:
            if any(offset + len(data) > limit for offset, data, _ in blocks):
                refusal = Refusal.BOUNDS
            elif target.owners.enforce and not target.owned(frame.slot, frame.tenure):
                refusal = Refusal.TENURE
            else:
                for offset, data, _ in blocks:
                    view[offset : offset + len(data)] = data
        verb = Verb.REFUSED if refusal else Verb.LANDED
        more = 1 if not last or frame.flags & MORE else 0
        slot = min(frame.slot, (1 << 31) - 1)
        writer = frame.flags >> WRITER_SHIFT
        self._record.event(verb, frame.room, slot, frame.tenure, code=refusal or more, flags=bits, a=begin, b=writer)
        target.refused += bool(refusal)
        return not refusal


class TcpTarget:
    """Decode's end: a listening socket, and a receive thread for each connection that showed the session token."""

    def __init__(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> None:
        """Listen on `settings.host`, a port of the system's choice; raises OSError."""
        self.memory = memory
        self.owners = owners
        self.lateness = Lateness(settings, seed)
        self.bad_frames = 0
        self.refused = 0
        self.closing = threading.Event()
        self.recorder = recorder
        self._token = secrets.token_bytes(16)
        self._threads: list[tuple[threading.Thread, socket.socket]] = []
        self._listener = socket.create_server((settings.host, 0), backlog=64)
        self.host = settings.host
        host, port = self._listener.getsockname()[:2]
        self._where = {"host": host, "port": port, "token": self._token.hex()}
        self._acceptor = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._acceptor.start()

    def owned(self, slot: int, tenure: int) -> bool:
        """True if `tenure` is the slot's current one; call with the owners' lock held."""
        tenures = self.owners.tenures
        return slot < len(tenures) and tenure != 0 and tenures[slot] == tenure

    def descriptor(self) -> bytes:
        """Address and session token."""
        return json.dumps(self._where).encode()

    def counters(self) -> dict[str, int]:
        """Frames that were none, and frames refused."""
        return {"bad_frames": self.bad_frames, "refused": self.refused}

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.closing.is_set():
                connection.close()
                return
            # The hello is read by the connection's own thread: a peer that sends nothing must not keep others out.
            thread = threading.Thread(target=self._greet, args=(connection,), name="recv", daemon=True)
            self._threads = [(other, socket_) for other, socket_ in self._threads if other.is_alive()]
            self._threads.append((thread, connection))
            thread.start()

    def _greet(self, connection: socket.socket) -> None:
        """Take the hello and serve; whatever goes wrong with this peer closes its socket and touches nobody else."""
        with contextlib.closing(connection):
            try:
                connection.settimeout(CONNECT_TIMEOUT_S)
                hello = connection.recv(HELLO.size, socket.MSG_WAITALL)
                if hello != HELLO.pack(MAGIC, self._token):
                    self.bad_frames += 1
                    return
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(ACK.pack(0, 1))
            except OSError:
                self.bad_frames += 1
                return
            _ahead_of_python()
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        """Take frames until the connection ends."""
        with contextlib.closing(self.recorder("recv")) as record:
            Receiver(self, connection, record).serve()

    def close(self) -> None:
        """Close every connection and wait for the threads."""
        self.closing.set()
        with contextlib.suppress(OSError):  # some systems refuse to shut a listener down; closing it is enough there
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for _, connection in self._threads:
            with contextlib.suppress(OSError):  # already gone
                connection.shutdown(socket.SHUT_RDWR)
        for thread, _ in self._threads:
            thread.join()


def _ahead_of_python() -> None:
    """Ask for real-time priority for the calling thread, where that is allowed (root, CAP_SYS_NICE); else at least not for batch.

    A receive thread stands for a transfer engine's own threads. Behind busy Python processes on few cores it would be held up for whole
    time slices, several ms, and the load of the machine instead of the scenario would decide how late data is.
    """
    thread = threading.get_native_id()
    for policy, priority in ((os.SCHED_RR, 1), (os.SCHED_OTHER, 0)):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, policy, os.sched_param(priority))
            return
