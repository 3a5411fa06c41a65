"""Prefill's end of the tcp transport: non-blocking connections with a bounded backlog."""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

from harness.protocol.settings import TransportSettings
from harness.transport.base import Block, Outcome, TransportError, Write
from harness.transport.lateness import Lateness
from harness.transport.tcp_frame import (
    ACK,
    CONNECT_TIMEOUT_S,
    ENTRY,
    FRAME_BLOCKS_MAX,
    FRAME_BYTES_MAX,
    HEAD,
    HELLO,
    MAGIC,
    MORE,
    WANT_ACK,
)

SEND_BACKLOG_MAX = 256 << 20
DATA_BYTES_MAX = FRAME_BYTES_MAX - HEAD.size - FRAME_BLOCKS_MAX * ENTRY.size


class _Pipe:
    """One data connection, non-blocking: what the kernel does not take at once waits in `_backlog`, bounded."""

    def __init__(self, where: dict[str, object]) -> None:
        self.socket = connect(where)
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
        return read_answers(self.socket, self._answers)

    def descriptors(self) -> list[int]:
        """What makes `answers` worth calling."""
        return [self.socket.fileno()]

    def close(self) -> None:
        """Close the connection; a backlog is dropped."""
        self.socket.close()


def connect(where: dict[str, object]) -> socket.socket:
    """A connection that showed its session token; raises OSError, and ValueError, KeyError or TypeError for a descriptor that is none."""
    address = (str(where["host"]), int(str(where["port"])))
    hello = HELLO.pack(MAGIC, bytes.fromhex(str(where["token"])))
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(address, CONNECT_TIMEOUT_S))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(hello)
        if connection.recv(ACK.size, socket.MSG_WAITALL) != ACK.pack(0, 1):
            raise ConnectionError("the target did not take the session token")
        stack.pop_all()
    return connection


def read_answers(connection: socket.socket, rest: bytearray) -> list[tuple[int, int]]:
    """Acknowledgements that have come; `rest` keeps what is not whole. Raises ConnectionError when the peer closed."""
    while True:
        try:
            data = connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
        if not data:
            raise ConnectionResetError("the target closed the connection")
        rest += data
    whole = len(rest) // ACK.size * ACK.size
    found = list(ACK.iter_unpack(rest[:whole]))
    del rest[:whole]
    return found


class Pipe(Protocol):
    """What carries the frames of a `TcpChannel`."""

    backlog_bytes: int

    def send(self, parts: list[bytes | memoryview]) -> None:
        """Queue one frame; raises OSError."""

    def flush(self) -> None:
        """Send what waits; raises OSError."""

    def answers(self) -> list[tuple[int, int]]:
        """(ticket, applied) of frames that are done; raises OSError."""

    def descriptors(self) -> list[int]:
        """What makes `answers` worth calling."""

    def close(self) -> None:
        """Drop what waits."""


class TcpChannel:
    """Prefill's end: one or several connections to one decode node."""

    tells_later = False
    """True where also an unacknowledged frame is reported only by `Pipe.answers`."""

    def __init__(self, settings: TransportSettings, descriptor: bytes, seed: int) -> None:
        """Connect; raises TransportError."""
        self._ack = settings.ack
        self._waits = settings.ack or self.tells_later
        self._plain = settings.reorder == "none"
        self._lateness = Lateness(settings, seed)
        self._tickets = 0
        self._waiting: dict[int, tuple[object, int]] = {}
        self._failed: list[tuple[object, bool]] = []
        self._broken = False
        self._pipes: list[Pipe] = []
        try:
            where = json.loads(descriptor)
            for _ in range(settings.connections):
                self._pipes.append(self._pipe(where))
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            self.close()
            raise TransportError(f"cannot connect: {error}") from error

    def _pipe(self, where: dict[str, object]) -> Pipe:
        """One connection."""
        return _Pipe(where)

    def write(self, write: Write) -> Outcome:
        """Send the blocks; DONE when unacknowledged, PENDING with ack, FAILED when the peer is gone."""
        if self._broken:
            return Outcome.FAILED
        blocks = write.blocks if self._plain else self._lateness.order(write.room, write.blocks)
        self._tickets = self._tickets + 1 & 0xFFFFFFFF
        try:
            shares = self._shares(blocks)
        except OSError:
            return Outcome.FAILED
        if self._waits:
            self._waiting[self._tickets] = (write.key, len(shares))
        try:
            for number, (pipe, share) in enumerate(shares):
                pipe.send(self._frame(write, share, more=number < len(shares) - 1))
        except OSError:
            self._waiting.pop(self._tickets, None)
            self._break()
            return Outcome.FAILED
        return Outcome.PENDING if self._waits else Outcome.DONE

    def _shares(self, blocks: Sequence[Block]) -> list[tuple[Pipe, Sequence[Block]]]:
        count = len(self._pipes)
        if count == 1 and len(blocks) <= FRAME_BLOCKS_MAX and self._bytes(blocks) <= DATA_BYTES_MAX:
            return [(self._pipes[0], blocks)]
        # Neighbouring blocks go to different connections, another one first each time, so that none is always ahead.
        shift = self._tickets
        shares = [(self._pipes[(number + shift) % count], blocks[number::count]) for number in range(count)]
        return [(pipe, part) for pipe, share in shares for part in self._parts(share)]

    @staticmethod
    def _bytes(blocks: Sequence[Block]) -> int:
        return sum([len(data) for _, data, _ in blocks])

    def _parts(self, blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
        """Cut into frames that neither a sendmsg nor the target finds too large; raises OSError for a block that no frame holds."""
        part: list[Block] = []
        room = DATA_BYTES_MAX
        for block in blocks:
            size = len(block[1])
            if size > DATA_BYTES_MAX:
                raise OSError(f"block of {size} bytes; a frame holds {DATA_BYTES_MAX}")
            if len(part) == FRAME_BLOCKS_MAX or size > room:
                yield part
                part, room = [], DATA_BYTES_MAX
            part.append(block)
            room -= size
        if part:
            yield part

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
        return [] if self._broken else [fd for pipe in self._pipes for fd in pipe.descriptors()]

    @property
    def busy(self) -> bool:
        """True while a backlog waits."""
        return not self._broken and any(pipe.backlog_bytes for pipe in self._pipes)

    def close(self) -> None:
        """Close the connections; a backlog is dropped."""
        for pipe in self._pipes:
            pipe.close()
