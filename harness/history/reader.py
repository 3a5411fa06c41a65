"""Reads the streams of a recorded run, a bounded number of records at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import HistoryError
from harness.history.event import DTYPE, HEADER_BYTES, MAGIC, RECORD_BYTES, SCHEMA

Records = npt.NDArray[np.void]
"""Structured array of `harness.history.event.DTYPE`, shape (n,)."""

SUFFIX = ".hist"


class Stream:
    """One recorded stream. Attributes: `process` (`decode-0`), `thread`, `incarnation`, `pid`, `count` (records, complete ones)."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises HistoryError when it is not a stream of this schema."""
        self.path = path
        try:
            with path.open("rb") as file:
                head = file.read(HEADER_BYTES)
        except OSError as error:
            raise HistoryError(f"{path}: {error.strerror}") from error
        if not head.startswith(MAGIC):
            raise HistoryError(f"{path}: not a recorded stream")
        try:
            meta: dict[str, Any] = json.loads(head[len(MAGIC) :].rstrip(b"\0"))
            schema = meta["schema"]
            self.process, self.thread = str(meta.get("process")), str(meta.get("thread"))
            self.incarnation, self.pid = int(meta.get("incarnation", 0)), int(meta.get("pid", 0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HistoryError(f"{path}: damaged header") from error
        if schema != SCHEMA:
            raise HistoryError(f"{path}: schema {schema}, this version reads {SCHEMA}")
        if not meta.keys() >= {"process", "thread", "incarnation", "pid"}:
            raise HistoryError(f"{path}: damaged header")
        self.count = self._count()

    @property
    def name(self) -> str:
        """Process, incarnation and thread in one word."""
        return f"{self.process}.{self.incarnation}.{self.thread}"

    def _map(self) -> Records:
        size = max(self.path.stat().st_size - HEADER_BYTES, 0) // RECORD_BYTES
        if not size:
            return np.empty(0, DTYPE)
        return np.memmap(self.path, DTYPE, "r", HEADER_BYTES, (size,))

    def _count(self) -> int:
        """Number of records written: the space behind the last one is zero, so seq grows up to it and is 0 after."""
        records = self._map()
        low, high = 0, len(records)
        while low < high:
            middle = (low + high) // 2
            if records["seq"][middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def read(self, start: int, stop: int) -> Records:
        """Records `start` to `stop` (clipped) as a copy in memory."""
        stop = min(stop, self.count)
        if stop <= start:
            return np.empty(0, DTYPE)
        with self.path.open("rb") as file:
            file.seek(HEADER_BYTES + start * RECORD_BYTES)
            return np.fromfile(file, DTYPE, stop - start)

    def chunks(self, size: int) -> Iterator[Records]:
        """The whole stream, `size` records at a time."""
        for start in range(0, self.count, size):
            yield self.read(start, start + size)


def open_streams(folder: Path) -> list[Stream]:
    """Every stream under `folder`, by name; raises HistoryError when there is none."""
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise HistoryError(f"{folder}: no recorded history here")
    return [Stream(path) for path in paths]
