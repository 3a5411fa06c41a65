"""A reference decode that speaks a released engine's own protocol, to a prefill that hosts it.

Its engine, its guards and its faults are the reference's; its rows and pages lie as that release writes them.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import msgspec

from decode_node.mixed import Places, placed
from decode_node.node import DecodeNode
from harness.errors import HandoffError, HarnessError
from harness.history.event import Role
from harness.hosting.guest import split_layout
from harness.hosting.regions import ADDRESSES, ONE_SIDED, Regions, RegionsMemory
from harness.hosting.sglang import frames
from harness.hosting.sglang.bootstrap import LOOPBACK
from harness.hosting.sglang.line import Line
from harness.hosting.sglang.meeting import Meeting
from harness.hosting.sglang.speaking import Speaking
from harness.node.shell import Address, Streams
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Memory
from harness.protocol.settings import NodeSettings
from harness.transport.base import MemoryLike, RecorderFactory
from harness.transport.engine import address_of

ASK_TIMEOUT_S = 2.0
NOWHERE = -1
_ASKED = "engine_rank=0&target_dp_group=0&prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"
"""Rank 0 of everything, in the words of every generation of the bootstrap server."""


def rank_of(bootstrap: str) -> str:
    """`host:port` of the prefill rank that `bootstrap` knows; raises HarnessError."""
    try:
        with urllib.request.urlopen(f"http://{bootstrap}/route?{_ASKED}", timeout=ASK_TIMEOUT_S) as answer:
            known = json.load(answer)
        return f"{known['rank_ip']}:{int(known['rank_port'])}"
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError) as error:
        raise HarnessError(f"bootstrap server {bootstrap}: it does not know rank 0: {error}") from error


class SpeakingDecodeNode(Speaking, DecodeNode):
    """A decode node; in a run whose prefill is hosted alone it speaks the engine's protocol to it."""

    _line: Line[frames.Status | frames.AbortAck] | None = None

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """As the reference, on pages split into keys and values, and with the engine's sockets; or just as the reference."""
        if not settings.engine.hosts("prefill") or settings.engine.hosts("decode"):
            super().configure(settings, streams)
            return
        self._places, self._regions = Places(), Regions()
        self._one_sided = settings.transport.name in ONE_SIDED
        self._ranks: dict[int, str] = {}
        self._prefill_of = Places()
        self._behind: dict[int, wire.Abort] = {}
        """Aborts whose destination a fault holds back: no more than it can hold."""
        self._spare: list[Any] = []
        self._speak(Line(self.context, frames.to_decode))
        both = msgspec.structs.replace(
            settings,
            prefill_layout=split_layout(settings.prefill_layout).spec,
            decode_layout=split_layout(settings.decode_layout).spec,
        )
        super().configure(both, streams)
        self.handlers[wire.Rendezvous] = self._on_rendezvous

    def _exposed(self, memory: Memory) -> MemoryLike:
        """By addresses, which the engine's frames carry; or as it is, where the sender maps it."""
        if self._line is None or self._one_sided:
            return super()._exposed(memory)
        self._regions.register(address_of(memory.view), memory.size_bytes)
        return RegionsMemory(self._regions)

    def _landing(self, streams: Streams) -> RecorderFactory:
        """A hosted prefill knows neither our slots nor our tenures."""
        return super()._landing(streams) if self._line is None else placed(streams, self._places)

    def _descriptor(self) -> bytes:
        plane = super()._descriptor()
        if self._line is None:
            return plane
        assert self._memory is not None
        where = (address_of(self._memory.view), self._memory.size_bytes) if self._one_sided else (0, ADDRESSES)
        return Meeting(plane.decode(), self._line.endpoint, [], 0, *where).encode()

    # Prefill is there ----------------------------------------------------------------------------------------------

    def _on_rendezvous(self, message: wire.Rendezvous) -> None:
        """Find prefill's rank and register with it, as SGLang's decode does before its first room."""
        if message.prefill in self._sessions:
            return  # asked again: the first answer was on its way
        assert self._line is not None
        try:
            meeting = Meeting.decode(message.meeting)
            rank = rank_of(message.address)
            registration = self._registration(meeting)
        except HandoffError as problem:
            self.answer(str(problem)[:2000])
            return
        self._line.tell(rank, registration.frames())
        self._ranks[message.prefill] = rank
        self._sessions.add(message.prefill)
        self.announce()

    def _registration(self, meeting: Meeting) -> frames.Registration:
        """Where each field of the release's row goes: our own by name, memory that nobody reads for what we do not have."""
        assert self._line is not None
        assert self._memory is not None
        assert self._buffers is not None
        layout: Layout = self._buffers.layout
        base, known = address_of(self._memory.view), {field.name: field for field in layout.fields}
        aux = []
        for part in meeting.fields:
            field = known.get(part.name)
            if field is None:
                aux.append(self._scratch(part.row_bytes * layout.spec.slots))
            elif field.row_bytes != part.row_bytes:
                raise HarnessError(
                    f"{part.name}: a row has {part.row_bytes} bytes in this release, {field.row_bytes} here"
                )
            else:
                aux.append(base + field.offset)
        kv = [base + offset for offset in layout.layer_offsets]
        line = self._line
        return frames.Registration(LOOPBACK, line.port, line.endpoint, kv, aux, layout.spec.page_bytes)

    def _scratch(self, size_bytes: int) -> int:
        memory = bytearray(size_bytes)
        self._spare.append(memory)
        address = address_of(memoryview(memory))
        self._regions.register(address, size_bytes)
        return address

    # What is said --------------------------------------------------------------------------------------------------

    def send_now(self, peer: Address, message: wire.Message, raw: bytes | None = None) -> None:
        """What is for prefill's engine goes in its own frames, all else as ever."""
        rank = self._ranks.get(peer[1]) if self._line is not None and peer[0] == Role.PREFILL else None
        if rank is None or not isinstance(message, wire.RoomExchange | wire.Abort):
            super().send_now(peer, message, raw)
            return
        assert self._line is not None
        line = self._line
        self._prefill_of.put(message.room, peer[1], 1)
        if isinstance(message, wire.RoomExchange):
            self._places.put(message.room, message.slot, message.tenure)
            told = frames.Destination(message.room, LOOPBACK, line.port, line.endpoint, message.pages, message.slot)
            line.tell(rank, told.frames())
            behind = self._behind.pop(message.room, None)
            if behind is not None:
                self._tell_abort(rank, behind)
        elif self.messages is not None and self.messages.holds(wire.RoomExchange, message.room):
            # Of a released decode both go over one socket: none overtakes the other.
            self._behind[message.room] = message
        else:
            self._tell_abort(rank, message)

    def _tell_abort(self, rank: str, message: wire.Abort) -> None:
        assert self._line is not None
        if self._places.of(message.room) is None:  # its destination was lost, or there was none yet
            self._places.put(message.room, NOWHERE, message.tenure)
        self._line.tell(rank, frames.Abort(message.room, LOOPBACK, self._line.port, message.tenure).frames())

    def _heard(self, message: frames.Status | frames.AbortAck) -> None:
        assert self.engine is not None
        known = self._prefill_of.of(message.room)
        if known is None:
            self.late_messages += 1
        elif isinstance(message, frames.Status):
            # A released decode takes nothing but the answer to its abort for the end of a writer's writes.
            self.engine.deliver(wire.Status(message.room, message.status, known[0], drained=False))
        else:
            self.engine.deliver(wire.Drained(message.room, self._places.tenure(message.room), known[0]))
