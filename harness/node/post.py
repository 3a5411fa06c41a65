"""ZMQ ends: one PULL inbox for everything that comes, one PUSH for each peer that is written to.

Local runs use abstract Unix sockets (`ipc://@name`): no file and no port is left behind, whatever dies.
"""

from __future__ import annotations

import zmq

from harness.protocol import wire

HIGH_WATER = 100_000
"""Messages that may wait for one peer; then sends fail instead of blocking or growing."""
FRAME_BYTES_MAX = 128 << 20
LINGER_MS = 500
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain integers: combining pyzmq's flag enums costs more than sending."""


class Inbox:
    """Where a process is written to. Counts what is not a message of this run and goes on."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, envelope: bytes) -> None:
        """Bind `address` (`tcp://host:*` picks a port); raises zmq.ZMQError when it is taken."""
        self.socket = context.socket(zmq.PULL)
        self.socket.set_hwm(HIGH_WATER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(address)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.bad = 0
        self._envelope = envelope

    def drain(self, limit: int = 256) -> list[tuple[wire.Message, bytes]]:
        """Up to `limit` messages that are there now; never waits."""
        found: list[tuple[wire.Message, bytes]] = []
        receive, envelope = self.socket.recv, self._envelope
        for _ in range(limit):
            try:
                frame = receive(_NOBLOCK, copy=False)
            except zmq.Again:
                break
            # A frame object knows `more` by itself; asking the socket for it costs three times as much.
            frames = [frame.bytes]
            while frame.more:
                frame = receive(_NOBLOCK, copy=False)
                frames.append(frame.bytes)
            try:
                found.append(wire.decode(frames, envelope))
            except wire.BadMessage:
                self.bad += 1
        return found

    def close(self) -> None:
        """Unbind."""
        self.socket.close(0)


class Outbox:
    """One peer's address. Never blocks: a full queue or a dead peer loses the message and counts it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, envelope: bytes) -> None:
        """Connect; succeeds whether or not the peer is there yet."""
        self.address = address
        self.socket = context.socket(zmq.PUSH)
        self.socket.set_hwm(HIGH_WATER)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self.socket.connect(address)
        self.lost = 0
        self._envelope = envelope
        # The backend's send, without the checks that only zero-copy and routed sends need: a quarter of the cost.
        self._send = super(zmq.Socket, self.socket).send

    def send(self, message: wire.Message, raw: bytes | None = None) -> None:
        """Queue one message."""
        send = self._send
        try:
            send(self._envelope, _MORE)
            if raw is None:
                send(wire.encode(message), _NOBLOCK)
            else:
                send(wire.encode(message), _MORE)
                send(raw, _NOBLOCK)
        except zmq.Again:
            self.lost += 1

    def fill(self, message: wire.Message, most: int) -> bool:
        """Queue `message` until nothing more goes in, at most `most` times; returns whether the queue is full."""
        lost = self.lost
        for _ in range(most):
            self.send(message)
            if self.lost > lost:
                self.lost = lost
                return True
        return False

    def close(self, *, drop: bool = False) -> None:
        """Disconnect; what is queued is sent for at most LINGER_MS, or dropped."""
        self.socket.close(0 if drop else LINGER_MS)
