"""Walks all streams of a run together, forward in time, a bounded number of hand-offs at a step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.check.arrays import NEVER, Index, join, take
from harness.history.event import DTYPE
from harness.history.reader import Records, Stream

BLOCK = 16_384
"""Records read at a time from one stream."""

Part = tuple[int, Records]
"""Key of the decode process that wrote the records (-1: another role) and the records, in stream order."""


class Cursor:
    """Reads one stream forward."""

    def __init__(self, stream: Stream, key: int) -> None:
        """Start at the first record; `key` goes with every part."""
        self.key = key
        self._stream = stream
        self._read = 0
        self._block = np.empty(0, DTYPE)
        self._times = np.empty(0, np.uint64)

    def _fill(self) -> bool:
        """Read the next block once the last is used up; False at the end."""
        if len(self._block):
            return True
        self._block = self._stream.read(self._read, self._read + BLOCK)
        self._read += len(self._block)
        self._times = self._block["t_ns"].copy()
        return len(self._block) > 0

    def _cut(self, at: int) -> Records:
        head = self._block[:at]
        self._block, self._times = self._block[at:], self._times[at:]
        return head

    def upto(self, bound: np.uint64) -> list[Records]:
        """Return what was recorded up to `bound` ns, that included."""
        parts = []
        while self._fill():
            at = int(np.searchsorted(self._times, bound, side="right"))
            rest = len(self._block) - at
            if at:
                parts.append(self._cut(at))
            if rest:
                break
        return parts

    def next(self, count: int) -> list[Records]:
        """Return the next `count` records, fewer at the end."""
        parts = []
        while count > 0 and self._fill():
            parts.append(self._cut(min(count, len(self._block))))
            count -= len(parts[-1])
        return parts


@dataclass(frozen=True)
class Step:
    """What all streams recorded in one stretch of time."""

    driver: Records
    parts: Sequence[Part]
    """Of all other streams."""
    bound: np.uint64
    """End of the stretch, ns; everything up to it has been read."""
    last: bool

    @functools.cached_property
    def _verbs(self) -> list[npt.NDArray[np.uint8]]:
        """Verbs of each part, close together in memory: they are searched once for each verb."""
        return [records["verb"].copy() for _, records in self.parts]

    def pick(self, *verbs: int) -> tuple[Records, Index]:
        """Pick records of these verbs, in order within each stream, and the key of each one's decode process."""
        chosen, keys = [], []
        for (key, records), said in zip(self.parts, self._verbs, strict=True):
            wanted = said == verbs[0]
            for verb in verbs[1:]:
                wanted |= said == verb
            which = np.flatnonzero(wanted)
            if len(which):
                chosen.append(take(records, which))
                keys.append(np.full(len(which), key, np.intp))
        return join(chosen, DTYPE), np.concatenate(keys) if keys else np.empty(0, np.intp)


def steps(driver: Stream, others: Sequence[tuple[int, Stream]], chunk: int) -> Iterator[Step]:
    """Walk the run `chunk` hand-offs at a step: as many driver records as those begin and end with.

    `others` are all other streams with their keys. The last step holds what came after the driver's last record.
    """
    lead = Cursor(driver, -1)
    cursors = [Cursor(stream, key) for key, stream in others]
    while True:
        heads = lead.next(2 * chunk)
        bound = heads[-1]["t_ns"][-1] if heads else NEVER
        heads += lead.upto(bound)
        parts = [(cursor.key, part) for cursor in cursors for part in cursor.upto(bound)]
        yield Step(join(heads, DTYPE), parts, bound, last=not len(heads))
        if not heads:
            return
