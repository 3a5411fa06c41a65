"""I/O shell of a prefill node that may host a released engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.history.event import Role
from harness.hosting.guest import Guest
from harness.node.shell import Address, Streams
from harness.protocol import wire
from harness.protocol.memory import prepare_torch
from harness.protocol.settings import EngineSettings, NodeSettings
from prefill_stub.node import PrefillNode

REFERENCE = EngineSettings().name


class HostingPrefillNode(PrefillNode):
    """A prefill node; it hosts an engine when the run's settings name one, for one run."""

    _guest: Guest | None = None

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Load the engine and start its server and threads; or what the reference does."""
        if settings.engine.name == REFERENCE:
            super().configure(settings, streams)
            return
        from harness.hosting.sglang import start  # noqa: PLC0415  only for those who host it
        from prefill_stub.engines.sglang import HostedPrefill  # noqa: PLC0415

        self.abrupt = True
        guest = Guest(self.name, settings)
        with guest:
            release = start.start(settings)
            self._hosted = HostedPrefill(self.index, settings, streams("main"), release)
        guest.describe(start.facts(settings, release.loaded))
        self._guest = guest
        self.handlers |= {wire.Request: self._hosted.request, wire.Session: self._answer_where}

    def _answer_where(self, message: wire.Session) -> None:
        self.send((int(Role.DECODE), message.decode), wire.Rendezvous(self.index, self._hosted.address))

    def step(self, now: float) -> int:
        """Let the engine look at its requests; an exception in its own code is its death, not ours."""
        if self._guest is None:
            return super().step(now)
        self._guest.look(now)
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
        return super().held() if self._guest is None else self._hosted.held()

    def finish(self) -> None:
        """A hosted engine cannot be stopped: it ends with the process."""
        if self._guest is None:
            super().finish()


def make(*arguments: Any, **options: Any) -> HostingPrefillNode:
    """Build the node."""
    prepare_torch()
    return HostingPrefillNode(*arguments, **options)
