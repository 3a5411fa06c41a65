"""A hosted decode beside a reference prefill: our own transport brings the bytes to where the engine wants them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

from decode_node.node import SWITCH_S
from harness.history.recorder import Observer
from harness.hosting.regions import Regions, RegionsMemory
from harness.hosting.sglang.meeting import Meeting, fields_of
from harness.node.shell import Streams
from harness.protocol.recent import keep_last
from harness.protocol.settings import NodeSettings
from harness.transport import registry
from harness.transport.base import Ownership, RecorderFactory, Target

ROOMS_KEPT_MAX = 65_536
"""What is written late for a room comes within far fewer others."""


class Places:
    """Which slot a room had and in which of its tenures. One thread puts, any may ask; rooms of long ago are forgotten."""

    def __init__(self, most: int = ROOMS_KEPT_MAX) -> None:
        """No room has had one."""
        self._places: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._most = most

    def put(self, room: int, slot: int, tenure: int) -> None:
        """`room` has `slot` now."""
        keep_last(self._places, room, (slot, tenure), self._most)

    def of(self, room: int) -> tuple[int, int] | None:
        """Slot and tenure."""
        return self._places.get(room)

    def tenure(self, room: int) -> int:
        """The tenure alone, 0 where it is not known."""
        return self._places.get(room, (0, 0))[1]


class PlacedRecorder:
    """Puts slot and tenure of each write's room into its record: SGLang's protocol has no tenures, so that no sender knows them."""

    def __init__(self, record: Observer, places: Places) -> None:
        """`places` are filled as slots are given out."""
        self._record, self._places = record, places

    def event(self, verb: int, room: int = 0, slot: int = -1, tenure: int = 0, *more: int, **named: int) -> None:
        """Record it under the room's own tenure, 0 where it never had one."""
        slot, tenure = self._places.of(room) or (slot, 0)
        self._record.event(verb, room, slot, tenure, *more, **named)

    def row(self, *fields: Any) -> None:
        """Nothing to add."""
        self._record.row(*fields)

    def close(self) -> None:
        """Close the stream behind it."""
        self._record.close()


def placed(streams: Streams, places: Places) -> RecorderFactory:
    """Streams whose records are placed."""
    return lambda thread: PlacedRecorder(streams(thread), places)


def plane(settings: NodeSettings, regions: Regions, hosted: Any, streams: Streams) -> Target:
    """Our transport's end, for memory that the engine of `hosted` (a `HostedDecode`) has registered."""
    sys.setswitchinterval(SWITCH_S)  # the receive threads stand for a network card, which no GIL holds up
    transport = registry.get(settings.transport.name, settings.transport.version)
    owners = Ownership(settings.decode_layout.slots, enforce=False)  # as released: whatever comes is applied
    record = placed(streams, hosted.places)
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
