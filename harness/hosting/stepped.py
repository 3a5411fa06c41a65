"""Places where a hosted engine can be held up, so that an order is chosen: a look-up in a dict, a send on a socket, and each look at a row's fields.

What is replaced is a container, a library's class or an object that is passed in, never a function of the engine: all do what they always do,
some of it later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import zmq

HELD_S = 30.0
"""The longest that anything is held up."""


class HeldDict(dict[int, Any]):
    """A dict in which `key in` is answered late, once, to other threads than the one that made it."""

    def __init__(self, content: Mapping[int, Any], when: Callable[[int, Any], bool]) -> None:
        """A copy of `content`; the first look-up for which `when(key, value)` is true is held up."""
        super().__init__(content)
        self._when = when
        self._owner = threading.get_ident()
        self.reached = threading.Event()
        """Somebody is held up: the answer is known, and not given yet."""
        self.go_on = threading.Event()

    def __contains__(self, key: object) -> bool:
        """The answer of the moment when it was asked."""
        there = super().__contains__(key)
        if there and threading.get_ident() != self._owner and not self.reached.is_set():
            assert isinstance(key, int)
            if self._when(key, super().get(key)):
                self.reached.set()
                self.go_on.wait(HELD_S)
        return there


class Looks:
    """Counts how often a row's tensors are looked up by name, and calls `act` just before one of these look-ups."""

    def __init__(self) -> None:
        """Nothing is to be called."""
        self._left = -1
        self._act: Callable[[], None] = lambda: None

    def before(self, look: int, act: Callable[[], None]) -> None:
        """Call `act` once, before the look-up with number `look`, counted from 0 and from now."""
        self._left, self._act = look, act

    @property
    def over(self) -> bool:
        """Whether `act` was called, or nothing is to be."""
        return self._left < 0

    def forget(self) -> None:
        """Do not call it any more."""
        self._left = -1

    def look(self) -> None:
        """One is about to be made."""
        if self._left >= 0:
            self._left -= 1
            if self._left < 0:
                self._act()


def stepped_buffers(kind: Any, looks: Looks) -> type:
    """A subclass of `kind`, a `MetadataBuffers`, whose tensors tell `looks` before they are looked up.

    What is read of a tensor is read after its look-up: an engine that looks all of them up before it reads the first cannot be held up in between.
    """

    class SteppedBuffers(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if isinstance(found, torch.Tensor):
                looks.look()
            return found

    return SteppedBuffers


class Gate:
    """Holds up one message after its first frame, until another thread has sent a whole one on the same socket, or until it is opened."""

    def __init__(self, frame: bytes) -> None:
        """`frame`: the first of the message."""
        self._frame = frame
        self._socket: Any = None
        self._thread = 0
        self._go_on = threading.Event()
        self.reached = threading.Event()
        """The message is held up."""
        self.overtaken = threading.Event()
        """Another one was sent meanwhile."""

    def open(self) -> None:
        """Let the message go on, overtaken or not: where a lock keeps the two apart, the other one waits for it."""
        self._go_on.set()

    def sent(self, socket: Any, frame: bytes, *, more: bool) -> None:
        """Called by every socket after each frame."""
        if self._socket is None and more and frame == self._frame:
            self._socket, self._thread = socket, threading.get_ident()
            self.reached.set()
            self._go_on.wait(HELD_S)
        elif socket is self._socket and not more and threading.get_ident() != self._thread:
            self.overtaken.set()
            self._go_on.set()


@dataclass
class Ear:
    """Who is told of every frame of this process."""

    gate: Gate | None = None
    heard: set[bytes] | None = None
    """Where it is a set, every frame is added to it."""


EAR = Ear()


class SteppedSocket(zmq.Socket[bytes]):
    """pyzmq's socket; `EAR` is told of each frame."""

    def send(self, data: Any, flags: int = 0, *arguments: Any, **named: Any) -> Any:
        """As in pyzmq, where a multipart message is sent frame by frame through this."""
        result = super().send(data, flags, *arguments, **named)
        frame, more = bytes(data), bool(flags & zmq.SNDMORE)
        if EAR.heard is not None:
            EAR.heard.add(frame)
        if EAR.gate is not None:
            EAR.gate.sent(self, frame, more=more)
        return result


def install_sockets() -> None:
    """Have every socket of this process made as a SteppedSocket, before an engine makes one."""
    zmq.Context._socket_class = SteppedSocket  # type: ignore[misc]  # noqa: SLF001  where pyzmq lets a subclass name its own
