"""Writes long histories at once, as arrays: what takes the recorder minutes is needed here only for its size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from harness.history.event import (
    DTYPE,
    HEADER_BYTES,
    KV_BIT,
    MAGIC,
    REQUIRED_MASK,
    ROOM_BIT,
    SCHEMA,
    Kind,
    Phase,
    Reason,
    Resource,
    Role,
    Verb,
)
from harness.history.reader import Records

SPACING_NS = 100_000


def write(folder: Path, count: int, *, slots: int = 64, wrong: str = "") -> None:
    """A run of `count` hand-offs, about half as many in flight as there are `slots`.

    `wrong`, for every hand-off: "previous" (holds the row of its slot's previous owner), "another" (of the hand-off
    before), "torn" (half a row of that), "abort" (aborted for the room that its slot held), "late" (written after its
    slot was given to the next).
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(count, slots)
    driver = [run.events(0, Verb.HANDOFF, kind=Kind.INVOKE, b=run.index)]
    end = {"kind": Kind.OK, "value": run.index % 1000}
    main = [run.events(4, Verb.ALLOC), run.events(40, Verb.STATUS, code=4), run.events(46, Verb.FREE)]
    if wrong == "abort":
        main[0]["value"] = run.shifted(slots)
        main.append(run.events(44, Verb.ABORT, code=Reason.MISMATCH, value=run.shifted(slots)))
        end = {"kind": Kind.FAIL, "code": Reason.MISMATCH}
    else:
        main.append(run.rows(44, Verb.COMMIT))
        back = {"previous": slots, "another": 1, "torn": 1}.get(wrong, 0)
        main[-1]["tags"][:, : 1 if wrong == "torn" else 9] = run.tags(back)[:, : 1 if wrong == "torn" else 9]
    driver.append(run.events(50, Verb.HANDOFF, b=run.index, **end))
    prefill = [run.rows(8, Verb.MADE), run.events(34, Verb.SENT, code=4, b=run.index % 1000)]
    begin = run.time(10 if wrong != "late" else 110)
    landed = run.events(30 if wrong != "late" else 130, Verb.LANDED, a=begin)
    landed["flags"] = 0x1FF | ROOM_BIT | KV_BIT
    _stream(folder, "driver", "main", _framed(driver))
    _stream(folder, "decode-0", "main", _sorted(main))
    _stream(folder, "prefill-0", "main", _sorted(prefill))
    _stream(folder, "prefill-0", "mover", _sorted([landed]))


class _Run:
    """Hand-off i begins at i times the spacing and takes a few tens of it, in slot i mod `slots`."""

    def __init__(self, count: int, slots: int) -> None:
        self.index, self.slots = np.arange(count), slots
        rng = np.random.default_rng(count)
        self.room = rng.permutation(count).astype(np.uint64) * np.uint64(2**40) + np.uint64(12_345)
        self._made = rng.integers(1, 2**32, (count, 9), dtype=np.uint32)

    def time(self, at: float) -> np.ndarray:
        """Time of an event that comes `at` hundredths of the slots' turn after the invoke."""
        return (10**9 + self.index * SPACING_NS + int(at * SPACING_NS * self.slots / 100)).astype(np.uint64)

    def shifted(self, back: int) -> np.ndarray:
        return np.where(self.index >= back, np.roll(self.room, back), 0)

    def tags(self, back: int = 0) -> np.ndarray:
        tags = np.roll(self._made, back, axis=0)
        tags[:back] = self._made[:back]
        tags[:, 2:] = 7
        return tags

    def events(self, at: float, verb: Verb, **fields: object) -> Records:
        records = np.zeros(len(self.index), DTYPE)
        records["t_ns"], records["room"], records["verb"] = self.time(at), self.room, verb
        records["slot"], records["tenure"] = self.index % self.slots, self.index // self.slots
        for name, value in fields.items():
            records[name] = value
        return records

    def rows(self, at: float, verb: Verb) -> Records:
        records = self.events(at, verb, code=REQUIRED_MASK, flags=9, value=self.room)
        records["tags"] = self.tags()
        return records


def _sorted(parts: list[Records]) -> Records:
    joined = np.concatenate([part.view("V80") for part in parts]).view(DTYPE)
    return joined.view("V80")[np.argsort(joined["t_ns"], kind="stable")].view(DTYPE)


def _framed(handoffs: list[Records]) -> Records:
    """The driver's records between the marks of a complete run."""
    ordered = _sorted(handoffs)
    marks = np.zeros(5, DTYPE)
    marks["verb"] = [Verb.PHASE, Verb.PHASE, Verb.RESOURCE, Verb.PHASE, Verb.PHASE]
    marks["code"] = [Phase.LOAD, Phase.DRAIN, Resource.SLOTS, Phase.REST, Phase.FINISHED]
    marks["value"][2], marks["flags"][2] = Role.DECODE << 32, 1
    marks["t_ns"] = ordered["t_ns"][-1] + 1
    marks["t_ns"][0] = ordered["t_ns"][0]
    return _sorted([marks[:1], ordered, marks[1:]])


def _stream(folder: Path, process: str, thread: str, records: Records) -> None:
    records["seq"] = np.arange(1, len(records) + 1)
    head = {"schema": SCHEMA, "process": process, "thread": thread, "incarnation": 1, "pid": 1}
    data = (MAGIC + json.dumps(head).encode()).ljust(HEADER_BYTES, b"\0")
    (folder / f"{process}.1.{thread}.hist").write_bytes(data + records.tobytes())
