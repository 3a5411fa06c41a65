"""Decode with several prefill ranks that write one slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from decode_node.engines.reference import ReferenceEngine
from decode_node.fanin import FAILED, SUCCESS, TRANSFERRING, FanIn
from harness import scenario
from harness.history.event import Reason, Resource, Role
from harness.history.recorder import NullRecorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.transport.base import Ownership

ROOM = 77
RELEASED = "sglang-0.5.20"
"""Whose commit looks at the room alone: no data has to be made here."""


def test_success_is_what_all_ranks_have_reported() -> None:
    fan = FanIn((4, 5, 6), await_all=True)
    assert [fan.report(rank, SUCCESS, drained=False) for rank in (4, 6, 5)] == [TRANSFERRING, TRANSFERRING, SUCCESS]


def test_a_rank_that_says_it_twice_counts_once() -> None:
    fan = FanIn((4, 5), await_all=True)
    assert [fan.report(4, SUCCESS, drained=True) for _ in range(3)] == [TRANSFERRING] * 3
    assert set(fan.undrained) == {5}


def test_one_failure_is_enough() -> None:
    fan = FanIn((4, 5), await_all=True)
    assert fan.report(5, FAILED, drained=True) == FAILED


def test_without_the_guard_the_first_success_wins() -> None:
    assert FanIn((4, 5), await_all=False).report(5, SUCCESS, drained=False) == SUCCESS


def test_what_was_said_before_an_abort_does_not_count() -> None:
    fan = FanIn((4, 5, 6), await_all=True)
    for rank in (4, 5):
        fan.report(rank, SUCCESS, drained=True)
    fan.ask_again(but=(6,))
    assert set(fan.undrained) == {4, 5}
    assert [fan.drain(rank) for rank in (5, 5, 4)] == [False, False, True]


class _Decode:
    """One decode rank, one slot, written by the prefill ranks 4 to 7 of instance 4 (TP 2, PP 2)."""

    def __init__(self, guards: str) -> None:
        changes = {"guards": guards, "engine.slots": 1, "topology.prefill": 2}
        changes |= {"topology.prefill_tp": 2, "topology.prefill_pp": 2}
        settings = scenario.node_settings(scenario.load(None, changes), Path("unused"), record=False)
        layout = Layout(settings.decode_layout)
        owners = Ownership(1, enforce=False)
        self.buffers = Buffers(Memory.create("test", layout.size_bytes), layout)
        self.engine = ReferenceEngine(0, settings, self.buffers, Payload(layout), owners, NullRecorder(), refuses=False)
        self.engine.admit(wire.Request(ROOM, 0, 0, 0, 4, 0), 0.0)
        self.sent = self.take()

    def take(self) -> list[tuple[tuple[int, int], wire.Message]]:
        """What the engine wants sent, once."""
        sent, self.engine.out[:] = list(self.engine.out), []
        return sent

    def status(self, rank: int, status: int = SUCCESS, *, drained: bool = True) -> None:
        """A prefill rank reports, and decode polls."""
        self.buffers.room_words[0] = ROOM
        self.engine.deliver(wire.Status(ROOM, status, rank, drained))
        self.engine.poll(1.0)

    @property
    def results(self) -> list[int]:
        """Reasons told to the driver since the last `take`."""
        return [message.reason for _, message in self.engine.out if isinstance(message, wire.Result)]

    @property
    def held(self) -> int:
        """Slots held."""
        return self.engine.held()[Resource.SLOTS][0]


def test_every_rank_is_told_where_to_write() -> None:
    told = [(peer, message.slot) for peer, message in _Decode(RELEASED).sent if isinstance(message, wire.RoomExchange)]
    assert told == [((int(Role.PREFILL), rank), 0) for rank in (4, 5, 6, 7)]


def test_nothing_is_committed_before_the_last_rank_has_reported() -> None:
    decode = _Decode(RELEASED)
    for rank in (7, 6, 6, 4):
        decode.status(rank)
        assert not decode.results
    decode.status(5)
    assert decode.results == [0]
    assert not decode.held


def test_without_the_guard_half_a_hand_off_is_committed() -> None:
    decode = _Decode(f"{RELEASED},-await_all_ranks")
    decode.status(7)
    assert decode.results == [0]


def test_one_rank_that_failed_fails_the_request_and_all_must_drain() -> None:
    decode = _Decode("hardened")
    decode.status(4)
    decode.status(5, FAILED)
    assert decode.results == [Reason.PREFILL_FAILED]
    aborts = [peer[1] for peer, message in decode.take() if isinstance(message, wire.Abort)]
    assert aborts == [4, 5, 6, 7]
    for rank in (6, 7, 7, 4):  # what 4 and 5 said before the abort does not count
        decode.engine.deliver(wire.Drained(ROOM, 1, rank))
        assert decode.held == 1
    decode.engine.deliver(wire.Drained(ROOM, 1, 5))
    assert not decode.held


def test_a_status_that_crosses_the_abort_counts_for_its_rank_alone() -> None:
    decode = _Decode("hardened")
    decode.status(5, FAILED)
    for rank in (4, 6, 7):
        decode.engine.deliver(wire.Status(ROOM, SUCCESS, rank, drained=True))
        assert decode.held == 1
    decode.engine.deliver(wire.Drained(ROOM, 1, 5))
    assert not decode.held


def test_a_dead_rank_fails_the_request_and_the_others_must_drain() -> None:
    decode = _Decode("hardened")
    decode.engine.lose_prefill(6, 1.0, dead=True)
    assert decode.results == [Reason.PEER_LOST]
    for rank in (4, 5):
        decode.engine.deliver(wire.Drained(ROOM, 1, rank))
    assert decode.held == 1
    decode.engine.deliver(wire.Drained(ROOM, 1, 7))
    assert not decode.held


@pytest.mark.parametrize("rank", [4, 7])
def test_a_request_for_an_instance_that_lacks_a_rank_is_refused(rank: int) -> None:
    decode = _Decode("hardened")
    decode.engine.lose_prefill(rank, 1.0, dead=True)
    decode.take()
    decode.engine.admit(wire.Request(78, 0, 0, 1, 4, 0), 2.0)
    assert decode.results == [Reason.PEER_LOST]
    decode.engine.admit(wire.Request(79, 0, 0, 2, 0, 0), 2.0)
    assert decode.results == [Reason.PEER_LOST]


def test_after_a_commit_the_slot_is_held_until_every_rank_has_drained() -> None:
    decode = _Decode(f"{RELEASED},+drain_on_commit")
    for rank in (4, 5, 6):
        decode.status(rank, drained=rank == 4)
    decode.status(7, drained=False)
    assert decode.results == [0]
    for rank in (5, 7):
        decode.engine.deliver(wire.Drained(ROOM, 1, rank))
        assert decode.held == 1
    decode.engine.deliver(wire.Drained(ROOM, 1, 6))
    assert not decode.held


def test_a_decode_rank_with_one_writer_asks_that_one() -> None:
    """Its writer is not the instance's first rank, by which requests name it."""
    changes = {"engine.slots": 1, "topology.prefill_tp": 2, "topology.decode_tp": 2}
    settings = scenario.node_settings(scenario.load(None, changes), Path("unused"), record=False)
    layout = Layout(settings.decode_layout)
    buffers = Buffers(Memory.create("test", layout.size_bytes), layout)
    owners = Ownership(1, enforce=False)
    engine = ReferenceEngine(1, settings, buffers, Payload(layout), owners, NullRecorder(), refuses=False)
    engine.admit(wire.Request(ROOM, 0, 0, 0, 0, 0), 0.0)
    assert [peer for peer, _ in engine.out] == [(int(Role.PREFILL), 1)]
    engine.lose_prefill(0, 1.0, dead=True)
    assert len(engine.out) == 1  # that one writes to the other rank
    engine.lose_prefill(1, 1.0, dead=True)
    assert engine.out[1][1] == wire.Result(ROOM, 0, int(Reason.PEER_LOST), 0)
