"""Why a hosted decode says that a request failed: by the room that SGLang saw, not by one that came and went beside it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from decode_node.engines.sglang import SUCCESS, Handoff, HostedDecode
from harness.history.event import Reason, Verb
from harness.hosting.sglang.observe import watched_buffers
from harness.hosting.sglang.request import Request
from harness.protocol import wire

ROOM, OTHER, SLOT = 7, 9, 0


class Views:
    """As `MetadataBuffers` up to 0.5.10: `get_buf` gives a view, and the room is looked at when it has returned."""

    def __init__(self) -> None:
        self.bootstrap_room = torch.zeros((1, 8), dtype=torch.uint64)
        self.during: Callable[[], None] = lambda: None

    def write(self, room: int) -> None:
        self.bootstrap_room[SLOT, 0] = room

    def get_buf(self, idx: int) -> torch.Tensor:
        self.during()
        return self.bootstrap_room[idx]


def aborted(before: int, during: int, after: int) -> tuple[Reason, int]:
    """Reason and room word of the ABORT for a slot that named `before`, `during` and `after` its row was read."""
    hosted: Any = object.__new__(HostedDecode)
    hosted.buffers = watched_buffers(Views)()
    request = Request(ROOM, 0, 0, host="", port=0)
    handoff = Handoff(wire.Request(ROOM, 0, 0, 1, 0, 0), request, 0.0)
    handoff.slot, handoff.tenure, handoff.status = SLOT, 1, SUCCESS
    seen: list[tuple[Reason, int]] = []

    def event(verb: int, *_: int, code: Reason, value: int) -> None:
        assert verb == Verb.ABORT
        seen.append((code, value))

    hosted.record = types.SimpleNamespace(event=event)
    hosted.open, hosted.out = {ROOM: handoff}, []
    hosted.buffers.write(before)
    hosted.buffers.during = lambda: hosted.buffers.write(during)
    hosted.buffers.get_buf(SLOT)
    hosted.buffers.write(after)
    request.finished_reason = types.SimpleNamespace(message="it names another room")
    hosted._on_stream([request])
    (found,) = seen
    assert hosted.out[0][1].reason == found[0]
    return found


@pytest.mark.parametrize(
    "words", [(OTHER, OTHER, OTHER), (OTHER, ROOM, ROOM), (ROOM, OTHER, OTHER), (0, OTHER, ROOM), (ROOM, ROOM, OTHER)]
)
def test_another_s_room_is_why_whenever_it_came(words: tuple[int, int, int]) -> None:
    """In the last two of these orders a late write of the slot's owner before lands beside the read; one abort in 3,200 of 0.5.9 was that."""
    assert aborted(*words) == (Reason.MISMATCH, OTHER)


@pytest.mark.parametrize("words", [(ROOM, ROOM, ROOM), (0, ROOM, ROOM), (0, 0, 0)])
def test_its_own_room_is_never_why(words: tuple[int, int, int]) -> None:
    assert aborted(*words) == (Reason.PREFILL_FAILED, words[0])
