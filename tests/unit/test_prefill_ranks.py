"""Prefill as one rank of several: what it writes, when the next stage begins, whose row it sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import scenario
from harness.history.event import KV_BIT, ROOM_BIT, Role, Verb
from harness.history.recorder import NullRecorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.protocol.ranks import shard
from harness.transport.base import Outcome, Write
from prefill_stub.machine import PrefillMachine

ROOM = 77
SIZES = {"topology.prefill_tp": 4, "topology.prefill_pp": 2, "topology.decode_tp": 2, "engine.layers": 3}
INSTANCE = 8
"""Leader of the second instance: processes 8 to 11 are its first stage, 12 to 15 its last."""


class _Rows(NullRecorder):
    """Keeps the row events."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []
        self.sent: list[int] = []

    def row(self, *fields: Any) -> None:
        self.rows.append((fields[0], fields[7][0]))

    def event(self, verb: int, *_: object, **fields: Any) -> None:
        if verb == Verb.SENT:
            self.sent.append(fields["b"])


class _Rank:
    """Prefill process `index`, whose writes land at once in the memory of the decode rank that it writes to."""

    def __init__(self, index: int, guards: str, memory: Memory) -> None:
        changes = {"guards": guards, "engine.slots": 2, "topology.prefill": 2, **SIZES}
        settings = scenario.node_settings(scenario.load(None, changes), Path("unused"))
        layout = Layout(settings.prefill_layout)
        self.record = _Rows()
        own = Buffers(Memory.create("test", layout.size_bytes), layout)
        self.machine = PrefillMachine(index, settings, own, Payload(layout), self.record)
        self.decode = settings.ranks.served(index)[0]
        self.machine.layouts[self.decode] = Layout(settings.decode_layout)
        self._memory = memory
        self.bits = 0

    def run(self) -> list[tuple[tuple[int, int], Any]]:
        """Both halves of a room; returns what is sent, in order."""
        self.machine.request(wire.Request(ROOM, 0, 3, 0, INSTANCE, 0))
        self.machine.exchange(wire.RoomExchange(ROOM, 0, self.decode, 1, 1, [7, 6, 4, 5]))
        sent, at = [], 0
        while at < len(self.machine.out):
            peer, action = self.machine.out[at]
            at += 1
            if not isinstance(action, Write):
                sent.append((peer, action))
                continue
            for offset, data, bit in action.blocks:
                self._memory.view[offset : offset + len(data)] = data
                self.bits |= bit
            self.machine.wrote(action.key, Outcome.DONE)  # type: ignore[arg-type]
        return sent


def _decode_memory() -> tuple[Memory, Buffers, Payload]:
    changes = {"engine.slots": 2, "topology.prefill": 2, **SIZES}
    settings = scenario.node_settings(scenario.load(None, changes), Path("unused"))
    layout = Layout(settings.decode_layout)
    memory = Memory.create("test", layout.size_bytes)
    return memory, Buffers(memory, layout), Payload(layout)


@pytest.mark.parametrize("decode", [0, 1])
def test_the_writers_of_a_rank_write_all_of_its_pages_together_and_none_too_many(decode: int) -> None:
    memory, buffers, payload = _decode_memory()
    writers = [_Rank(index, "hardened", memory) for index in range(8, 16)]
    mine = [rank for rank in writers if rank.decode == decode]
    assert len(mine) == 4
    for done, rank in enumerate(mine):
        pages = buffers.kv.take(np.array([7, 6, 4, 5]), axis=1)
        assert (done < 4) == bool(payload.foreign_pages(ROOM, shard(0, decode), pages))
        rank.run()
    pages = buffers.kv.take(np.array([7, 6, 4, 5]), axis=1)
    assert payload.foreign_pages(ROOM, shard(0, decode), pages) == []
    assert payload.foreign_pages(ROOM, shard(0, 1 - decode), pages)
    assert not buffers.kv[:, :4].any()


@pytest.mark.parametrize(("guards", "who"), [("hardened", [12, 14]), ("sglang-0.5.20", list(range(8, 16)))])
def test_who_sends_the_row(guards: str, who: list[int]) -> None:
    memory, _, _ = _decode_memory()
    ranks = {index: _Rank(index, guards, memory) for index in range(8, 16)}
    for rank in ranks.values():
        rank.run()
        assert rank.bits & KV_BIT
    assert [index for index, rank in ranks.items() if rank.bits & ROOM_BIT] == who


def test_a_stage_before_the_last_sends_a_placeholder_and_says_so() -> None:
    memory, buffers, payload = _decode_memory()
    first = _Rank(8, "sglang-0.5.20", memory)
    last = _Rank(12, "sglang-0.5.20", memory)
    first.run()
    held = buffers.read_row(1)
    assert buffers.room_word(1) == ROOM
    last.run()
    real = buffers.read_row(1)
    assert int(held[0]) != int(real[0])
    [(verb, placeholder)] = first.record.rows
    [(made, tag)] = last.record.rows
    assert (verb, made) == (Verb.PLACEHOLDER, Verb.MADE)
    assert payload.tags(payload.sums(held))[0] == placeholder != tag == payload.tags(payload.sums(real))[0]
    assert first.record.sent == [0]
    assert last.record.sent == [int(real[0]) & 0xFFFFFFFF]


def test_the_next_stage_begins_once_this_one_has_written() -> None:
    memory, _, _ = _decode_memory()
    sent = _Rank(9, "hardened", memory).run()
    [(peer, request)] = [(peer, action) for peer, action in sent if isinstance(action, wire.Request)]
    assert peer == (Role.PREFILL, 13)
    assert request == wire.Request(ROOM, 0, 3, 0, INSTANCE, 0)
    assert not any(isinstance(action, wire.Request) for _, action in _Rank(13, "hardened", memory).run())


def test_reports_name_their_rank() -> None:
    memory, _, _ = _decode_memory()
    rank = _Rank(13, "hardened", memory)
    [status] = [action for _, action in rank.run() if isinstance(action, wire.Status)]
    assert (status.rank, status.status) == (13, 4)
    rank.machine.out.clear()
    rank.machine.abort(wire.Abort(ROOM, 1, rank.decode))
    assert rank.machine.out == [((int(Role.DECODE), rank.decode), wire.Drained(ROOM, 1, 13))]
