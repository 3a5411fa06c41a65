"""I/O shell of a decode node: memory, transport target, sessions with prefill, and the engine's messages."""

from __future__ import annotations

import math
import sys
from typing import Any

from decode_node.aux import apply_row
from decode_node.engine import DecodeEngine
from decode_node.engines.reference import ReferenceEngine
from harness.history.event import Resource, Role
from harness.node.shell import Address, Shell, Streams
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory, prepare_torch
from harness.protocol.payload import Payload
from harness.protocol.settings import NodeSettings
from harness.transport import registry
from harness.transport.base import Ownership, Target

SESSION_RETRY_S = 0.1


class DecodeNode(Shell):
    """One decode process; serves one run after the other."""

    engine: DecodeEngine | None = None
    _target: Target | None = None
    _memory: Memory | None = None
    _buffers: Buffers | None = None
    _now = 0.0

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Allocate memory, expose it, build the engine, ask every prefill node for a session."""
        transport = registry.get(settings.transport.name, settings.transport.version)
        layout = Layout(settings.decode_layout)
        self._memory = Memory.create(f"handoff-{self.name}", layout.size_bytes)
        buffers = self._buffers = Buffers(self._memory, layout)
        owners = Ownership(settings.decode_layout.slots, enforce=settings.guards.tenure_on_writes)
        self._target = transport.target(settings.transport, self._memory, owners, settings.seed, streams)
        self.engine = ReferenceEngine(
            self.index, settings, buffers, Payload(layout), owners, streams("main"), refuses=transport.refuses
        )
        self.handlers |= {
            wire.Request: self._admit,
            wire.Status: self.engine.deliver,
            wire.Drained: self.engine.deliver,
            wire.SessionAck: self._on_session_ack,
        }
        self.raw_handlers[wire.AuxData] = self._apply_aux
        self._owners = owners
        self._main_record = streams("main")
        self._sessions: set[int] = set()
        # A scheduler loop polls its transfers once an iteration, however many messages come in between.
        self._poll_interval_s = settings.poll_interval_ms * 1e-3
        self._wait_ms = max(math.ceil(settings.poll_interval_ms), 1)
        self._next_poll = 0.0
        self._prefills = settings.prefills
        self._next_request = 0.0

    def _request_sessions(self, now: float) -> None:
        """Ask every prefill that has not answered; again now and then, since it may not have known our address yet."""
        assert self._target is not None
        assert self.settings is not None
        self._next_request = now + SESSION_RETRY_S
        spec = self.settings.decode_layout
        session = wire.Session(self.index, self.incarnation, self._target.descriptor(), spec.slots, spec.pages)
        for peer in self.peers:
            if peer[0] == Role.PREFILL and peer[1] not in self._sessions:
                self.send(peer, session)

    def ready(self) -> bool:
        """Every prefill node of the run has opened its session."""
        assert self.settings is not None
        return len(self._sessions) >= self.settings.prefills

    def _admit(self, request: wire.Request) -> None:
        assert self.engine is not None
        self.engine.admit(request, self._now)

    def step(self, now: float) -> int:
        """Poll at the scheduler's pace, and send what the engine wants sent."""
        self._now = now
        engine = self.engine
        assert engine is not None
        if len(self._sessions) < self._prefills and now >= self._next_request:
            self._request_sessions(now)
        if now >= self._next_poll:
            self._next_poll = now + self._poll_interval_s
            engine.poll(now)
        out = engine.out
        if out:
            peers = self.peers
            for peer, message in out:
                outbox = peers.get(peer)
                if outbox is not None:
                    outbox.send(message)
            out.clear()
        return self._wait_ms if engine.awaiting else 50

    def _on_session_ack(self, message: wire.SessionAck) -> None:
        if message.error:
            self.answer(f"prefill-{message.prefill} opened no session: {message.error}")
            return
        self._sessions.add(message.prefill)
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
        if not alive:
            self.engine.lose_prefill(peer[1], self._now, dead=dead)

    def held(self) -> dict[int, tuple[int, int, int]]:
        """The engine's census and the target's bad frames."""
        assert self.engine is not None
        assert self._target is not None
        counts = self.engine.held()
        counts[int(Resource.BAD_MESSAGES)] = (self._target.counters()["bad_frames"], 0, 0)
        return counts

    def finish(self) -> None:
        """Stop the target first: nothing may be written into memory that is going away."""
        if self._target is not None:
            self._target.close()
        self.engine = self._target = self._buffers = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def make(*arguments: Any, **options: Any) -> DecodeNode:
    """Build the node."""
    prepare_torch()
    # The receive threads of a transport stand for code that no GIL holds up: let them in after 0.02 ms, not 5.
    sys.setswitchinterval(2e-5)
    return DecodeNode(*arguments, **options)
