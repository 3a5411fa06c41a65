"""What a decode engine is to its node: the reference here, hosted releases later."""

from __future__ import annotations

from typing import Any, Protocol

from harness.protocol import wire

Action = tuple[tuple[int, int], Any]
"""(peer as (Role, index), message to send to it)."""


class DecodeEngine(Protocol):
    """Messages in, actions out (appended to `out`). Times are monotonic seconds, given by the caller."""

    out: list[Action]

    def admit(self, request: wire.Request, now: float) -> None:
        """Take a request; it waits inside when there is no slot."""

    def deliver(self, message: wire.Status | wire.Drained) -> None:
        """A control message for one room."""

    def poll(self, now: float) -> None:
        """Look at every request whose transfer is reported done: one iteration of the scheduler."""

    @property
    def awaiting(self) -> bool:
        """True while a poll soon has something to look at."""

    def cancel(self, room: int, now: float) -> None:
        """The client gave the request up; one that has ended, or never was, is counted and ignored."""

    def gain_prefill(self, prefill: int) -> None:
        """A prefill node is there (again)."""

    def lose_prefill(self, prefill: int, now: float, *, dead: bool) -> None:
        """A prefill node is gone: fail its open rooms. Only one that is `dead` for certain can write no more."""

    def held(self) -> dict[int, tuple[int, int, int]]:
        """Census: Resource to (held, free, size)."""
