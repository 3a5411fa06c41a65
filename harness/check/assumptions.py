"""What every other rule takes for granted: streams without gaps, rooms that name one hand-off, known records.

Checked first, in one walk over all streams. What is broken is named with its stream and record number, and then
nothing else is checked: a history that lies about its own order proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.check.arrays import U64, Lookup, Mask
from harness.history.event import DTYPE, HEADER_BYTES, RECORD_BYTES, Kind, Verb
from harness.history.reader import Records, Stream

BLOCK = 16_384
RECENT_ROOMS = 65_536
"""A room is not used again within so many hand-offs."""
TAIL_RECORDS = 65_536
"""Looked at behind a stream's last record: the recorder allocates no more ahead."""

_KNOWN = np.isin(np.arange(256), [int(verb) for verb in Verb])
_TOP_ROOM = np.uint64(2**63)


class BrokenAssumption(Exception):
    """Found while checking: the history cannot be judged."""


@dataclass
class Survey:
    """What one walk over all streams found. Times in ns."""

    broken: list[str] = field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    driver: Stream | None = None
    driver_last_ns: int = 0
    decodes: list[tuple[str, int]] = field(default_factory=list)
    """Process and incarnation of each decode; its place here is the key of its slots."""
    owners: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    """Streams that give out and free the slots of each decode: more than one would have no order."""


def role(stream: Stream) -> str:
    """`driver`, `prefill` or `decode`: the process name up to its index."""
    return stream.process.partition("-")[0]


def survey(streams: Sequence[Stream], slots: int) -> Survey:
    """Walk all streams once; `slots` is how many each decode has."""
    found = Survey()
    drivers = [stream for stream in streams if role(stream) == "driver"]
    if len(drivers) == 1:
        found.driver = drivers[0]
    else:
        found.broken.append(f"{len(drivers)} driver streams; exactly one is needed")
    found.decodes = sorted({(s.process, s.incarnation) for s in streams if role(s) == "decode"})
    spans = [_walk(stream, slots, found) for stream in streams if stream.count]
    if spans:
        found.first_ns, found.last_ns = min(span[0] for span in spans), max(span[1] for span in spans)
    shared = [names for names in found.owners.values() if len(names) > 1]
    found.broken += [f"{' and '.join(names)} both give out slots; only one's order is known" for names in shared]
    return found


def _walk(stream: Stream, slots: int, found: Survey) -> tuple[int, int]:
    """Check one stream; returns the times of its first and last record."""
    tests = _Tests(stream, found)
    start, last, owns, invokes = 0, np.uint64(0), False, _Invokes()
    for records in stream.chunks(BLOCK):
        times = records["t_ns"].copy()
        tests.common(records, start, times, last)
        if stream is found.driver:
            tests.failed(start, *invokes.check(records))
        elif role(stream) == "decode" and tests.slots(records, start, slots):
            owns = True
        if not start:
            first = int(times[0])
        start, last = start + len(records), times[-1]
    if _tail_is_written(stream):
        found.broken.append(f"{stream.name} record {start + 1}: missing, and records follow it")
    if owns:
        found.owners.setdefault((stream.process, stream.incarnation), []).append(stream.name)
    if stream is found.driver:
        found.driver_last_ns = int(last)
    return first, int(last)


def _tail_is_written(stream: Stream) -> bool:
    """Whether records lie behind the one where the stream seems to end."""
    with stream.path.open("rb") as file:
        file.seek(HEADER_BYTES + stream.count * RECORD_BYTES)
        data = file.read(TAIL_RECORDS * RECORD_BYTES)
    tail = np.frombuffer(data[: len(data) - len(data) % RECORD_BYTES], DTYPE)
    return bool(tail["seq"].any())


class _Tests:
    """Tests on one block of one stream; of each, the first failure in the stream is told."""

    def __init__(self, stream: Stream, found: Survey) -> None:
        self._stream, self._found = stream, found
        self._told: set[str] = set()

    def failed(self, start: int, what: str, bad: Mask) -> None:
        """Tell the first record of the block where `bad` is set."""
        if what in self._told or not bad.any():
            return
        self._told.add(what)
        self._found.broken.append(f"{self._stream.name} record {start + int(bad.argmax()) + 1}: {what}")

    def common(self, records: Records, start: int, times: U64, last: np.uint64) -> None:
        """Sequence, time, verb and kind."""
        count = len(records)
        expected = np.arange(start + 1, start + count + 1, dtype=np.uint64)
        self.failed(start, "seq does not count on from the record before", records["seq"] != expected)
        before = np.concatenate([[last], times[:-1]])
        self.failed(start, "time runs backwards", times < before)
        verb, kind = records["verb"].copy(), records["kind"]
        self.failed(start, "unknown verb", ~_KNOWN[verb])
        no_kind = (verb == Verb.HANDOFF) & (kind == Kind.OBS)
        self.failed(start, "unknown kind", (kind > max(Kind)) | no_kind)

    def slots(self, records: Records, start: int, slots: int) -> bool:
        """Slots given out and freed exist; returns whether there are any."""
        owned = (records["verb"] == Verb.ALLOC) | (records["verb"] == Verb.FREE)
        outside = (records["slot"] < 0) | (records["slot"] >= slots)
        self.failed(start, f"slot outside the {slots} that each decode has", owned & outside)
        return bool(owned.any())


class _Invokes:
    """Indices and rooms of the driver's invokes, across blocks."""

    def __init__(self) -> None:
        self._count = 0
        self._recent = np.empty(0, np.uint64)

    def check(self, records: Records) -> tuple[str, Mask]:
        """Say what is wrong with the first bad invoke of the block, with a mask that is set at it."""
        at = np.flatnonzero((records["verb"] == Verb.HANDOFF) & (records["kind"] == Kind.INVOKE))
        rooms, count = records["room"][at], len(at)
        gaps = records["b"][at] != np.arange(self._count, self._count + count, dtype=np.uint64)
        bad_room = (rooms == 0) | (rooms >= _TOP_ROOM)
        again = self._again(rooms)
        self._count += count
        told = (("invoke index has a gap", gaps), ("room is 0 or above 63 bits", bad_room))
        for what, bad in (*told, ("room was used before", again)):
            if bad.any():
                return what, _only(len(records), int(at[bad.argmax()]))
        return "", np.zeros(1, np.bool_)

    def _again(self, rooms: U64) -> Mask:
        """Which rooms occur twice within the last `RECENT_ROOMS` invokes."""
        known = len(self._recent)
        seen = np.concatenate([self._recent, rooms])
        self._recent = seen[-RECENT_ROOMS:]
        ordered = np.sort(seen)
        if not (ordered[1:] == ordered[:-1]).any():
            return np.zeros(len(rooms), np.bool_)
        order = np.argsort(seen, kind="stable")
        same = seen[order[1:]] == seen[order[:-1]]
        near = order[1:] - order[:-1] <= RECENT_ROOMS
        again = np.zeros(len(seen), np.bool_)
        again[order[1:][same & near]] = True
        return again[known:]


def _only(length: int, at: int) -> Mask:
    mask = np.zeros(length, np.bool_)
    mask[at] = True
    return mask


def require_unique(lookup: Lookup) -> None:
    """Raise BrokenAssumption when two open hand-offs have one room."""
    repeated = lookup.repeated()
    if len(repeated):
        raise BrokenAssumption(f"room {int(repeated[0]):#x} was used again while its hand-off was open")
