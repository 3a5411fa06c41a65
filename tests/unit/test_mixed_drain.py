"""When a reference decode beside a hosted prefill may give an aborted request's slot away: a status is no answer to an abort."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decode_node.engines.reference import ReferenceEngine
from decode_node.mixed import Places
from decode_node.speaking import SpeakingDecodeNode
from harness import scenario
from harness.history.event import Resource
from harness.history.recorder import NullRecorder
from harness.hosting.sglang import frames
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.transport.base import Ownership

ROOM, PREFILL = 77, 0
FAILED, SUCCESS = 0, 4


class Decode:
    """A reference engine with one slot, behind a node that hears a released prefill."""

    def __init__(self) -> None:
        """The room has its slot, and prefill was told."""
        chosen = scenario.load(None, {"guards": "sglang-0.5.20", "engine.slots": 1})
        settings = scenario.node_settings(chosen, Path("unused"), record=False)
        layout = Layout(settings.decode_layout)
        buffers = Buffers(Memory.create("test", layout.size_bytes), layout)
        owners = Ownership(1, enforce=False)
        self.engine = ReferenceEngine(0, settings, buffers, Payload(layout), owners, NullRecorder(), refuses=False)
        self.node: Any = object.__new__(SpeakingDecodeNode)
        self.node.engine, self.node.late_messages = self.engine, 0
        self.node._places, self.node._prefill_of = Places(), Places()
        self.engine.admit(wire.Request(ROOM, 0, 0, 0, PREFILL, 0), 0.0)
        ((_, exchange),) = self.engine.out
        assert isinstance(exchange, wire.RoomExchange)
        self.node._places.put(ROOM, exchange.slot, exchange.tenure)
        self.node._prefill_of.put(ROOM, PREFILL, 1)

    def hear(self, message: frames.Status | frames.AbortAck) -> None:
        self.node._heard(message)

    @property
    def held(self) -> int:
        return self.engine.held()[Resource.SLOTS][0]


@pytest.mark.parametrize("status", [FAILED, SUCCESS])
def test_a_status_that_crosses_an_abort_does_not_free_the_slot_and_the_answer_does(status: int) -> None:
    decode = Decode()
    decode.engine.cancel(ROOM, 1.0)
    decode.hear(frames.Status(ROOM, status))
    assert decode.held == 1
    decode.hear(frames.AbortAck(ROOM))
    assert decode.held == 0


def test_a_status_before_the_abort_does_not_either() -> None:
    decode = Decode()
    decode.hear(frames.Status(ROOM, SUCCESS))
    decode.engine.cancel(ROOM, 1.0)
    assert decode.held == 1
    decode.hear(frames.AbortAck(ROOM))
    assert decode.held == 0
    decode.hear(frames.AbortAck(ROOM))
    assert decode.engine.late_messages == 1
