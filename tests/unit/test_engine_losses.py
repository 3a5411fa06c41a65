"""What decode does with slots whose writer is lost: silent is not dead, and only the dead write no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from decode_node.engines.reference import ReferenceEngine
from harness import scenario
from harness.history.event import Reason, Resource
from harness.history.recorder import NullRecorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.transport.base import Ownership


def _engine(guards: str, *, refuses: bool = False) -> ReferenceEngine:
    settings = scenario.node_settings(
        scenario.load(None, {"guards": guards, "engine.slots": 1}), Path("unused"), record=False
    )
    layout = Layout(settings.decode_layout)
    owners = Ownership(1, enforce=settings.guards.tenure_on_writes)
    buffers = Buffers(Memory.create("test", layout.size_bytes), layout)
    engine = ReferenceEngine(0, settings, buffers, Payload(layout), owners, NullRecorder(), refuses=refuses)
    engine.admit(wire.Request(77, 0, 0, 0, 0, 0), 0.0)
    return engine


def _reasons(engine: ReferenceEngine) -> list[int]:
    return [message.reason for _, message in engine.out if isinstance(message, wire.Result)]


def _held(engine: ReferenceEngine) -> int:
    return engine.held()[Resource.SLOTS][0]


@pytest.mark.parametrize(("guards", "held"), [("hardened", 1), ("sglang-0.5.20", 1), ("sglang-0.5.13", 0)])
def test_a_silent_prefill_may_still_write_so_draining_engines_keep_the_slot(guards: str, held: int) -> None:
    engine = _engine(guards)
    engine.lose_prefill(0, 1.0, dead=False)
    assert _reasons(engine) == [Reason.PEER_LOST]
    assert _held(engine) == held


def test_once_it_is_dead_the_slot_is_free() -> None:
    engine = _engine("hardened")
    engine.lose_prefill(0, 1.0, dead=False)
    engine.lose_prefill(1, 2.0, dead=True)
    assert _held(engine) == 1  # that was another prefill
    engine.lose_prefill(0, 2.0, dead=True)
    assert _held(engine) == 0
    engine.gain_prefill(1)
    engine.admit(wire.Request(78, 0, 0, 1, 1, 0), 3.0)
    assert _held(engine) == 1


def test_where_the_target_refuses_old_tenures_nothing_need_be_kept() -> None:
    engine = _engine("hardened", refuses=True)
    engine.lose_prefill(0, 1.0, dead=False)
    assert _held(engine) == 0
    assert engine.owners.tenures == [0]


@pytest.mark.parametrize(("guards", "held"), [("hardened", 1), ("hardened,-quarantine", 0)])
def test_a_hold_ends_at_its_deadline_only_without_quarantine(guards: str, held: int) -> None:
    engine = _engine(guards)
    engine.poll(100.0)  # past the transfer time-out: the request fails, its slot is held
    assert _reasons(engine) == [Reason.TIMEOUT]
    assert _held(engine) == 1
    engine.poll(200.0)  # past the hold's deadline
    assert _held(engine) == held


def test_a_duplicate_room_is_refused_and_the_first_stays() -> None:
    engine = _engine("hardened")
    engine.admit(wire.Request(77, 0, 0, 5, 0, 0), 0.0)
    assert _reasons(engine) == [Reason.REJECTED]
    assert list(engine.open) == [77]


def test_a_request_that_waited_past_the_clients_bound_is_failed() -> None:
    engine = _engine("hardened")
    engine.admit(wire.Request(78, 0, 0, 1, 0, 0), 0.0)
    engine.poll(14.9)
    assert 78 in engine.open
    engine.poll(15.1)
    assert 78 not in engine.open
