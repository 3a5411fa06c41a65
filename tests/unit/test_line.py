"""The sockets at which a reference node hears a released engine: what cannot be read is counted and shown, and nothing else is lost by it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from harness.hosting.sglang import frames
from harness.hosting.sglang.line import COMPLAINTS_MAX, Line
from harness.hosting.sglang.speaking import Speaking

MIXED = [b"7", b"ABORT_ACK", b"9"]
"""The begin of a status of room 7 and an acknowledgement of another's abort in one, as 0.5.13 sends it now and then."""


@pytest.fixture
def line() -> Iterator[Line[Any]]:
    with zmq.Context() as context:
        listening: Line[Any] = Line(context, frames.to_decode)
        yield listening
        listening.close()


@pytest.fixture
def peer(line: Line[Any]) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(f"tcp://{line.endpoint}")
        yield socket


class Shell:
    """What goes after `Speaking` among a node's bases."""

    def step(self, now: float) -> int:
        return int(now)


class Node(Speaking, Shell):  # type: ignore[misc]
    def __init__(self, line: Line[Any]) -> None:
        self._line, self.inbox, self.all_heard = line, types.SimpleNamespace(bad=1), list[Any]()

    def _heard(self, message: Any) -> None:
        self.all_heard.append(message)


def test_what_is_no_message_is_shown_and_counted_among_the_node_s_bad_ones(
    line: Line[Any], peer: zmq.Socket[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    node, last = Node(line), frames.Status(8, 4)
    for _ in range(COMPLAINTS_MAX + 1):
        peer.send_multipart(MIXED)
    peer.send_multipart(last.frames())
    while node.all_heard != [last]:
        assert line.socket.poll(10_000), "nothing comes any more"
        assert node.step(3) == 3
    assert (node.inbox.bad, line.bad) == (1 + COMPLAINTS_MAX + 1, 0)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == COMPLAINTS_MAX
    assert f"{MIXED!r}" in shown[0]
