"""The sockets of SGLang's protocol at a node of ours: one to be told, one to each peer that is to be told something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import zmq

from harness.hosting.sglang.bootstrap import LOOPBACK
from harness.hosting.sglang.frames import BadFrames, Frames

TAKE_MAX = 64
"""Messages taken at once."""
COMPLAINTS_MAX = 8
"""Messages that are shown in the log because they cannot be read."""
Said = TypeVar("Said")


class Line(Generic[Said]):
    """Listens on loopback `port`; `read` makes messages of frames."""

    def __init__(self, context: zmq.Context[Any], read: Callable[[Frames], Said]) -> None:
        """Nobody is connected."""
        self._context, self._read = context, read
        self.socket = context.socket(zmq.PULL)
        self.socket.linger = 0
        self.port = self.socket.bind_to_random_port(f"tcp://{LOOPBACK}")
        self._out: dict[str, zmq.Socket[bytes]] = {}
        self.bad = 0
        """Messages that were none, or that nobody took."""
        self._complaints = 0

    @property
    def endpoint(self) -> str:
        """Where it listens, `host:port`."""
        return f"{LOOPBACK}:{self.port}"

    def take(self) -> list[Said]:
        """What was said since, TAKE_MAX messages at most."""
        found = []
        for _ in range(TAKE_MAX):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                found.append(self._read(parts))
            except BadFrames as problem:
                self._complain(parts, problem)
        return found

    def _complain(self, parts: Frames, problem: BadFrames) -> None:
        """A peer whose threads share a socket may send one message inside another: whoever looks into a hang must see that."""
        self.bad += 1
        self._complaints += 1
        if self._complaints <= COMPLAINTS_MAX:
            print(f"frames that are no message: {parts!r:.400}: {problem}", file=sys.stderr, flush=True)

    def tell(self, endpoint: str, parts: Frames) -> None:
        """Send to the peer that listens at `endpoint`, `host:port`; one that takes nothing any more loses it."""
        if endpoint not in self._out:
            socket = self._out[endpoint] = self._context.socket(zmq.PUSH)
            socket.linger = 0
            socket.connect(f"tcp://{endpoint}")
        try:
            self._out[endpoint].send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self.bad += 1

    def close(self) -> None:
        """Say and hear nothing more."""
        for socket in (self.socket, *self._out.values()):
            socket.close()
