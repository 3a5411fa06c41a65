"""Tenures of slots never overlap, and nobody writes into a slot that is not his.

Only what is proved is counted. A write is not its author's any more when its begin (taken before the first byte
moves) is later than the FREE of its own tenure (taken after the slot was cleared). It is then counted once:

* `foreign-write` when another tenure held the slot at that moment;
* `late-write` when the slot was free and the engine promises a drained release, or when the room it left was found by
  the slot's next ALLOC. Otherwise nobody can have read it: it is a note.

Where a slot was given out twice, the first tenure is over for its writes once the second begins. A write that began
while its own tenure was open is merely concurrent with what came next, and never counted.
"""

from __future__ import annotations

import numpy as np

from harness.check.arrays import Counts, Index, Mask, Rows, join, take
from harness.check.report import Expectations
from harness.check.streams import Step
from harness.check.table import Table
from harness.check.tally import Tally
from harness.check.tenures import Log, Slots, Turn
from harness.history.event import DTYPE, KV_BIT, ROOM_BIT, Verb
from harness.history.reader import Records


class Ownership:
    """Follows the slots of `decodes` decode processes of `expect.slots` each."""

    def __init__(self, expect: Expectations, decodes: int, tally: Tally) -> None:
        """Nobody holds a slot."""
        self.slots = Slots(expect.slots * decodes)
        self.writes = 0
        self.unplaced = 0
        """Writes whose slot's decode cannot be told, or that name a slot which does not exist."""
        self._expect, self._tally, self._decodes = expect, tally, decodes
        self._log = Log()
        self._harmless = 0
        self._idle = np.empty(0, DTYPE)
        self._idle_slots = np.empty(0, np.intp)

    @property
    def harmless(self) -> int:
        """Late writes into a free slot that no later tenure has found."""
        return self._harmless + len(self._idle)

    def take(self, step: Step, table: Table) -> Turn:
        """Check a step's tenures and writes, tell `table` who was given which slot, and return the tenures."""
        records, keys = step.pick(Verb.ALLOC, Verb.FREE)
        if (keys < 0).any():  # Slots of other roles are their own affair.
            records, keys = take(records, keys >= 0), keys[keys >= 0]
        turn, new, ended = self.slots.turn(records, keys * self._expect.slots + records["slot"])
        allocs = take(turn.records, turn.alloc)
        table.allocate(allocs, turn.slots[turn.alloc], turn.previous[turn.alloc])
        self._log.extend(new, ended)
        self._tenures(turn, allocs)
        landed, keys = step.pick(Verb.LANDED)
        self.writes += len(landed)
        self._written(landed, keys, table)
        self._settle_idle()
        return turn

    def prune(self, horizon: np.uint64) -> None:
        """Forget tenures that ended before `horizon` ns."""
        self._log.prune(horizon)

    def _tenures(self, turn: Turn, allocs: Records) -> None:
        double = turn.alloc & turn.held
        wrong = ~turn.alloc & ~turn.matched
        for name, which in (("double-alloc", double), ("double-free", wrong)):
            if which.any():
                records = take(turn.records, which)
                self._tally.add(name, records["t_ns"], records["room"], turn.previous[which])
        if self._expect.clean_slot:
            dirty = allocs["value"] != 0
            found, previous = take(allocs, dirty), turn.previous[turn.alloc][dirty]
            known = int((found["value"] == previous).sum())
            detail = {"previous owner of the slot": known, "another request": len(found) - known}
            detail = {name: count for name, count in detail.items() if count}
            self._tally.add("dirty-slot", found["t_ns"], found["room"], previous, detail=detail)

    def _written(self, landed: Records, keys: Index, table: Table) -> None:
        """Check writes; `keys` (n,) are the decodes that recorded them, -1 for others."""
        at, own = self._log.of(landed["room"])
        log = self._log.rows
        if len(log):
            decode, slot = np.divmod(log["slot"][at], self._expect.slots)
            own &= (log["tenure"][at] == landed["tenure"]) & (slot == landed["slot"])
            own &= (keys < 0) | (decode == keys)
        clean = own.copy()
        clean[own] = landed["t_ns"][own] <= log["free_t"][at[own]]
        if clean.all():
            return
        rest = np.flatnonzero(~clean)
        slots = self._place(take(landed, rest), keys[rest])
        known = slots >= 0
        self.unplaced += int((~known).sum())
        rest, slots = rest[known], slots[known]
        self._suspect(take(landed, rest), slots, np.where(own, at, -1)[rest], table)

    def _place(self, landed: Records, keys: Index) -> Index:
        """Keys of the slots written, -1 where the decode is not known: its recorder, its own tenure's or the only one."""
        at, found = self._log.of(landed["room"])
        decode = keys.copy() if self._decodes > 1 else np.zeros(len(landed), np.intp)
        guess = found & (keys < 0)
        decode[guess] = self._log.rows["slot"][at[guess]] // self._expect.slots
        exists = (decode >= 0) & (landed["slot"] >= 0) & (landed["slot"] < self._expect.slots)
        return np.where(exists & (self._decodes > 0), decode * self._expect.slots + landed["slot"], -1)

    def _suspect(self, writes: Records, slots: Index, own: Index, table: Table) -> None:
        """Judge writes that ended after their own tenure; `own` (n,): its place in the log, -1 if it is not there."""
        log = self._log.rows
        holder = self._log.holder(slots, writes["a"])
        present = holder >= 0
        foreign = present & ~_same(log, holder, writes)
        gone = foreign.copy()
        gone[own >= 0] = log["free_t"][own[own >= 0]] < writes["a"][own >= 0]
        active = present.copy()
        active[present] = writes["a"][present] <= log["free_t"][holder[present]]
        hits = gone & foreign & active
        if hits.any():
            found = take(writes, hits)
            self._tally.add(
                "foreign-write",
                found["t_ns"],
                found["room"],
                log["room"][holder[hits]],
                detail=_carried(found),
            )
        self._late(take(writes, gone & ~hits), slots[gone & ~hits])
        self._landed(writes, slots, table)

    def _late(self, writes: Records, slots: Index) -> None:
        """Count writes into a free slot as a broken promise, or keep them until the slot's next ALLOC."""
        if self._expect.drained_release:
            self._tally.add("late-write", writes["t_ns"], writes["room"], detail=_carried(writes))
            return
        self._idle = join([self._idle, writes], DTYPE)
        self._idle_slots = np.concatenate([self._idle_slots, slots])

    def _settle_idle(self) -> None:
        """Look at the slots that late writes left behind, once they were given out again."""
        if not len(self._idle):
            return
        following = self._log.following(self._idle_slots, self._idle["a"])
        known = following >= 0
        seen = known & (self._idle["flags"] & ROOM_BIT != 0)
        seen[seen] = self._log.rows["word"][following[seen]] == self._idle["room"][seen]
        found = take(self._idle, seen)
        victims = self._log.rows["room"][following[seen]]
        self._tally.add("late-write", found["t_ns"], found["room"], victims, detail=_carried(found))
        self._harmless += int((known & ~seen).sum())
        self._idle, self._idle_slots = take(self._idle, ~known), self._idle_slots[~known]

    def _landed(self, writes: Records, slots: Index, table: Table) -> None:
        """Tell the table whose tenure a foreign write ended in: that may have been what it was aborted for."""
        log = self._log.rows
        holder = self._log.holder(slots, writes["t_ns"])
        inside = holder >= 0
        inside[inside] = writes["t_ns"][inside] <= log["free_t"][holder[inside]]
        inside &= ~_same(log, holder, writes)
        table.hit(log["room"][holder[inside]], writes["room"][inside], writes["t_ns"][inside])


def _same(log: Rows, at: Index, writes: Records) -> Mask:
    """Whether the tenure at `at` (n,) is the one that the write was meant for; False where `at` is -1."""
    if not len(log):
        return np.zeros(len(at), np.bool_)
    same: Mask = (at >= 0) & (log["room"][at] == writes["room"]) & (log["tenure"][at] == writes["tenure"])
    return same


def _carried(writes: Records) -> dict[str, int]:
    """How many of the writes carried a room, other fields, KV."""
    flags = writes["flags"]
    parts = {"room": flags & ROOM_BIT, "fields": flags & (ROOM_BIT - 1), "kv": flags & KV_BIT}
    counts = {name: int((bits != 0).sum()) for name, bits in parts.items()}
    return {name: count for name, count in counts.items() if count}


def fewest_and_most(counts: Counts, names: list[str], slots: int) -> tuple[int, int]:
    """Fewest and most tenures of a slot, those of a decode's incarnations together.

    `counts` (decodes x slots,) as in `Slots.count`; `names` (decodes,) the process of each.
    """
    totals: dict[str, Counts] = {}
    for i, name in enumerate(names):
        part = counts[i * slots : (i + 1) * slots]
        totals[name] = totals.get(name, np.zeros(slots, np.int64)) + part
    if not totals:
        return 0, 0
    return min(int(total.min()) for total in totals.values()), max(int(total.max()) for total in totals.values())
