"""TCP: blocks travel on data connections of their own and are applied by receive threads beside decode's engine.

Unacknowledged by default: `write` says DONE when the bytes have left the sender, as Mooncake did up to 0.3.11.post1, so a status on the
control plane can overtake them. With `ack` the target confirms each frame after it applied it (Mooncake from 0.3.12). One connection
keeps the order; `connections = n` spreads the blocks of one hand-off over n, each with its own receive thread, which loses it.
Late hand-offs (see `lateness`) are held back on the receiving side, and with them all that is behind them on the same connection.
"""

from __future__ import annotations

from harness.protocol.settings import TransportSettings
from harness.transport.base import Channel, Done, Lack, MemoryLike, Ownership, RecorderFactory, Target
from harness.transport.tcp_channel import TcpChannel
from harness.transport.tcp_frame import ACK, ENTRY, FRAME_BYTES_MAX, HEAD, HELLO, MAGIC, MORE, WANT_ACK
from harness.transport.tcp_target import BUFFER_BYTES, TcpTarget

__all__ = [
    "ACK",
    "BUFFER_BYTES",
    "ENTRY",
    "FRAME_BYTES_MAX",
    "HEAD",
    "HELLO",
    "MAGIC",
    "MORE",
    "WANT_ACK",
    "TcpChannel",
    "TcpTarget",
    "TcpTransport",
]


class TcpTransport:
    """`--transport tcp`."""

    name = "tcp"
    refuses = True
    lacks: frozenset[Lack] = frozenset()

    def done(self, settings: TransportSettings) -> Done:
        """Only an acknowledgement says that blocks were applied."""
        return Done.VISIBLE if settings.ack else Done.LEFT

    def target(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> Target:
        """Listen for data connections."""
        return TcpTarget(settings, memory, owners, seed, recorder)

    def channel(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> Channel:
        """Connect to the target of `descriptor`."""
        del recorder
        return TcpChannel(settings, descriptor, seed)
