"""An abort goes to a hosted prefill over the socket that its destination went over: no fault of ours may have it come first."""

from __future__ import annotations

import types
from typing import Any

import pytest

from decode_node.mixed import Places
from decode_node.speaking import SpeakingDecodeNode
from harness.faults.catalogue import parse_all
from harness.faults.messages import Messages
from harness.history.event import Role
from harness.history.recorder import NullRecorder
from harness.hosting.sglang import frames
from harness.protocol import wire

ROOM, PREFILL = 77, (int(Role.PREFILL), 0)
LATER = 1e9


class Decode:
    """A decode node whose exchanges meet `fault`, with a prefill that notes what it is told."""

    def __init__(self, fault: str) -> None:
        self.told: list[str] = []
        self.node: Any = object.__new__(SpeakingDecodeNode)
        node = self.node
        node._line = types.SimpleNamespace(port=9, endpoint="127.0.0.1:9", tell=self._note)
        node._ranks, node._places, node._prefill_of, node._behind = {0: "rank"}, Places(), Places(), {}
        node.messages = Messages(parse_all([fault]), 1, NullRecorder(), node.send_now)
        node.messages.arm(0.0, armed=True)

    def _note(self, rank: str, parts: frames.Frames) -> None:
        assert rank == "rank"
        self.told.append(type(frames.to_prefill(parts)).__name__)

    def publish_and_abort(self) -> None:
        self.node.send(PREFILL, wire.RoomExchange(ROOM, 0, 0, 0, 1, [0]))
        self.node.send(PREFILL, wire.Abort(ROOM, 1, 0))


@pytest.mark.parametrize(
    ("fault", "at_once", "in_the_end"),
    [
        ("delay:message=exchange,fraction=1", [], ["Destination", "Abort"]),
        ("reorder:message=exchange,fraction=1,by=9", [], ["Destination", "Abort"]),
        ("duplicate:message=exchange,fraction=1", ["Destination"], ["Destination", "Destination", "Abort"]),
        ("drop:message=exchange,fraction=1", ["Abort"], ["Abort"]),
        ("drop:message=abort,fraction=1", ["Destination"], ["Destination"]),
    ],
)
def test_no_abort_overtakes_its_destination(fault: str, at_once: list[str], in_the_end: list[str]) -> None:
    decode = Decode(fault)
    decode.publish_and_abort()
    assert decode.told == at_once
    decode.node.messages.flush(LATER)
    assert decode.told == in_the_end
    assert not decode.node._behind


def test_other_rooms_do_not_wait() -> None:
    decode = Decode("delay:message=exchange,fraction=1")
    decode.node.send(PREFILL, wire.RoomExchange(ROOM, 0, 0, 0, 1, [0]))
    decode.node.send(PREFILL, wire.Abort(ROOM + 1, 1, 0))
    assert decode.told == ["Abort"]
