"""I/O shell of a decode node that may host a released engine: it has its own connections to prefill, we have the driver's."""

from __future__ import annotations

import math
import sys
from typing import Any

import msgspec

from decode_node.node import DecodeNode
from harness.errors import HandoffError, HarnessError
from harness.faults.decode import DecodeFaults
from harness.history.event import Role
from harness.history.recorder import Observer
from harness.hosting.guest import Guest
from harness.node.shell import Address, Streams
from harness.protocol import wire
from harness.protocol.memory import prepare_torch
from harness.protocol.settings import EngineSettings, NodeSettings

REFERENCE = EngineSettings().name
WAIT_MS = 10


class HostingDecodeNode(DecodeNode):
    """A decode node; it hosts an engine when the run's settings name one, for one run."""

    _guest: Guest | None = None
    _hosted: Any = None

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Load the engine and start its threads; or what the reference does."""
        if self._guest is not None:
            raise HarnessError("this process has hosted an engine, and that is for one run: start a new one")
        if settings.engine.name == REFERENCE:
            super().configure(settings, streams)
            return
        self.abrupt = True
        self.engine = self._hosted = None
        self._sessions: set[int] = set()
        self._poll_interval_s = settings.poll_interval_ms * 1e-3
        self._wait_ms = max(math.ceil(settings.poll_interval_ms), 1)
        self._next_poll = self._next_request = 0.0
        self._writers = list(range(settings.prefills))
        record = streams("main")
        self._nemesis = DecodeFaults(msgspec.structs.replace(settings, faults=()), record, None)  # none is for an engine
        self._guest = Guest(self.name, settings)
        self._guest.build(lambda: self._build(settings, record))

    def _build(self, settings: NodeSettings, record: Observer) -> Any:
        from decode_node.engines.sglang import HostedDecode  # noqa: PLC0415  only for those who host it
        from harness.hosting.sglang import start  # noqa: PLC0415

        assert self._guest is not None
        release = start.start(settings)
        hosted = HostedDecode(self.index, settings, record, release)
        self._guest.describe(start.facts(settings, release.loaded))
        return hosted

    def _take_built(self, guest: Guest) -> int:
        """Serve once the engine is there."""
        try:
            self.engine = self._hosted = guest.built()
        except HandoffError as error:
            self.answer(str(error)[:2000])
            return WAIT_MS
        if self._hosted is not None:
            self.handlers |= {wire.Request: self._admit, wire.Rendezvous: self._on_rendezvous}
        return WAIT_MS

    def _request_sessions(self, now: float) -> None:
        """Ask every prefill where its engine listens; our sessions have no other use here."""
        if self._guest is None:
            super()._request_sessions(now)
            return
        self._next_request = now + 0.1
        assert self.settings is not None
        spec = self.settings.decode_layout
        for peer in self.peers:
            if peer[0] == Role.PREFILL and peer[1] not in self._sessions:
                self.send(peer, wire.Session(self.index, self.incarnation, b"", spec.slots, spec.pages))

    def _on_rendezvous(self, message: wire.Rendezvous) -> None:
        self._hosted.addresses[message.prefill] = message.address
        self._sessions.add(message.prefill)
        self.announce()

    def step(self, now: float) -> int:
        """As the reference; an exception in the engine's own code is the engine's death, not ours."""
        if self._guest is None:
            return super().step(now)
        self._guest.look(now)
        if self._hosted is None:
            return self._take_built(self._guest)
        with self._guest.calling():
            return super().step(now)

    def peer_changed(self, peer: Address, *, alive: bool, dead: bool = False) -> None:
        """The engine has its own ways to find out."""
        if self._guest is None:
            super().peer_changed(peer, alive=alive, dead=dead)

    def held(self) -> dict[int, tuple[int, int, int]]:
        """The engine's census."""
        if self._guest is None:
            return super().held()
        return self._hosted.held() if self._hosted is not None else {}

    def finish(self) -> None:
        """A hosted engine cannot be stopped: it ends with the process."""
        if self._guest is None:
            super().finish()


def make(*arguments: Any, **options: Any) -> HostingDecodeNode:
    """Build the node."""
    prepare_torch()
    sys.setswitchinterval(2e-5)  # see decode_node.node.make; a hosted engine gets Python's own back
    return HostingDecodeNode(*arguments, **options)
