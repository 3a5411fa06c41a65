"""One admitted request, as the reference decode engine knows it."""

from __future__ import annotations

from typing import Any

from decode_node.fanin import FanIn
from harness.protocol import wire
from harness.protocol.payload import field_mask


class Handoff:
    """One admitted request and what decode knows of it."""

    __slots__ = (
        "asked", "attempt", "deadline", "drained", "fan", "finding", "index", "mask", "page_list", "pages", "prefill", "room",
        "slot", "status", "tenure", "wants",
    )  # fmt: skip

    def __init__(self, request: wire.Request, deadline: float) -> None:
        """A request that has no slot yet: waiting for one is back-pressure, bounded only by the client's own `deadline`."""
        self.room = request.room
        self.attempt = request.attempt
        self.wants = request.wants
        self.index = request.index
        self.prefill = request.prefill
        self.deadline = deadline
        self.mask = field_mask(request.wants)
        self.slot = -1
        self.tenure = 0
        self.page_list: list[int] = []
        self.pages: Any = None
        self.status = -1
        self.drained = False
        self.finding = 0
        self.asked = 0.0
        self.fan: FanIn | None = None
        """Where several prefill ranks write its slot."""
