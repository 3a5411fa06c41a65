"""The hand-offs that are open or have just ended, one row each, filled from the records of all processes.

A row stays until the driver has begun `limits.LAG` further hand-offs after its end, so that what other processes record a
little later still counts; later records of a room are counted as stragglers. The point is a count of hand-offs, not
of steps, so that the verdict does not depend on how many hand-offs are read at a step.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from harness.check import limits
from harness.check.arrays import FIELDS, NEVER, U64, Index, Lookup, Mask, Rows, join, pack, spread, take
from harness.check.assumptions import require_unique
from harness.check.streams import Step
from harness.history.event import FaultEvent, Kind, Verb
from harness.history.reader import Records

LOSS_BIT = 28
"""Bit of the table's `faults` for Loss 0."""

ROW = np.dtype(
    [
        ("index", "u8"), ("room", "u8"), ("invoke_t", "u8"), ("start_t", "u8"),
        ("prefill", "u4"), ("decode", "u4"), ("load", "?"),
        ("ends", "u4"), ("end_kind", "u1"), ("end_code", "u2"), ("end_value", "u8"), ("end_t", "u8"),
        ("settle", "u8"),
        ("mades", "u4"), ("made_mask", "u2"), ("made_kv", "u4"), ("made_t", "u8"), ("made_tags", "u4", (FIELDS,)),
        ("sents", "u4"), ("token", "u8"),
        ("allocs", "u4"), ("asked", "u4"), ("slot", "i8"), ("alloc_t", "u8"), ("word", "u8"), ("prev", "u8"),
        ("commits", "u4"), ("mask", "u2"), ("kv", "u4"), ("commit_t", "u8"), ("commit_word", "u8"),
        ("tags", "u4", (FIELDS,)),
        ("aborts", "u4"), ("abort_code", "u2"), ("abort_t", "u8"), ("abort_word", "u8"),
        ("polls", "u4"), ("changed", "u2"), ("kv_foreign", "u4"), ("kv_torn", "u4"), ("hit", "?"), ("hit_by", "u8"),
        ("faults", "u4"), ("held", "u8"),
    ]
)  # fmt: skip
"""One hand-off. Times in ns; `settle`: number of the invoke at which it is judged; `slot`: key of the slot over all
decodes; `prefill`, `asked`: the instance that the router chose, and that decode asked; `word`, `prev`: room word found at ALLOC and room of the slot's preceding tenure; `changed`: mask of fields that USE read
otherwise than COMMIT; `hit`, `hit_by`: another's write landed within the tenure, and whose; `faults`: mask of the FaultKinds that were done to this hand-off, and above `LOSS_BIT` of the Losses;
`held`: ns by which they held it up."""


class Table:
    """Rows of `ROW`, in the order of their invokes."""

    def __init__(self) -> None:
        """Nothing begun."""
        self.rows: Rows = np.zeros(0, ROW)
        self.invoked = 0
        self.late: Counter[int] = Counter()
        """Records that came after their row was judged, or whose room nobody began, by verb."""
        self.late_ends: list[Records] = []
        self._lookup = Lookup(self.rows["room"])
        self._deadline: U64 = np.zeros(0, np.uint64)

    def find(self, rooms: U64) -> tuple[Index, Mask]:
        """Positions of the rows of `rooms` (n,), and which were found."""
        return self._lookup.find(rooms)

    def absorb(self, step: Step, load: Mask) -> None:
        """Take in a step except for ALLOC; `load` (n,) is set at driver records made during the load."""
        handoff = step.driver["verb"] == Verb.HANDOFF
        begins = handoff & (step.driver["kind"] == Kind.INVOKE)
        before = self.invoked
        counts = before + np.cumsum(begins)
        new = take(step.driver, begins)
        self._begin(new, load[begins])
        ends = handoff & ~begins
        self._end(take(step.driver, ends), counts[ends], new["t_ns"].copy(), before)
        self._prefill(step)
        self._decode(step)
        self._faults(take(step.driver, step.driver["verb"] == Verb.FAULT))
        self._faults(step.pick(Verb.FAULT)[0])

    def _faults(self, records: Records) -> None:
        """Note what was done to which hand-off; probes that only bear its room are not it."""
        at, hits = self._timely(take(records, (records["code"] == FaultEvent.HIT) & (records["b"] == 0)))
        kinds = np.uint32(1) << (hits["flags"] >> 16).astype(np.uint32)
        kinds |= np.where(
            hits["c"] > 0, np.uint32(1) << (hits["c"] + np.uint64(LOSS_BIT)).astype(np.uint32), np.uint32(0)
        )
        np.bitwise_or.at(self.rows["faults"], at, kinds)
        np.add.at(self.rows["held"], at, hits["a"])

    def _begin(self, invokes: Records, load: Mask) -> None:
        rows = np.zeros(len(invokes), ROW)
        for name, source in (
            ("index", "b"),
            ("room", "room"),
            ("invoke_t", "t_ns"),
            ("prefill", "c"),
            ("decode", "d"),
        ):
            rows[name] = invokes[source]
        rows["start_t"] = np.where(invokes["a"] != 0, invokes["a"], invokes["t_ns"])
        rows["load"] = load
        rows["settle"] = NEVER
        rows["slot"] = -1
        self.rows = join([self.rows, rows], ROW)
        self.invoked += len(rows)
        self._lookup = Lookup(self.rows["room"].copy())
        require_unique(self._lookup)

    def _end(self, ends: Records, counts: Index, invoke_t: U64, before: int) -> None:
        """Terminal events; `counts` (n,) invokes had been made at each, those of this step at `invoke_t` ns."""
        at, found = self.find(ends["room"])
        rows, fresh = self.rows, found & (self.rows["ends"][at] == 0 if len(self.rows) else found)
        first, event = at[fresh][::-1], take(ends, fresh)[::-1]
        for name, source in (
            ("end_kind", "kind"),
            ("end_code", "code"),
            ("end_value", "value"),
            ("end_t", "t_ns"),
        ):
            rows[name][first] = event[source]
        rows["settle"][first] = counts[fresh][::-1] + limits.LAG
        self._deadline = np.full(len(rows), NEVER)
        due = self.due()
        self._deadline[due] = invoke_t[(rows["settle"][due] - np.uint64(before)).astype(np.intp)]
        timely = found.copy()
        timely[found] = ends["t_ns"][found] <= self._deadline[at[found]]
        rows["ends"] += np.bincount(at[timely], minlength=len(rows)).astype(np.uint32)
        if not timely.all():
            self.late_ends.append(take(ends, ~timely))

    def due(self) -> Mask:
        """Rows that can be judged now."""
        due: Mask = self.rows["settle"] < np.uint64(self.invoked)
        return due

    def _timely(self, records: Records) -> tuple[Index, Records]:
        """Rows of the records that come in time, and those records."""
        at, found = self.find(records["room"])
        if found.any():
            found &= records["t_ns"] <= self._deadline[at]
        if found.all():
            return at, records
        for verb, count in zip(*np.unique(records["verb"][~found], return_counts=True), strict=True):
            self.late[int(verb)] += int(count)
        return at[found], take(records, found)

    def _claim(self, records: Records, counter: str) -> tuple[Index, Records]:
        """Count the records in their rows; returns the rows that had none before, and the first record of each.

        A row that gets two at once comes twice, its first record last, so that assigning leaves the first.
        """
        at, records = self._timely(records)
        fresh = self.rows[counter][at] == 0
        self.rows[counter] += np.bincount(at, minlength=len(self.rows)).astype(np.uint32)
        if not fresh.all():
            at, records = at[fresh], take(records, fresh)
        return at[::-1], records[::-1]

    def _set(self, at: Index, records: Records, names: dict[str, str]) -> None:
        for name, source in names.items():
            self.rows[name][at] = records[source]

    def _prefill(self, step: Step) -> None:
        at, made = self._claim(step.pick(Verb.MADE)[0], "mades")
        self._set(at, made, {"made_mask": "code", "made_kv": "flags", "made_t": "t_ns", "made_tags": "tags"})
        sent = step.pick(Verb.SENT)[0]
        # Ranks that do not know the first token report their part with 0 for it.
        at, sent = self._claim(take(sent, (sent["code"] == SUCCESS) & (sent["b"] != 0)), "sents")
        self._set(at, sent, {"token": "b"})

    def _decode(self, step: Step) -> None:
        at, commit = self._claim(step.pick(Verb.COMMIT)[0], "commits")
        names = {"mask": "code", "kv": "flags", "commit_t": "t_ns", "commit_word": "value", "tags": "tags"}
        self._set(at, commit, names)
        at, abort = self._claim(step.pick(Verb.ABORT)[0], "aborts")
        self._set(at, abort, {"abort_code": "code", "abort_t": "t_ns", "abort_word": "value"})
        self._claim(step.pick(Verb.POLL)[0], "polls")
        pages = step.pick(Verb.KV_PAGE)[0]
        # A page that is not whole, or that names nobody, has not come; one that names a room is that room's.
        torn = (pages["code"] != 0) | (pages["value"] == 0)
        self._claim(take(pages, torn), "kv_torn")
        self._claim(take(pages, ~torn), "kv_foreign")
        self._use(step.pick(Verb.USE)[0])

    def _use(self, uses: Records) -> None:
        """Rows read again: note the fields that are not what COMMIT read."""
        at, uses = self._timely(uses)
        known = (self.rows["commits"][at] > 0) & (self.rows["commit_t"][at] <= uses["t_ns"])
        at, uses = at[known], take(uses, known)
        bits = pack(spread(uses["code"]) & (uses["tags"] != self.rows["tags"][at]))
        changed = bits != 0
        np.bitwise_or.at(self.rows["changed"], at[changed], bits[changed])

    def allocate(self, allocs: Records, slots: Index, previous: U64) -> None:
        """Note the tenures of a step: `slots` (n,) keys and the rooms (n,) that had each slot before."""
        at, found = self.find(allocs["room"])
        timely = allocs["t_ns"][found] <= self._deadline[at[found]]
        found[found] = timely & (self.rows["allocs"][at[found]] == 0)
        at, event = at[found][::-1], take(allocs, found)[::-1]
        self.rows["slot"][at] = slots[found][::-1]
        self.rows["prev"][at] = previous[found][::-1]
        self._set(at, event, {"alloc_t": "t_ns", "word": "value", "asked": "c"})
        self.rows["allocs"][at] = 1

    def hit(self, victims: U64, authors: U64, t_ns: U64) -> None:
        """Note that writes of `authors` landed within the tenures of `victims`, all (n,)."""
        at, found = self.find(victims)
        found[found] = t_ns[found] <= self._deadline[at[found]]
        self.rows["hit"][at[found]] = True
        self.rows["hit_by"][at[found]] = authors[found]

    def settle(self, *, all_rows: bool) -> Rows:
        """Take out the rows that can be judged, or all."""
        due = np.ones(len(self.rows), np.bool_) if all_rows else self.due()
        out = take(self.rows, due)
        self.rows = take(self.rows, ~due)
        return out


SUCCESS = 4
"""Status of a hand-off whose data was sent."""
