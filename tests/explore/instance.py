"""A prefill rank and the two decode ranks of the instance that it serves, with real memory, in one process; who decides the order is the caller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from decode_node.engines.grouped import GroupedEngine
from harness import scenario
from harness.history.event import Resource, Role, Verb
from harness.history.recorder import NullRecorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload, field_mask
from harness.protocol.ranks import shard
from harness.transport.base import Outcome, Ownership, Write
from prefill_stub.fanout import FanOut

from .agreeing import Shared

RANKS = (0, 1)
ROOMS = (71, 72, 73)
SIZES = {"topology.decode_tp": 2, "engine.slots": 2, "engine.page_bytes": 64, "engine.pages_per_request": 1}
PREFILL = -1
"""In names of queues; decode ranks are 0 and 1, and the client is 9."""
CLIENT = 9
REST_STEPS = 400


class _Watch(NullRecorder):
    """Looks at what a decode rank commits, at that moment."""

    def __init__(self, seen: Callable[[int], None]) -> None:
        self._seen = seen

    def row(self, *fields: Any) -> None:
        if fields[0] == Verb.COMMIT:
            self._seen(fields[1])


class Instance:
    """Three requests over two slots at each rank. Messages of one sender to one receiver stay in order; writes land in any."""

    def __init__(self, guards: str) -> None:
        settings = scenario.node_settings(scenario.load(None, {"guards": guards, **SIZES}), Path("unused"))
        self.settings = settings
        layout = Layout(settings.decode_layout)
        self.payload = Payload(layout)
        self._memories = [Memory.create("instance", layout.size_bytes) for _ in range(4)]
        self.buffers = [Buffers(memory, layout) for memory in self._memories]
        shared = Shared(2)
        self.engines = [
            GroupedEngine(
                rank, settings, self.buffers[rank], self.payload, Ownership(2, enforce=False),
                _Watch(lambda room, rank=rank: self._committed(rank, room)), refuses=False, agreement=shared.rank(rank),  # type: ignore[misc]
            )
            for rank in RANKS
        ]  # fmt: skip
        nobody = NullRecorder()
        self.machine = FanOut(0, settings, self.buffers[2:], self.payload, (nobody, nobody))
        self.machine.layouts = {}
        for rank in RANKS:
            for lane in self.machine.lanes:
                lane.layouts[rank] = layout
        self.queues: dict[tuple[int, int], list[Any]] = {}
        self.pending: list[Write] = []
        self.results: dict[int, list[int]] = {room: [] for room in ROOMS}
        self.committed: dict[int, set[int]] = {room: set() for room in ROOMS}
        self.wrong: list[str] = []
        self.now = 0.0
        for index, room in enumerate(ROOMS):
            for to in (PREFILL, *RANKS):
                self.post(CLIENT, to, wire.Request(room, 0, 0, index, 0, 0))

    def close(self) -> None:
        for memory in self._memories:
            memory.close()

    def post(self, sender: int, receiver: int, message: Any) -> None:
        """Put a message on its way."""
        self.queues.setdefault((sender, receiver), []).append(message)

    def _committed(self, rank: int, room: int) -> None:
        engine = self.engines[rank]
        handoff = engine.open[room]
        pages = self.buffers[rank].kv.take(handoff.pages, axis=1)
        if self.payload.foreign_pages(room, shard(0, rank), pages):
            self.wrong.append("foreign KV")
        self.committed[room].add(rank)

    # Actions -------------------------------------------------------------------------------------------------------

    def actions(self) -> list[tuple[str, Any]]:
        """What can happen next."""
        found: list[tuple[str, Any]] = [("deliver", pair) for pair, queue in sorted(self.queues.items()) if queue]
        found += [("land", at) for at in range(len(self.pending))]
        return [*found, *(("poll", rank) for rank in RANKS)]

    def do(self, kind: str, what: Any) -> None:
        """One of `actions`."""
        if kind == "deliver":
            self._deliver(what[1], self.queues[what].pop(0))
        elif kind == "land":
            self._land(self.pending.pop(what))
        else:
            self.now += 1e-3
            self.engines[what].poll(self.now)
        self._flush()

    def _deliver(self, receiver: int, message: Any) -> None:
        if receiver == PREFILL:
            machine = self.machine
            {
                wire.Request: machine.request, wire.RoomExchange: machine.exchange, wire.Abort: machine.abort,
                wire.Cancel: machine.cancel,
            }[type(message)](message)  # fmt: skip
        elif isinstance(message, wire.Request):
            self.engines[receiver].admit(message, self.now)
        elif isinstance(message, wire.Cancel):
            self.engines[receiver].cancel(message.room, self.now)
        else:
            self.engines[receiver].deliver(message)

    def _land(self, write: Write) -> None:
        for offset, data, _ in write.blocks:
            self._memories[write.decode].view[offset : offset + len(data)] = data
        self.machine.settle(write.key, ok=True)  # type: ignore[arg-type]

    def _flush(self) -> None:
        for rank, engine in enumerate(self.engines):
            for (role, _), message in engine.out:
                if role == Role.DRIVER:
                    self._answered(message)
                else:
                    self.post(rank, PREFILL, message)
            engine.out.clear()
        out, at = self.machine.out, 0
        while at < len(out):
            (_, rank), action = out[at]
            at += 1
            if not isinstance(action, Write):
                self.post(PREFILL, rank, action)
            elif self.machine.may_issue(action.key):  # type: ignore[arg-type]
                self.pending.append(action)
                self.machine.wrote(action.key, Outcome.PENDING)  # type: ignore[arg-type]
        out.clear()

    def _answered(self, result: wire.Result) -> None:
        if not result.reason and result.token != int(self.payload.row(result.room, 0, field_mask(0))[0]) & 0xFFFFFFFF:
            self.wrong.append("wrong token")
        self.results[result.room].append(result.reason)

    # The end ---------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Nothing goes wrong any more: everything arrives, and time passes until all is over."""
        for _ in range(REST_STEPS):
            while any(self.queues.values()) or self.pending:
                self.do(*self.actions()[0])
            self.now += 0.25
            self.machine.sweep(self.now)
            for rank in RANKS:
                self.do("poll", rank)

    def judge(self) -> list[str]:
        """What is wrong after `rest`."""
        for room in ROOMS:
            if len(self.results[room]) != 1:
                self.wrong.append(f"{len(self.results[room])} answers")
            elif self.committed[room] != (set() if self.results[room][0] else set(RANKS)):
                self.wrong.append("ranks that did otherwise than the client was told")
        for core in (self.machine, *self.engines):
            held = core.held()
            for resource in (Resource.SLOTS, Resource.ROOMS):
                if held[int(resource)][0]:
                    self.wrong.append(f"{resource.name} held")
        return self.wrong
