"""A hosted decode beside a reference prefill: our own transport brings the bytes to where the engine wants them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from harness.history.recorder import Observer
from harness.hosting.regions import Regions, RegionsMemory
from harness.hosting.sglang.meeting import Meeting, fields_of
from harness.node.shell import Streams
from harness.protocol.settings import NodeSettings
from harness.transport import registry
from harness.transport.base import Ownership, Target

SWITCH_S = 2e-5
"""The receive threads stand for a network card, which no GIL holds up; see `decode_node.node`."""


class TenureRecorder:
    """Puts the tenure of each write's room into its record: SGLang's protocol has none, so that the sender cannot know it."""

    def __init__(self, record: Observer, tenure_of: Callable[[int], int]) -> None:
        """`tenure_of`: the tenure in which a room had its slot, 0 for one that never had."""
        self._record, self._tenure_of = record, tenure_of

    def event(self, verb: int, room: int = 0, slot: int = -1, tenure: int = 0, *more: int, **named: int) -> None:
        """Record it under the room's own tenure."""
        del tenure
        self._record.event(verb, room, slot, self._tenure_of(room), *more, **named)

    def row(self, *fields: Any) -> None:
        """Nothing to add."""
        self._record.row(*fields)


def plane(settings: NodeSettings, regions: Regions, hosted: Any, streams: Streams) -> Target:
    """Our transport's end, for memory that the engine of `hosted` (a `HostedDecode`) has registered."""
    sys.setswitchinterval(SWITCH_S)
    transport = registry.get(settings.transport.name, settings.transport.version)
    owners = Ownership(settings.decode_layout.slots, enforce=False)  # as released: whatever comes is applied

    def record(thread: str) -> Observer:
        return TenureRecorder(streams(thread), hosted.tenure_of)

    return transport.target(settings.transport, RegionsMemory(regions), owners, settings.seed, record)


def meeting(target: Target, hosted: Any) -> Meeting:
    """What prefill must know of this side beyond SGLang's own frames."""
    manager = hosted.manager
    return Meeting(
        target.descriptor().decode(),
        f"{manager.local_ip}:{manager.rank_port}",
        fields_of(hosted.buffers),
        hosted.cached,
    )
