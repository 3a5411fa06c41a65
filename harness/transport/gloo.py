"""gloo: torch.distributed's send and recv. Two-sided: the frames of the tcp transport, carried by gloo, applied by decode's receive threads.

A send is done when its bytes left; with `ack` the target confirms each frame after it applied it, beside gloo. The connection that
comes first shows the session token and does the rendezvous, so that no store needs a port.
"""

from __future__ import annotations

from harness.protocol.settings import TransportSettings
from harness.transport.base import Channel, Done, Lack, MemoryLike, Ownership, RecorderFactory, Target


class GlooTransport:
    """`--transport gloo`."""

    name = "gloo"
    refuses = True
    lacks: frozenset[Lack] = frozenset()

    def done(self, settings: TransportSettings) -> Done:
        """Only an acknowledgement says that blocks were applied."""
        return Done.VISIBLE if settings.ack else Done.LEFT

    def target(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> Target:
        """Listen for connections."""
        from harness.transport.gloo_ends import GlooTarget  # noqa: PLC0415  torch is not needed to parse settings

        return GlooTarget(settings, memory, owners, seed, recorder)

    def channel(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> Channel:
        """Connect to the target of `descriptor` and meet."""
        from harness.transport.gloo_ends import GlooChannel  # noqa: PLC0415

        del recorder
        return GlooChannel(settings, descriptor, seed)
