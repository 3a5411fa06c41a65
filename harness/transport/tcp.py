"""TCP: blocks travel on data connections of their own and are applied by receive threads beside decode's engine.

Unacknowledged by default: `write` says DONE when the bytes have left the sender, as Mooncake did up to 0.3.11.post1, so a status on the
control plane can overtake them. With `ack` the target confirms each frame after it applied it (Mooncake from 0.3.12). One connection
keeps the order; `connections = n` spreads the blocks of one hand-off over n, each with its own receive thread, which loses it.
Late hand-offs (see `lateness`) are held back on the receiving side, and with them all that is behind them on the same connection.
"""

from __future__ import annotations

import collections
import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from harness.history.event import Refusal, Verb
from harness.history.recorder import Observer
from harness.protocol.settings import TransportSettings
from harness.transport.base import (
    Block,
    Channel,
    MemoryLike,
    Outcome,
    Ownership,
    RecorderFactory,
    Target,
    TransportError,
    Write,
)
from harness.transport.lateness import Late, Lateness

MAGIC = 0x50444854
HELLO = struct.Struct("<I16s")
HEAD = struct.Struct("<IIQIIHHI")
"""magic, bytes of the whole frame, room, slot, tenure, blocks, flags, ticket."""
ENTRY = struct.Struct("<QII")
"""offset, bytes, bit."""
ACK = struct.Struct("<II")
"""ticket, 1 applied or 0 refused."""
WANT_ACK, MORE = 1, 2
FRAME_BYTES_MAX = 64 << 20
BUFFER_BYTES = 1 << 20
SEND_BACKLOG_MAX = 256 << 20
CONNECT_TIMEOUT_S = 5.0


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


class _Receiver(threading.Thread):
    """Applies the frames of one connection in order."""

    def __init__(self, target: TcpTarget, connection: socket.socket, record: Observer) -> None:
        super().__init__(name="recv", daemon=True)
        self._target = target
        self._connection = connection
        self._record = record
        self._buffer = bytearray(BUFFER_BYTES)

    def run(self) -> None:
        try:
            self._serve()
        except (_BadFrame, struct.error):
            self._target.bad_frames += 1
        except OSError:
            pass  # the peer went away or the target closes: whoever wrote learns it from its own end
        finally:
            self._connection.close()

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
        late = self._target.lateness.late(frame.room, frame.blocks)
        if late is None:
            applied = self._copy(frame, blocks, last=True)
        else:
            applied = self._copy_late(frame, blocks, late)
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
        self._record.event(verb, frame.room, slot, frame.tenure, code=refusal or more, flags=bits, a=begin)
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
        self._recorder = recorder
        self._token = secrets.token_bytes(16)
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((settings.host, 0), backlog=64)
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
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(CONNECT_TIMEOUT_S)
        try:
            hello = connection.recv(HELLO.size, socket.MSG_WAITALL)
        except OSError:
            hello = b""
        if hello != HELLO.pack(MAGIC, self._token):
            self.bad_frames += 1
            connection.close()
            return
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(ACK.pack(0, 1))
        _Receiver(self, connection, self._recorder("recv")).run()

    def close(self) -> None:
        """Close every connection and wait for the threads."""
        self.closing.set()
        with contextlib.suppress(OSError):  # some systems refuse to shut a listener down; closing it is enough there
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # already gone
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


class _Pipe:
    """One data connection, non-blocking: what the kernel does not take at once waits in `_backlog`, bounded."""

    def __init__(self, where: dict[str, object]) -> None:
        address = (str(where["host"]), int(str(where["port"])))
        self.socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(HELLO.pack(MAGIC, bytes.fromhex(str(where["token"]))))
        if self.socket.recv(ACK.size, socket.MSG_WAITALL) != ACK.pack(0, 1):
            raise ConnectionError("the target did not take the session token")
        self.socket.setblocking(False)
        self._backlog: collections.deque[memoryview] = collections.deque()
        self.backlog_bytes = 0
        self._answers = bytearray()

    def send(self, parts: list[bytes | memoryview]) -> None:
        """Queue one frame and send what the kernel takes; raises OSError when the peer is gone or reads nothing any more."""
        if self._backlog:
            self._keep(parts, 0)
            self.flush()
            return
        try:
            sent = self.socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        if sent < sum(map(len, parts)):
            self._keep(parts, sent)

    def _keep(self, parts: list[bytes | memoryview], sent: int) -> None:
        rest = memoryview(b"".join(parts))[sent:]
        if self.backlog_bytes + len(rest) > SEND_BACKLOG_MAX:
            raise BrokenPipeError(f"{self.backlog_bytes} bytes wait for a peer that does not read")
        self._backlog.append(rest)
        self.backlog_bytes += len(rest)

    def flush(self) -> None:
        """Send what waits, as far as the kernel takes it."""
        while self._backlog:
            try:
                sent = self.socket.send(self._backlog[0])
            except BlockingIOError:
                return
            self.backlog_bytes -= sent
            if sent == len(self._backlog[0]):
                self._backlog.popleft()
            else:
                self._backlog[0] = self._backlog[0][sent:]

    def answers(self) -> list[tuple[int, int]]:
        """Acknowledgements that have come; raises ConnectionError when the peer closed."""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            if not data:
                raise ConnectionResetError("the target closed the connection")
            self._answers += data
        whole = len(self._answers) // ACK.size * ACK.size
        found = list(ACK.iter_unpack(self._answers[:whole]))
        del self._answers[:whole]
        return found


class TcpChannel:
    """Prefill's end: one or several connections to one decode node."""

    def __init__(self, settings: TransportSettings, descriptor: bytes, seed: int) -> None:
        """Connect; raises TransportError."""
        self._ack = settings.ack
        self._plain = settings.reorder == "none"
        self._lateness = Lateness(settings, seed)
        self._tickets = 0
        self._waiting: dict[int, tuple[object, int]] = {}
        self._failed: list[tuple[object, bool]] = []
        self._broken = False
        try:
            where = json.loads(descriptor)
            self._pipes = [_Pipe(where) for _ in range(settings.connections)]
        except (OSError, ValueError, KeyError) as error:
            raise TransportError(f"cannot connect: {error}") from error

    def write(self, write: Write) -> Outcome:
        """Send the blocks; DONE when unacknowledged, PENDING with ack, FAILED when the peer is gone."""
        if self._broken:
            return Outcome.FAILED
        blocks = write.blocks if self._plain else self._lateness.order(write.room, write.blocks)
        self._tickets = self._tickets + 1 & 0xFFFFFFFF
        shares = self._shares(blocks)
        if self._ack:
            self._waiting[self._tickets] = (write.key, len(shares))
        try:
            for number, (pipe, share) in enumerate(shares):
                pipe.send(self._frame(write, share, more=number < len(shares) - 1))
        except OSError:
            self._waiting.pop(self._tickets, None)
            self._break()
            return Outcome.FAILED
        return Outcome.PENDING if self._ack else Outcome.DONE

    def _shares(self, blocks: Sequence[Block]) -> list[tuple[_Pipe, Sequence[Block]]]:
        count = len(self._pipes)
        if count == 1:
            return [(self._pipes[0], blocks)]
        # Neighbouring blocks go to different connections, another one first each time, so that none is always ahead.
        shift = self._tickets
        shares = [(self._pipes[(number + shift) % count], blocks[number::count]) for number in range(count)]
        return [(pipe, share) for pipe, share in shares if share]

    def _frame(self, write: Write, blocks: Sequence[Block], *, more: bool) -> list[bytes | memoryview]:
        entries = b"".join([ENTRY.pack(offset, len(data), bit) for offset, data, bit in blocks])
        data: list[bytes | memoryview] = [data for _, data, _ in blocks]
        size = HEAD.size + len(entries) + sum(map(len, data))
        flags = (WANT_ACK if self._ack else 0) | (MORE if more else 0)
        head = HEAD.pack(MAGIC, size, write.room, write.slot, write.tenure, len(blocks), flags, self._tickets)
        return [head + entries, *data]

    def _break(self) -> None:
        """The peer is gone: everything that waits for it has failed."""
        self._broken = True
        self._failed += [(key, False) for key, _ in self._waiting.values()]
        self._waiting.clear()

    def completions(self) -> list[tuple[object, bool]]:
        """Acknowledged writes; also sends what waits in the backlogs."""
        done: list[tuple[object, bool]] = []
        if not self._broken:
            try:
                for pipe in self._pipes:
                    pipe.flush()
                    self._settle(pipe.answers(), done)
            except OSError:
                self._break()
        done += self._failed
        self._failed = []
        return done

    def _settle(self, answers: list[tuple[int, int]], done: list[tuple[object, bool]]) -> None:
        for ticket, applied in answers:
            key, left = self._waiting.get(ticket, (None, 0))
            if not left:
                continue
            if left > 1 and applied:
                self._waiting[ticket] = (key, left - 1)
                continue
            del self._waiting[ticket]
            done.append((key, bool(applied)))

    def descriptors(self) -> list[int]:
        """The sockets: acknowledgements and the peer's end make them readable."""
        return [] if self._broken else [pipe.socket.fileno() for pipe in self._pipes]

    @property
    def busy(self) -> bool:
        """True while a backlog waits."""
        return not self._broken and any(pipe.backlog_bytes for pipe in self._pipes)

    def close(self) -> None:
        """Close the connections; a backlog is dropped."""
        for pipe in self._pipes:
            pipe.socket.close()


class TcpTransport:
    """`--transport tcp`."""

    name = "tcp"
    refuses = True

    def target(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> Target:
        """Listen for data connections."""
        return TcpTarget(settings, memory, owners, seed, recorder)

    def channel(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> Channel:
        """Connect to the target of `descriptor`."""
        del recorder
        return TcpChannel(settings, descriptor, seed)
