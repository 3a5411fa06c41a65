"""One prefill rank and the two decode ranks that it serves, in one process: every order of what can come, and what must hold at each end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import scenario
from harness.history.event import Resource, Role
from harness.history.recorder import NullRecorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.protocol.settings import NodeSettings
from harness.transport.base import Outcome, Write
from prefill_stub.fanout import FanOut

ROOM = 77
RANKS = (0, 1)
REQUEST, CANCEL = wire.Request(ROOM, 0, 0, 0, 0, 0), wire.Cancel(ROOM)
EXCHANGE = {rank: wire.RoomExchange(ROOM, 0, rank, 1 - rank, 5 + rank, [rank], 2) for rank in RANKS}
ABORT = {rank: wire.Abort(ROOM, 5 + rank, rank) for rank in RANKS}
SETTLE = "settle"
Script = Mapping[str, Sequence[Any]]
"""What each source sends, in its order; sources are not ordered among each other."""


def settings_of(guards: str, **changes: Any) -> NodeSettings:
    """One prefill rank, two decode ranks, pages of 64 bytes, one page a request."""
    sizes = {"topology.decode_tp": 2, "engine.slots": 2, "engine.page_bytes": 64, "engine.pages_per_request": 1}
    return scenario.node_settings(scenario.load(None, {"guards": guards, **sizes, **changes}), Path("unused"))


class Fan:
    """The machine, and what became of it. `buffers`: two, used by one machine after the other."""

    def __init__(self, settings: NodeSettings, buffers: Sequence[Buffers]) -> None:
        record = NullRecorder()
        self.machine = FanOut(0, settings, buffers, Payload(buffers[0].layout), (record, record))
        for rank in RANKS:
            self.machine.layouts[rank] = Layout(settings.decode_layout)
        self.asked: set[int] = set()
        self.given_up: set[int] = set()
        self.requested = self.cancelled = False
        self.writes: list[Write] = []
        self.pending: list[Write] = []
        self.told: list[tuple[int, Any]] = []
        """Messages by decode rank, in order."""
        self.wrong: list[str] = []

    def do(self, event: Any) -> None:
        """One message, or the end of the oldest write."""
        machine = self.machine
        if event == SETTLE:
            machine.settle(self.pending.pop(0).key, ok=True)  # type: ignore[arg-type]
        elif isinstance(event, wire.Request):
            self.requested = True
            machine.request(event)
        elif isinstance(event, wire.RoomExchange):
            self.asked.add(event.decode)
            machine.exchange(event)
        elif isinstance(event, wire.Abort):
            self.given_up.add(event.decode)
            machine.abort(event)
        else:
            self.cancelled = True
            machine.cancel(event)
        self._step()

    def _step(self) -> None:
        out, at = self.machine.out, 0
        while at < len(out):
            (role, rank), action = out[at]
            at += 1
            if not isinstance(action, Write):
                assert role == Role.DECODE
                self._hear(rank, action)
            elif self.machine.may_issue(action.key):  # type: ignore[arg-type]
                self._write(rank, action)
        out.clear()

    def _write(self, rank: int, write: Write) -> None:
        own = EXCHANGE[rank]
        if (write.decode, write.slot, write.tenure) != (rank, own.slot, own.tenure):
            self.wrong.append("a write to another rank's slot")
        if not self.requested or len(self.asked) < len(RANKS):
            self.wrong.append("a write before all were there")
        if any(write.decode == other.decode for other in self.writes):
            self.wrong.append("a second write")
        self.writes.append(write)
        self.pending.append(write)
        self.machine.wrote(write.key, Outcome.PENDING)  # type: ignore[arg-type]

    def _hear(self, rank: int, message: Any) -> None:
        if isinstance(message, wire.Drained) and any(write.decode == rank for write in self.pending):
            self.wrong.append("drained while a write is outstanding")
        if isinstance(message, wire.Drained) and message.tenure != EXCHANGE[rank].tenure:
            self.wrong.append("another rank's drain notice")
        self.told.append((rank, message))

    def judge(self) -> list[str]:
        """What is wrong at the end, when nothing more comes."""
        held = self.machine.held()
        if held[int(Resource.SLOTS)][0]:
            self.wrong.append("a slot that nobody gives back")
        ended = self.given_up or self.cancelled
        if held[int(Resource.ROOMS)][0] and (ended or (self.requested and len(self.asked) == len(RANKS))):
            self.wrong.append("a room that stays open")
        for rank in RANKS:
            self._judge_rank(rank)
        return self.wrong

    def _judge_rank(self, rank: int) -> None:
        said = [message for who, message in self.told if who == rank]
        statuses = [message.status for message in said if isinstance(message, wire.Status)]
        if rank in self.given_up and not any(isinstance(message, wire.Drained) for message in said):
            self.wrong.append("an abort without an answer")
        if len(set(statuses)) > 1:
            self.wrong.append("two different ends")
        expected = rank in self.asked and (self.requested or self.given_up) and len(self.asked) == len(RANKS)
        if expected and not said:
            self.wrong.append("a rank that is told nothing")


def orders(script: Script, settings: NodeSettings) -> Iterator[tuple[list[Any], Fan]]:
    """Every order of what the sources send and of when writes end, each with its machine at the end."""
    layout = Layout(settings.prefill_layout)
    buffers = [Buffers(Memory.create("fan", layout.size_bytes), layout) for _ in RANKS]
    stack: list[list[Any]] = [[]]
    while stack:
        path = stack.pop()
        fan, left = Fan(settings, buffers), {source: list(events) for source, events in script.items()}
        for source in path:
            fan.do(SETTLE if source == SETTLE else left[source].pop(0))
        following = [source for source, events in left.items() if events] + [SETTLE] * bool(fan.pending)
        if following:
            stack += [[*path, source] for source in following]
        else:
            yield path, fan
    for part in buffers:
        part.memory.close()
