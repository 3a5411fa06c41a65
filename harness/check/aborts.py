"""Why requests failed, and whether they had to.

A mismatch abort is a `false-abort` when the room it read is the one that its slot held when it was given out: its own
data was merely late. It is a `foreign-abort` when a write meant for another tenure landed in its slot, or the room read
came after the ALLOC and is another's. Else nothing recorded explains it.

Every other failure is an `abort` unless a fault that was done to this very request explains its reason (`harness.check.faults`), or its
peer had gone. The engine's own time-out, or the driver's, is a `hang`. A failure is an ABORT, or a FAIL of the driver without commit and without ABORT.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.check.arrays import Mask, Rows, take
from harness.check.faults import Faults
from harness.check.names import name_of
from harness.check.report import Expectations
from harness.check.tally import Tally
from harness.history.event import Kind, Reason, Role

ELSEWHERE = (
    Reason.MISMATCH,
    Reason.TIMEOUT,
    Reason.DRIVER_TIMEOUT,
    Reason.INTERRUPTED,
    Reason.PEER_LOST,
    Reason.NODE_EXIT,
)
"""Not an `abort`, or judged as something else."""
GONE = (Reason.PEER_LOST, Reason.NODE_EXIT)
"""Excused only when the driver saw one of the hand-off's nodes end."""

Node = tuple[int, int]
"""Role and index."""


class Aborts:
    """Judges the failures among hand-offs whose records are complete."""

    def __init__(self, expect: Expectations, tally: Tally, faults: Faults, *, first: bool = True) -> None:
        """Nothing judged yet. `faults` knows what was injected; only the `first` rank's failures are those that the client is told."""
        self._first = first
        self._faults = faults
        self.mismatches = 0
        self.others = 0
        self.attribution = {"stale_room": 0, "foreign_write": 0, "unexplained": 0}
        self._expect, self._tally = expect, tally
        self._peer_lost = Tally()
        self._pairs: dict[str, tuple[int, int]] = {}

    def judge(self, rows: Rows) -> None:
        """Judge `rows` of a `Table`."""
        aborted = rows["aborts"] > 0
        failed = aborted | (self._first & (rows["end_kind"] == Kind.FAIL) & (rows["commits"] == 0))
        if not failed.any():
            return
        rows, aborted = take(rows, failed), aborted[failed]
        why = np.where(aborted, rows["abort_code"], rows["end_code"])
        mismatch = why == Reason.MISMATCH
        self.mismatches += int(mismatch.sum())
        self.others += int((~mismatch).sum())
        self._mismatched(take(rows, mismatch & ~self._faults.excused(rows, Reason.MISMATCH)))
        if self._first and not self._expect.aborts_allowed:
            self._failed(rows, why)

    def _mismatched(self, rows: Rows) -> None:
        read, found = rows["abort_word"], rows["word"]
        placed = (rows["aborts"] > 0) & (rows["allocs"] > 0)
        stale = placed & (read != 0) & (read == found)
        named = placed & (read != 0) & (read != found) & (read != rows["room"])
        foreign = ~stale & (rows["hit"] | named)
        unexplained = ~stale & ~foreign
        previous = int((stale & (read == rows["prev"])).sum())
        others = int(stale.sum()) - previous
        detail = {"previous owner of the slot": previous, "another request": others}
        self._add("false-abort", rows, stale, {name: count for name, count in detail.items() if count})
        self._add("foreign-abort", rows, foreign, {})
        self._add("unexplained-abort", rows, unexplained, {})
        for name, which in (("stale_room", stale), ("foreign_write", foreign), ("unexplained", unexplained)):
            self.attribution[name] += int(which.sum())

    def _add(self, name: str, rows: Rows, which: Mask, detail: dict[str, int]) -> None:
        found = take(rows, which)
        author = np.where(found["hit"], found["hit_by"], found["abort_word"])
        self._tally.add(name, found["invoke_t"], found["room"], found["prev"], author, detail=detail)

    def _failed(self, rows: Rows, why: npt.NDArray[np.uint16]) -> None:
        plain = ~np.isin(why, ELSEWHERE)
        for reason in (Reason.CANCELLED, Reason.PREFILL_FAILED, Reason.REJECTED):
            plain &= ~((why == reason) & self._faults.excused(rows, reason))
        names = {name_of(Reason, code): int(count) for code, count in _counts(why[plain])}
        found = take(rows, plain)
        self._tally.add("abort", found["invoke_t"], found["room"], found["prev"], detail=names)
        lost = take(rows, np.isin(why, GONE))
        pair = lost["prefill"].astype(np.uint64) << np.uint64(32) | lost["decode"]
        for code in np.unique(pair):
            of_pair = take(lost, pair == code)
            key = f"{int(code):x}"
            self._pairs[key] = (int(code) >> 32, int(code) & 0xFFFFFFFF)
            detail = {"peer was there": len(of_pair)}
            self._peer_lost.add(key, of_pair["invoke_t"], of_pair["room"], of_pair["prev"], detail=detail)

    def close(self, gone: set[Node]) -> None:
        """Count lost peers that were not lost: `gone` are the nodes that the driver saw end."""
        for key, (prefill, decode) in sorted(self._pairs.items()):
            if not gone & {(Role.PREFILL, prefill), (Role.DECODE, decode)}:
                self._tally.move(self._peer_lost, key, "abort")


def _counts(codes: npt.NDArray[np.uint16]) -> list[tuple[int, int]]:
    values, counts = np.unique(codes, return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))
