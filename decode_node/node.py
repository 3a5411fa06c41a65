"""I/O shell of a decode node: memory, transport target, sessions with prefill, and the engine's messages."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from decode_node import mutants
from decode_node.aux import apply_row
from decode_node.engine import DecodeEngine
from decode_node.engines.grouped import GroupedEngine
from decode_node.engines.reference import ReferenceEngine
from decode_node.gloo import GlooAgreement
from decode_node.pace import Pace
from harness import extension
from harness.errors import HarnessError
from harness.faults.decode import DecodeFaults
from harness.history.event import Resource, Role
from harness.node.shell import Address, Shell, Streams
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory, prepare_torch
from harness.protocol.payload import Payload
from harness.protocol.settings import NodeSettings
from harness.transport import registry
from harness.transport.base import MemoryLike, Ownership, RecorderFactory, Target

SESSION_RETRY_S = 0.1
SWITCH_S, SWITCH_MANY_S = 2e-5, 2e-4
"""The receive threads of a transport stand for code that no GIL holds up: let them in after so long, not after Python's 5 ms."""


class DecodeNode(Shell):
    """One decode process; serves one run after the other."""

    engine: DecodeEngine | None = None
    _target: Target | None = None
    _memory: Memory | None = None
    _buffers: Buffers | None = None
    _group: GlooAgreement | None = None
    _now = 0.0
    _warm = False
    _pace = Pace()
    """A run's own is made with it; a hosted engine's run has this one until its warm-up is over."""

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Allocate memory, expose it, build the engine, ask every prefill node for a session."""
        transport = registry.get(settings.transport.name, settings.transport.version)
        layout = Layout(settings.decode_layout)
        self._memory = self._region(layout, named=settings.transport.name == "shm")
        buffers = self._buffers = Buffers(self._memory, layout)
        owners = Ownership(settings.decode_layout.slots, enforce=settings.guards.tenure_on_writes)
        self._target = transport.target(
            settings.transport, self._exposed(self._memory), owners, settings.seed, self._landing(streams)
        )
        make: Callable[..., DecodeEngine] = ReferenceEngine
        if settings.ranks.decode_tp > 1:
            make = self._rank_of_group(settings)
        elif settings.engine.own:
            make = extension.active().engines[settings.engine.own]
        self.engine = make(
            self.index, settings, buffers, Payload(layout), owners, streams("main"), refuses=transport.refuses
        )
        mutants.apply(settings.mutants, self.engine)
        extension.apply((*settings.mutants, *settings.guards.own), "decode", self.engine)
        by_room = settings.ranks.prefill_dp > 1 and not settings.guards.named_dp_rank
        self.handlers |= {
            wire.Request: self._admit_by_room if by_room else self._admit,
            wire.Status: self.engine.deliver,
            wire.Drained: self.engine.deliver,
            wire.SessionAck: self._on_session_ack,
            wire.Cancel: self._cancel,
        }
        self._nemesis = DecodeFaults(settings, streams("main"), self.engine)
        self.raw_handlers[wire.AuxData] = self._apply_aux
        self._owners = owners
        self._main_record = streams("main")
        self._sessions: set[int] = set()
        # A scheduler loop polls its transfers once an iteration, however many messages come in between.
        self._poll_interval_s = settings.poll_interval_ms * 1e-3
        self._wait_ms = max(math.ceil(settings.poll_interval_ms), 1)
        self._next_poll = 0.0
        self._pace = Pace()
        self._warm = False
        ranks = settings.ranks
        own = ranks.rank(Role.DECODE, self.index)
        self._writers = [index for index in range(settings.prefills) if own in ranks.served(index)]
        self._met = False
        # Several receive threads with real-time priority that ask for the GIL every 0.02 ms leave an engine on two cores no time at all.
        sys.setswitchinterval(SWITCH_S if len(self._writers) == 1 else SWITCH_MANY_S)
        self._next_request = 0.0

    def _rank_of_group(self, settings: NodeSettings) -> Callable[..., GroupedEngine]:
        """Join the other ranks of this instance; they meet in the folder of the run."""
        ranks = settings.ranks
        if settings.guards.min_over_ranks:
            meeting = Path(settings.history_dir) / f"decode-{ranks.leader(Role.DECODE, self.index)}.group"
            host = self.inbox.address.removeprefix("tcp://").rpartition(":")[0] if self._on_network else "127.0.0.1"
            self._group = GlooAgreement(meeting, ranks.rank(Role.DECODE, self.index), ranks.decode_tp, host)
        return partial(GroupedEngine, agreement=self._group)

    @property
    def _on_network(self) -> bool:
        return self.inbox.address.startswith("tcp://")

    def _region(self, layout: Layout, *, named: bool) -> Memory:
        """Where writers land; `named` where they map it and cannot reach it through this process's descriptors."""
        name = f"handoff-{self.name}"
        if named and self.shm_dir is not None:
            return Memory.create_named(self.shm_dir, name, layout.size_bytes)
        return Memory.create(name, layout.size_bytes)

    def _exposed(self, memory: Memory) -> MemoryLike:
        """The region as the transport gets it."""
        return memory

    def _landing(self, streams: Streams) -> RecorderFactory:
        """Where the transport's threads record what lands."""
        return streams

    def _descriptor(self) -> bytes:
        """What a prefill needs to open its channel."""
        assert self._target is not None
        return self._target.descriptor()

    def _request_sessions(self, now: float) -> None:
        """Ask every prefill that has not answered; again now and then, since it may not have known our address yet."""
        assert self.settings is not None
        self._next_request = now + SESSION_RETRY_S
        spec = self.settings.decode_layout
        session = wire.Session(self.index, self.incarnation, self._descriptor(), spec.slots, spec.pages)
        for index in self._writers:
            if index not in self._sessions:
                self.send((int(Role.PREFILL), index), session)

    def ready(self) -> bool:
        """Every prefill node that writes here has opened its session, and the ranks of this instance have met."""
        if len(self._sessions) < len(self._writers):
            return False
        try:
            return self._group is None or self._group.formed
        except HarnessError as problem:
            self.answer(str(problem))
            return False

    def _admit(self, request: wire.Request) -> None:
        assert self.engine is not None
        self.engine.admit(request, self._now)

    def _admit_by_room(self, request: wire.Request) -> None:
        """Ask the DP rank that the room implies, whichever the router has sent the request to."""
        assert self.settings is not None
        implied = self.settings.ranks.of_room(request.prefill, request.room)
        self._admit(msgspec.structs.replace(request, prefill=implied))

    def _cancel(self, message: wire.Cancel) -> None:
        assert self.engine is not None
        self.engine.cancel(message.room, self._now)

    def arm(self, now: float, *, armed: bool) -> None:
        """Those of its messages, and its own."""
        super().arm(now, armed=armed)
        self._nemesis.arm(now, armed=armed)

    def step(self, now: float) -> int:
        """Poll at the scheduler's pace, and send what the engine wants sent."""
        self._now = now
        engine = self.engine
        assert engine is not None
        if len(self._sessions) < len(self._writers) and now >= self._next_request:
            self._request_sessions(now)
        if self._group is not None and not self._met:
            if not self._group.formed:
                return self._wait_ms
            self._met = True
            self.announce()
        self._poll(engine, now)
        out = engine.out
        if not self._plain():
            return self._step_with_faults(engine, now)
        if out:
            peers = self.peers
            for peer, message in out:
                outbox = peers.get(peer)
                if outbox is not None:
                    outbox.send(message)
            out.clear()
        return self._wait_ms if engine.awaiting else 50

    def _poll(self, engine: DecodeEngine, now: float) -> None:
        if engine.awaiting:
            self._pace.wanted(now)
        if now >= self._next_poll:
            self._next_poll = now + self._poll_interval_s
            self._pace.polled(now)
            engine.poll(now)
            if not engine.awaiting:
                self._pace.idle()

    def _plain(self) -> bool:
        """Whether messages can go straight into the outboxes."""
        return not self._nemesis.any and self.messages is None

    def _step_with_faults(self, engine: DecodeEngine, now: float) -> int:
        """Send through the faults, those of what comes of them too; and wake in time for what they hold back."""
        wait_s = self._nemesis.step(now)
        at = 0
        while at < len(engine.out):
            peer, message = engine.out[at]
            at += 1
            self.send(peer, message)
            self._nemesis.sent(message, now)
        engine.out.clear()
        if self.messages is not None:
            wait_s = min(wait_s, self.messages.flush(now))
        return min(self._wait_ms if engine.awaiting else 50, math.ceil(wait_s * 1e3))

    def _on_session_ack(self, message: wire.SessionAck) -> None:
        if message.error:
            self.answer(f"prefill-{message.prefill} opened no session: {message.error}")
            return
        self._sessions.add(message.prefill)
        if self.ready() and self._memory is not None:
            self._memory.unlink()  # every writer has mapped it
        self.announce()

    def _apply_aux(self, message: wire.AuxData, raw: bytes) -> None:
        """planes = shared: the row came on the control socket, before its status."""
        assert self._buffers is not None
        if not apply_row(self._buffers, self._owners, message, raw, self._main_record):
            self.inbox.bad += 1

    def peer_changed(self, peer: Address, *, alive: bool, dead: bool = False) -> None:
        """A new prefill is asked for a session at the next step; a lost one fails its rooms."""
        if peer[0] != Role.PREFILL or self.engine is None or self.settings is None:
            return
        self._sessions.discard(peer[1])
        if alive:
            self.engine.gain_prefill(peer[1])
        else:
            self.engine.lose_prefill(peer[1], self._now, dead=dead)

    def _on_census(self, message: wire.CensusRequest) -> None:
        """The first that is no mere gauge comes at the end of the warm-up, whose polls do not count."""
        super()._on_census(message)
        if message.serial and self.settings is not None and not self._warm:
            self._warm, self._pace = True, Pace()

    def held(self) -> dict[int, tuple[int, int, int]]:
        """The engine's census and the target's bad frames."""
        assert self.engine is not None
        assert self._target is not None
        counts = self.engine.held()
        counts[int(Resource.POLL_GAP_US)] = self._pace.census()
        counts[int(Resource.BAD_MESSAGES)] = (self._target.counters()["bad_frames"], 0, 0)
        return counts

    def finish(self) -> None:
        """Stop the target first: nothing may be written into memory that is going away."""
        if self._target is not None:
            self._target.close()
        if self._group is not None:
            self._group.close()
            self._group = None
        self.engine = self._target = self._buffers = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def make(*arguments: Any, **options: Any) -> DecodeNode:
    """Build the node."""
    prepare_torch()
    return DecodeNode(*arguments, **options)
