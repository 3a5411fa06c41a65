"""A queue that is filled: whose, when, and that its sender loses what it wants to send there instead of waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from harness.faults.catalogue import parse_all
from harness.faults.queues import Queues
from harness.history.event import Loss, Role
from harness.history.recorder import NullRecorder
from harness.node import post
from harness.node.post import Inbox, Outbox
from harness.protocol import wire

BEAT = wire.Beat(2, 0, 1)
STATUS = wire.Status(7, 4, 0, drained=True)
ENVELOPE = wire.envelope(1)


class _Seen(NullRecorder):
    def __init__(self) -> None:
        self.hits: list[tuple[int, int]] = []

    def event(self, _verb: int, room: int = 0, *_: Any, c: int = 0, **__: Any) -> None:
        self.hits.append((room, c))


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outbox]:
    """One whose peer is not there, so that nothing leaves its queue of 50."""
    monkeypatch.setattr(post, "HIGH_WATER", 50)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = Outbox(context, "ipc://@handoff-test-queues", ENVELOPE)
    yield made
    made.close(drop=True)
    context.destroy(linger=0)


def _queues(fault: str, record: _Seen | None = None) -> Queues:
    queues = Queues(parse_all([fault]), 1, record or _Seen(), BEAT, {1: range(0, 4, 2), 2: [0]})
    queues.arm(100.0, armed=True)
    return queues


def test_an_outbox_is_filled_and_what_is_sent_then_is_lost_without_waiting(outbox: Outbox) -> None:
    assert not outbox.fill(BEAT, 20)
    assert outbox.fill(BEAT, 1000)
    assert outbox.lost == 0
    outbox.send(STATUS)
    assert outbox.lost == 1


def test_it_is_filled_only_while_its_reader_is_stopped_and_each_in_turn(outbox: Outbox) -> None:
    queues = _queues("fill-queue:node=prefill,every_s=2,for_ms=1000")
    first, second = (int(Role.PREFILL), 0), (int(Role.PREFILL), 2)
    peers = {first: outbox, second: outbox}
    assert [queues.step(peers, at) for at in (101.0, 102.5, 104.0, 105.5, 108.5)] == [
        [],
        [first],
        [],
        [second],
        [first],
    ]
    queues.arm(110.0, armed=False)
    assert queues.step(peers, 112.5) == []


def test_it_begins_as_late_and_ends_as_soon_as_its_driver_does(outbox: Outbox) -> None:
    queues = _queues("fill-queue:node=decode,every_s=2,for_ms=1000,from_s=5,count=2")
    peer = (int(Role.DECODE), 0)
    times = (102.5, 104.9, 105.5, 106.5, 108.5, 111.5)
    for _ in range(9):
        queues.lost(STATUS)
    assert [at for at in times if queues.step({peer: outbox}, at)] == [105.5, 108.5]


def test_a_queue_that_is_read_does_not_get_full_and_a_step_is_bounded() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox = Inbox(context, "ipc://@handoff-test-queues-read", ENVELOPE)
    outbox = Outbox(context, inbox.address, ENVELOPE)
    assert not outbox.fill(BEAT, 100)
    assert inbox.socket.poll(5000)
    outbox.close(drop=True)
    inbox.close()
    context.destroy(linger=0)


def test_what_is_lost_is_recorded_as_needed() -> None:
    record = _Seen()
    _queues("fill-queue", record).lost(STATUS)
    assert record.hits == [(7, Loss.NEEDED)]
