"""A prefill rank that serves several decode ranks: whose part goes where, and what one destination's end means for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import scenario
from harness.history.event import ROOM_BIT, Resource, Verb
from harness.history.recorder import NullRecorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.protocol.ranks import shard
from harness.transport.base import Outcome, Write
from prefill_stub.fanout import FanOut

ROOM = 77
SIZES = {"topology.decode_tp": 4, "topology.prefill_tp": 2, "topology.prefill_pp": 2, "engine.slots": 2}
LAST = 7
"""Of the second instance (4 to 7) the second rank of the last stage: it serves decode ranks 2 and 3."""
SERVED = (2, 3)
ASK = wire.Request(ROOM, 0, 3, 0, 4, 0)


class _Rows(NullRecorder):
    """Keeps verbs."""

    def __init__(self) -> None:
        self.verbs: list[int] = []

    def row(self, *fields: Any) -> None:
        self.verbs.append(fields[0])

    def event(self, verb: int, *_: object, **__: object) -> None:
        self.verbs.append(verb)


class _Prefill:
    """Process `index`, whose writes land at once in the memory of the decode process that they are for."""

    def __init__(self, index: int = LAST, guards: str = "hardened", outcome: Outcome = Outcome.DONE) -> None:
        changes = {"guards": guards, "topology.prefill": 2, "topology.decode": 2, **SIZES}
        self.settings = scenario.node_settings(scenario.load(None, changes), Path("unused"))
        layout = Layout(self.settings.prefill_layout)
        own = [Buffers(Memory.create("test", layout.size_bytes), layout) for _ in SERVED]
        self.records = (_Rows(), _Rows())
        self.payload = Payload(layout)
        self.machine = FanOut(index, self.settings, own, self.payload, self.records)
        target = Layout(self.settings.decode_layout)
        self.decodes = {decode: Buffers(Memory.create("test", target.size_bytes), target) for decode in SERVED}
        for decode in range(8):
            self.machine.layouts[decode] = target
        self.outcome = outcome
        self.writes: list[Write] = []

    def ask(self, decode: int, *, slot: int = 1, room: int = ROOM, required: int = 2) -> None:
        pages = [7, 6, 4, 5] if slot else [0, 1, 2, 3]
        self.machine.exchange(wire.RoomExchange(room, 0, decode, slot, 10 + decode, pages, required))

    def step(self) -> list[tuple[int, Any]]:
        """Carry everything out; (peer's index, message) of what is sent."""
        sent, out, at = [], self.machine.out, 0
        while at < len(out):
            (_, peer), action = out[at]
            at += 1
            if not isinstance(action, Write):
                sent.append((peer, action))
            elif self.machine.may_issue(action.key):  # type: ignore[arg-type]
                self.writes.append(action)
                for offset, data, _ in action.blocks:
                    self.decodes[action.decode].memory.view[offset : offset + len(data)] = data
                self.machine.wrote(action.key, self.outcome)  # type: ignore[arg-type]
        out.clear()
        return sent

    def held(self, resource: Resource) -> int:
        return self.machine.held()[int(resource)][0]


def test_each_decode_rank_gets_its_own_part_at_the_place_that_it_named() -> None:
    prefill = _Prefill()
    prefill.machine.request(ASK)
    prefill.ask(2, slot=1)
    assert prefill.step() == []
    assert prefill.writes == []
    prefill.ask(3, slot=0)
    sent = prefill.step()
    assert [(peer, message.status, message.rank) for peer, message in sent] == [(2, 4, LAST), (3, 4, LAST)]
    assert [(write.decode, write.slot, write.tenure) for write in prefill.writes] == [(2, 1, 12), (3, 0, 13)]
    layers = prefill.settings.ranks.layers(LAST, prefill.settings.decode_layout.layers)
    for decode, slot, pages in ((2, 1, [7, 6, 4, 5]), (3, 0, [0, 1, 2, 3])):
        buffers = prefill.decodes[decode]
        kv = buffers.kv.take(np.array(pages), axis=1)
        wrong = {layer for layer, *_ in prefill.payload.foreign_pages(ROOM, shard(0, decode), kv)}
        assert wrong.isdisjoint(layers)
        assert buffers.room_word(slot) == ROOM
        assert buffers.room_word(1 - slot) == 0
    assert all(record.verbs.count(Verb.MADE) == record.verbs.count(Verb.SENT) == 1 for record in prefill.records)
    assert prefill.held(Resource.SLOTS) == prefill.held(Resource.ROOMS) == 0


def test_the_next_stage_is_asked_once() -> None:
    prefill = _Prefill(index=5)
    prefill.machine.request(ASK)
    for decode in SERVED:
        prefill.ask(decode)
    passed = [(peer, message) for peer, message in prefill.step() if isinstance(message, wire.Request)]
    assert passed == [(LAST, ASK)]
    assert not any(bit & ROOM_BIT for write in prefill.writes for *_, bit in write.blocks)


def test_the_same_rank_twice_is_not_two() -> None:
    prefill = _Prefill()
    prefill.machine.request(ASK)
    prefill.ask(2)
    prefill.ask(2)
    assert prefill.step() == []
    assert prefill.writes == []
    assert prefill.held(Resource.LATE_MESSAGES) == 1


def test_the_mutant_begins_with_one_and_never_serves_the_other() -> None:
    prefill = _Prefill(guards="hardened,-count_destinations")
    prefill.machine.request(ASK)
    for decode in (2, 2, 3):
        prefill.ask(decode)
    assert [(peer, message.status) for peer, message in prefill.step()] == [(2, 4)]


@pytest.mark.parametrize("required", [1, 3])
def test_a_decode_that_counts_on_another_number_of_ranks_is_refused(required: int) -> None:
    prefill = _Prefill()
    prefill.machine.request(ASK)
    prefill.ask(2, required=required)
    assert [(peer, message.status) for peer, message in prefill.step()] == [(2, 0)]


def test_an_abort_before_all_are_there_fails_those_that_wait_and_those_that_come_later() -> None:
    prefill = _Prefill()
    prefill.machine.request(ASK)
    prefill.ask(2)
    prefill.machine.abort(wire.Abort(ROOM, 13, 3))
    sent = prefill.step()
    assert (3, wire.Drained(ROOM, 13, LAST)) in sent
    assert [(peer, m.status) for peer, m in sent if isinstance(m, wire.Status)] == [(2, 0)]
    other = _Prefill()
    other.machine.request(ASK)
    other.machine.abort(wire.Abort(ROOM, 13, 3))
    other.step()
    other.ask(2)
    assert [(peer, message.status) for peer, message in other.step()] == [(2, 0)]
    assert prefill.held(Resource.ROOMS) == other.held(Resource.ROOMS) == 0


def _begun() -> _Prefill:
    """Of which both writes are outstanding."""
    prefill = _Prefill(outcome=Outcome.PENDING)
    prefill.machine.request(ASK)
    for decode in SERVED:
        prefill.ask(decode)
    assert prefill.step() == []
    return prefill


def test_an_abort_of_one_destination_leaves_the_others_write_alone() -> None:
    prefill = _begun()
    first, second = prefill.writes
    prefill.machine.abort(wire.Abort(ROOM, 12, 2))
    assert prefill.step() == []  # its write is outstanding
    prefill.machine.settle(second.key, ok=True)  # type: ignore[arg-type]
    assert prefill.step() == [(3, wire.Status(ROOM, 4, LAST, drained=True))]
    prefill.machine.settle(first.key, ok=True)  # type: ignore[arg-type]
    assert prefill.step() == [(2, wire.Drained(ROOM, 12, LAST))]
    assert prefill.held(Resource.SLOTS) == prefill.held(Resource.ROOMS) == 0


def test_a_failed_write_fails_its_own_destination() -> None:
    prefill = _begun()
    for write, ok in zip(prefill.writes, (False, True), strict=True):
        prefill.machine.settle(write.key, ok=ok)  # type: ignore[arg-type]
    assert [(peer, message.status) for peer, message in prefill.step()] == [(2, 0), (3, 4)]


def test_a_lost_decode_rank_ends_what_waits_for_it() -> None:
    prefill = _Prefill()
    prefill.machine.request(ASK)
    prefill.ask(2)
    prefill.step()
    prefill.machine.lose_decode(2)
    prefill.ask(3)
    assert [(peer, message.status) for peer, message in prefill.step()] == [(3, 0)]
    assert prefill.held(Resource.ROOMS) == 0


def test_a_room_of_which_half_never_comes_is_forgotten_in_its_bound() -> None:
    prefill = _Prefill()
    prefill.machine.request(ASK)
    prefill.ask(2)
    bound = prefill.settings.request_timeout_s
    prefill.machine.sweep(bound - 1)
    assert prefill.held(Resource.ROOMS) == 2
    prefill.machine.sweep(bound + 1)
    assert prefill.held(Resource.ROOMS) == 0


def test_a_decode_process_that_is_not_served_here_is_late() -> None:
    prefill = _Prefill()
    prefill.ask(1)
    prefill.machine.abort(wire.Abort(ROOM, 1, 0))
    prefill.machine.lose_decode(4)
    assert prefill.step() == []
    assert prefill.held(Resource.LATE_MESSAGES) == 3


def test_it_serves_the_same_ranks_of_every_decode_instance() -> None:
    prefill = _Prefill()
    prefill.decodes |= {6: prefill.decodes[2], 7: prefill.decodes[3]}
    prefill.machine.request(wire.Request(ROOM, 0, 3, 0, 4, 4))
    for decode in (6, 7):
        prefill.ask(decode)
    assert [(peer, message.status) for peer, message in prefill.step()] == [(6, 4), (7, 4)]
