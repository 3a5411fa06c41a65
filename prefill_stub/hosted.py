"""I/O shell of a prefill node that may host a released engine, or speak its protocol to a decode that does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.errors import HandoffError
from harness.history.event import Role
from harness.history.recorder import Observer
from harness.hosting.node import Hosting
from harness.hosting.sglang.meeting import Meeting, fields_of
from harness.node.shell import Streams
from harness.protocol import wire
from harness.protocol.memory import prepare_torch
from harness.protocol.settings import NodeSettings
from harness.transport.base import TransportError
from prefill_stub.outgoing import Outgoing
from prefill_stub.speaking import SpeakingPrefillNode


class HostingPrefillNode(Hosting, SpeakingPrefillNode):
    """A prefill node; it hosts an engine when the run's settings name one for its side, for one run."""

    _outgoing: Outgoing | None = None
    """Where decode is the reference: what carries the engine's transfers."""

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Load the engine and start its server and threads; or what the reference does."""
        self.alone()
        if not settings.engine.hosts("prefill"):
            super().configure(settings, streams)
            return
        record = streams("main")
        if not settings.engine.hosts("decode"):
            self._outgoing = Outgoing(settings, streams)
        self.host(settings, lambda: self._build(settings, record))

    def _build(self, settings: NodeSettings, record: Observer) -> Any:
        from harness.hosting.sglang import start  # noqa: PLC0415  only for those who host it
        from prefill_stub.engines.sglang import HostedPrefill  # noqa: PLC0415

        assert self._guest is not None
        release = start.start(settings, self._outgoing)
        hosted = HostedPrefill(self.index, settings, record, release)
        if self._outgoing is not None:
            self._outgoing.load_from(hosted)
        self._guest.describe(start.facts(settings, release.loaded))
        return hosted

    def ready(self) -> bool:
        """The engine is there."""
        return self._guest is None or self._hosted is not None

    def took(self, hosted: Any) -> None:
        """Serve."""
        self.handlers |= {wire.Request: hosted.request, wire.Session: self._answer_where}
        self.announce()

    def _answer_where(self, message: wire.Session) -> None:
        peer, meeting = (int(Role.DECODE), message.decode), b""
        if self._outgoing is not None:
            try:
                self._outgoing.open(message)
            except (TransportError, HandoffError) as problem:
                self.send(peer, wire.SessionAck(self.index, str(problem)[:500]))
                return
            meeting = Meeting("", "", fields_of(self._hosted.buffers), 0).encode()
        self.send(peer, wire.Rendezvous(self.index, self._hosted.address, meeting))

    def step_hosted(self, now: float) -> int:
        """Let the engine look at its requests."""
        del now
        self._hosted.poll()
        if self._outgoing is not None:
            self._outgoing.flush()
        return 1 if self._hosted.busy else 50

    def finish(self) -> None:
        """A hosted engine ends with the process; its channels do now."""
        super().finish()
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None

    def descriptors(self) -> Iterable[int]:
        """Nothing to wait for: the engine is polled."""
        return () if self._guest is not None else super().descriptors()


def make(*arguments: Any, **options: Any) -> HostingPrefillNode:
    """Build the node."""
    prepare_torch()
    return HostingPrefillNode(*arguments, **options)
