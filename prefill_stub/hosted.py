"""I/O shell of a prefill node that may host a released engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.errors import HandoffError, HarnessError
from harness.history.event import Role
from harness.history.recorder import Observer
from harness.hosting.guest import Guest
from harness.node.shell import Address, Streams
from harness.protocol import wire
from harness.protocol.memory import prepare_torch
from harness.protocol.settings import EngineSettings, NodeSettings
from prefill_stub.node import PrefillNode

REFERENCE = EngineSettings().name
WAIT_MS = 10


class HostingPrefillNode(PrefillNode):
    """A prefill node; it hosts an engine when the run's settings name one, for one run."""

    _guest: Guest | None = None
    _hosted: Any = None

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Load the engine and start its server and threads; or what the reference does."""
        if self._guest is not None:
            raise HarnessError("this process has hosted an engine, and that is for one run: start a new one")
        if settings.engine.name == REFERENCE:
            super().configure(settings, streams)
            return
        self.abrupt = True
        record = streams("main")
        self._guest = Guest(self.name, settings)
        self._guest.build(lambda: self._build(settings, record))

    def _build(self, settings: NodeSettings, record: Observer) -> Any:
        from harness.hosting.sglang import start  # noqa: PLC0415  only for those who host it
        from prefill_stub.engines.sglang import HostedPrefill  # noqa: PLC0415

        assert self._guest is not None
        release = start.start(settings)
        hosted = HostedPrefill(self.index, settings, record, release)
        self._guest.describe(start.facts(settings, release.loaded))
        return hosted

    def ready(self) -> bool:
        """The engine is there."""
        return self._guest is None or self._hosted is not None

    def _take_built(self, guest: Guest) -> int:
        """Serve once the engine is there."""
        try:
            self._hosted = guest.built()
        except HandoffError as error:
            self.answer(str(error)[:2000])
            return WAIT_MS
        if self._hosted is not None:
            self.handlers |= {wire.Request: self._hosted.request, wire.Session: self._answer_where}
            self.announce()
        return WAIT_MS

    def _answer_where(self, message: wire.Session) -> None:
        self.send((int(Role.DECODE), message.decode), wire.Rendezvous(self.index, self._hosted.address))

    def step(self, now: float) -> int:
        """Let the engine look at its requests; an exception in its own code is its death, not ours."""
        if self._guest is None:
            return super().step(now)
        self._guest.look(now)
        if self._hosted is None:
            return self._take_built(self._guest)
        with self._guest.calling():
            self._hosted.poll()
        return 1 if self._hosted.busy else 50

    def descriptors(self) -> Iterable[int]:
        """Nothing to wait for: the engine is polled."""
        return () if self._guest is not None else super().descriptors()

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


def make(*arguments: Any, **options: Any) -> HostingPrefillNode:
    """Build the node."""
    prepare_torch()
    return HostingPrefillNode(*arguments, **options)
