"""A hosted prefill beside a reference decode: its transfer engine's calls go out over our own transport."""

from __future__ import annotations

import bisect
import ctypes
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.errors import HarnessError
from harness.history.event import KV_BIT
from harness.history.recorder import NullRecorder, Observer
from harness.hosting.mover import Piece
from harness.hosting.regions import ONE_SIDED
from harness.hosting.sglang.meeting import Meeting, fields_of
from harness.node.shell import Streams
from harness.protocol import wire
from harness.protocol.settings import NodeSettings
from harness.transport import registry
from harness.transport.base import Channel, Outcome, Write

FAILED = -1
LOOK_S = 1e-4


class _Source(NamedTuple):
    """One registered tensor: what a block from it carries, and bytes of one slot's share."""

    start: int
    size_bytes: int
    bit: int
    slot_bytes: int


class _Way(NamedTuple):
    """To one decode; the first of the addresses that its plane reaches, and how many these are."""

    decode: int
    channel: Channel
    base: int
    size_bytes: int

    def offset(self, address: int, size_bytes: int) -> int | None:
        """What the plane calls `address`; None for memory that nobody reads, which a one-sided plane does not reach."""
        offset = address - self.base
        return offset if 0 <= offset <= self.size_bytes - size_bytes else None


class Outgoing:
    """A `Plane` for `harness.hosting.mover`: blocks of the engine's threads, one transfer at a time, to the decode that its session names."""

    def __init__(self, settings: NodeSettings, streams: Streams) -> None:
        """No decode is known, and no memory."""
        self._settings, self._streams = settings, streams
        self._channels: dict[str, _Way] = {}
        self._sources: list[_Source] = []
        self._hosted: Any = None
        self._lock = threading.Lock()
        self._results: dict[object, bool | None] = {}
        """Transfers that somebody waits for, None until the answer has come."""

    def register(self, address: int, size_bytes: int) -> None:
        """What lies where is asked of the buffers themselves, see `load_from`."""

    def load_from(self, hosted: Any) -> None:
        """`hosted`: the `HostedPrefill` whose buffers and pages are sent; its blocks are told apart by their address."""
        bits = {field.name: 1 << bit for bit, field in enumerate(hosted.layout.fields)}
        pointers, sizes, _ = hosted.buffers.get_buf_infos()
        found = [
            _Source(pointer, size, bits.get(field.name, 0), field.row_bytes)
            for pointer, size, field in zip(pointers, sizes, fields_of(hosted.buffers), strict=True)
        ]
        spec = hosted.layout.spec
        share = spec.pages_per_request * spec.page_bytes
        found += [_Source(tensor.data_ptr(), tensor.nbytes, KV_BIT, share) for tensor in hosted.kv]
        self._sources, self._hosted = sorted(found), hosted

    def open(self, message: wire.Session) -> None:
        """Reach a decode; raises TransportError, HarnessError."""
        meeting = Meeting.decode(message.descriptor)
        settings = self._settings.transport
        with self._lock:
            if meeting.endpoint in self._channels:
                return
            transport = registry.get(settings.name, settings.version)
            record = _unrecorded if settings.name in ONE_SIDED else self._streams
            channel = transport.channel(settings, meeting.plane.encode(), self._settings.seed, record)
            self._channels[meeting.endpoint] = _Way(message.decode, channel, meeting.base, meeting.size_bytes)

    def move(self, session: str, blocks: Sequence[Piece]) -> int:
        """Send `blocks`; with an acknowledging transport wait until they are there, `transfer_timeout_s` at most."""
        places = [self._place(source) for source, _, _ in blocks]
        room = places[0][1]
        with self._lock:
            way = self._channels.get(session)
            if way is None:
                return FAILED
            content = [
                (offset, memoryview((ctypes.c_char * size).from_address(source)).cast("B"), bit)
                for (source, target, size), (bit, _) in zip(blocks, places, strict=True)
                if (offset := way.offset(target, size)) is not None
            ]
            key = object()
            outcome = way.channel.write(Write(room, 0, 0, way.decode, content, key))
            if outcome is Outcome.PENDING:
                self._results[key] = None
        if outcome is Outcome.PENDING:
            return 0 if self._wait(way.channel, key) else FAILED
        return FAILED if outcome is Outcome.FAILED else 0

    def _place(self, source: int) -> tuple[int, int]:
        """What a block from `source` carries, and for which room: whoever has the slot that it lies in, or had it last."""
        found = self._sources[bisect.bisect(self._sources, (source, 1 << 63)) - 1]
        if not found.start <= source < found.start + found.size_bytes:
            raise HarnessError(f"a transfer from {source:#x}, which is no memory that the engine registered")
        return found.bit, self._hosted.room_of[(source - found.start) // found.slot_bytes]

    def _wait(self, channel: Channel, key: object) -> bool:
        """Whether it arrived; False, too, when that is not known in time."""
        deadline = time.monotonic() + self._settings.transfer_timeout_s
        while time.monotonic() < deadline:
            with self._lock:
                self._collect(channel)
                if self._results[key] is not None:
                    return bool(self._results.pop(key))
            time.sleep(LOOK_S)
        with self._lock:
            return bool(self._results.pop(key))

    def _collect(self, channel: Channel) -> None:
        for key, arrived in channel.completions():
            if key in self._results:
                self._results[key] = arrived

    def flush(self) -> None:
        """Send what the kernel did not take at once."""
        with self._lock:
            for way in self._channels.values():
                self._collect(way.channel)

    @property
    def busy(self) -> bool:
        """Whether something waits for `flush`."""
        return any(way.channel.busy for way in self._channels.values())

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            for way in self._channels.values():
                way.channel.close()
            self._channels = {}


def _unrecorded(thread: str) -> Observer:
    """For a plane whose sender would say what landed: it knows neither slot nor tenure, which SGLang's frames do not carry to it."""
    del thread
    return NullRecorder()
