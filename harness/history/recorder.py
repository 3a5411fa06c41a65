"""Writes one stream of a history through a memory map, so that a SIGKILL loses nothing that was recorded.

Costs about 0.5 microseconds an event. Memory is bounded by one window however long the run is.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from harness.history.event import (
    EVENT_STRUCT,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES,
    ROW_STRUCT,
    SCHEMA,
)

WINDOW_BYTES = 4 << 20
"""Mapped at a time: a multiple of the page size and of 80 bytes only by luck, hence the records a window below."""
RECORDS_PER_WINDOW = WINDOW_BYTES // RECORD_BYTES
_GRAIN = mmap.ALLOCATIONGRANULARITY


class Observer(Protocol):
    """What a node's core needs to be observed; implemented by `Recorder`, `NullRecorder` and, in tests, by a list."""

    def event(
        self,
        verb: int,
        room: int = 0,
        slot: int = -1,
        tenure: int = 0,
        kind: int = 0,
        code: int = 0,
        flags: int = 0,
        value: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        e: int = 0,
    ) -> None:
        """Record one event; the fields are those of `harness.history.event`."""

    def row(
        self, verb: int, room: int, slot: int, tenure: int, code: int, flags: int, value: int, tags: Sequence[int]
    ) -> None:
        """Record one row event; `tags` are nine u32."""

    def close(self) -> None:
        """Nothing more is recorded. A thread that ends before its run closes the stream that is its own; `main` is not."""


class NullRecorder:
    """Records nothing: what a run costs without a history (benchmarks only)."""

    def event(self, *_: object, **__: object) -> None:
        """Drop the event."""

    def row(self, *_: object) -> None:
        """Drop the event."""

    def close(self) -> None:
        """Nothing to close."""


class Recorder:
    """One append-only stream; used by exactly one thread.

    `path` is created and must not exist. `process` names the role and index (`decode-0`), `thread` the writer.
    Raises FileExistsError for a stream that is already there and OSError when the disk is full.
    """

    def __init__(self, path: Path, process: str, thread: str, *, incarnation: int = 1) -> None:
        """Create the file with its header and map the first window."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        head = {
            "schema": SCHEMA,
            "process": process,
            "thread": thread,
            "incarnation": incarnation,
            "pid": os.getpid(),
            "wall_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
        }
        os.pwrite(self._fd, MAGIC + json.dumps(head).encode(), 0)
        self._seq = 0
        self._map: mmap.mmap | None = None
        self._now = time.monotonic_ns
        self._next_window()

    def _next_window(self) -> None:
        """Map the window that holds record number `seq`; its file space is allocated, so that a full disk raises here."""
        start = HEADER_BYTES + self._seq * RECORD_BYTES
        base = start - start % _GRAIN
        length = start - base + RECORDS_PER_WINDOW * RECORD_BYTES
        os.posix_fallocate(self._fd, base, length)
        if self._map is not None:
            self._map.close()
        self._map = mmap.mmap(self._fd, length, offset=base)
        self._offset = start - base
        self._end = length

    def event(
        self,
        verb: int,
        room: int = 0,
        slot: int = -1,
        tenure: int = 0,
        kind: int = 0,
        code: int = 0,
        flags: int = 0,
        value: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        d: int = 0,
        e: int = 0,
    ) -> None:
        """Append one event, stamped now."""
        if self._offset >= self._end:
            self._next_window()
        self._seq += 1
        EVENT_STRUCT.pack_into(
            self._map,  # type: ignore[arg-type]
            self._offset,
            self._now(),
            room,
            slot,
            tenure,
            verb,
            kind,
            code,
            flags,
            value,
            a,
            b,
            c,
            d,
            e,
            self._seq,
        )
        self._offset += RECORD_BYTES

    def row(
        self, verb: int, room: int, slot: int, tenure: int, code: int, flags: int, value: int, tags: Sequence[int]
    ) -> None:
        """Append one row event with its nine tags, stamped now."""
        if self._offset >= self._end:
            self._next_window()
        self._seq += 1
        ROW_STRUCT.pack_into(
            self._map,  # type: ignore[arg-type]
            self._offset,
            self._now(),
            room,
            slot,
            tenure,
            verb,
            0,
            code,
            flags,
            value,
            *tags,
            self._seq,
        )
        self._offset += RECORD_BYTES

    def close(self) -> None:
        """Unmap and cut the file to what was recorded."""
        if self._map is None:
            return
        self._map.close()
        self._map = None
        os.ftruncate(self._fd, HEADER_BYTES + self._seq * RECORD_BYTES)
        os.close(self._fd)

    def __enter__(self) -> Self:
        """Return the recorder."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        self.close()
