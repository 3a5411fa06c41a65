"""I/O shell of a decode node that may host a released engine, or speak its protocol to a prefill that does."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from decode_node.speaking import SpeakingDecodeNode
from harness.faults.decode import DecodeFaults
from harness.history.event import Role
from harness.history.recorder import Observer
from harness.hosting.node import Hosting
from harness.node.shell import Address, Streams
from harness.protocol import wire
from harness.protocol.memory import prepare_torch
from harness.protocol.settings import NodeSettings
from harness.transport.base import Target


class HostingDecodeNode(Hosting, SpeakingDecodeNode):
    """A decode node; it hosts an engine when the run's settings name one for its side, for one run."""

    _plane: Target | None = None
    """Where prefill is the reference: our end of the data plane."""

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Load the engine and start its threads; or what the reference does."""
        self.alone()
        if not settings.engine.hosts("decode"):
            super().configure(settings, streams)
            return
        self.engine = None
        self._sessions: set[int] = set()
        self._poll_interval_s = settings.poll_interval_ms * 1e-3
        self._wait_ms = max(math.ceil(settings.poll_interval_ms), 1)
        self._next_poll = self._next_request = 0.0
        self._writers = list(range(settings.prefills))
        self._meeting = b""
        record = streams("main")
        none = msgspec.structs.replace(settings, faults=())  # nothing is done inside an engine that is not ours
        self._nemesis = DecodeFaults(none, record, None)
        self.host(settings, lambda: self._build(settings, record, streams))

    def _build(self, settings: NodeSettings, record: Observer, streams: Streams) -> Any:
        from decode_node import mixed  # noqa: PLC0415  only for those who host it
        from decode_node.engines.sglang import HostedDecode  # noqa: PLC0415
        from harness.hosting.regions import Regions  # noqa: PLC0415
        from harness.hosting.sglang import start  # noqa: PLC0415

        assert self._guest is not None
        regions = None if settings.engine.side == "both" else Regions()
        release = start.start(settings, regions)
        hosted = HostedDecode(self.index, settings, record, release)
        if regions is not None:
            self._plane = mixed.plane(settings, regions, hosted, streams)
            self._meeting = mixed.meeting(self._plane, hosted).encode()
        self._guest.describe(start.facts(settings, release.loaded))
        return hosted

    def took(self, hosted: Any) -> None:
        """Serve."""
        self.engine = hosted
        self.handlers |= {
            wire.Request: self._admit,
            wire.Cancel: self._cancel,
            wire.Rendezvous: self._on_rendezvous,
            wire.SessionAck: self._on_session_ack,
        }

    def _descriptor(self) -> bytes:
        """What a reference prefill must know; a hosted one finds its engine's own way."""
        return super()._descriptor() if self._guest is None else self._meeting

    def peer_changed(self, peer: Address, *, alive: bool, dead: bool = False) -> None:
        """The engine has its own ways to find out; but a prefill that is there again listens elsewhere."""
        super().peer_changed(peer, alive=alive, dead=dead)
        if self._guest is not None and peer[0] == Role.PREFILL:
            self._sessions.discard(peer[1])

    def _on_rendezvous(self, message: wire.Rendezvous) -> None:
        if self._guest is None:
            super()._on_rendezvous(message)
            return
        self._hosted.addresses[message.prefill] = message.address
        self._sessions.add(message.prefill)
        self.announce()

    def _on_session_ack(self, message: wire.SessionAck) -> None:
        """A hosted decode is ready once it knows where prefill's bootstrap server is, which this does not say."""
        if self._guest is None or message.error:
            super()._on_session_ack(message)

    def finish(self) -> None:
        """A hosted engine ends with the process, but nothing may be recorded any more."""
        super().finish()
        if self._plane is not None:
            self._plane.close()
            self._plane = None


def make(*arguments: Any, **options: Any) -> HostingDecodeNode:
    """Build the node."""
    prepare_torch()
    return HostingDecodeNode(*arguments, **options)
