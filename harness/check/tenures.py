"""Who held which slot when: the order of ALLOC and FREE in each slot, and a log of recent tenures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.check.arrays import NEVER, U64, Index, Lookup, Mask, Rows, join, take
from harness.history.event import Verb
from harness.history.reader import Records

TENURE = np.dtype(
    [("slot", "i8"), ("tenure", "u4"), ("room", "u8"), ("alloc_t", "u8"), ("free_t", "u8"), ("word", "u8")]
)
"""One tenure: key of its slot over all decodes, its number, its room, begin and end in ns (`NEVER`: not ended), and
the room word that was found in the slot when it began."""


@dataclass(frozen=True)
class Turn:
    """ALLOC and FREE records of a step, by slot and then in the order of their stream; all arrays (n,)."""

    records: Records
    slots: Index
    alloc: Mask
    held: Mask
    """Whether another tenure held the slot just before."""
    matched: Mask
    """FREE records that end the tenure which holds the slot."""
    previous: U64
    """Room of the tenure before, 0 for none."""


class Slots:
    """State of every slot, arrays of shape (slots,): what a step inherits from those before it."""

    def __init__(self, count: int) -> None:
        """`count` slots that nobody has used."""
        self.count = np.zeros(count, np.int64)
        """Tenures so far."""
        self._room = np.zeros(count, np.uint64)
        self._tenure = np.zeros(count, np.uint32)
        self._held = np.zeros(count, np.bool_)

    def turn(self, records: Records, slots: Index) -> tuple[Turn, Rows, U64]:
        """Play a step's ALLOC and FREE records on the `slots` (n,) they name.

        Returns what came of each, the new tenures, and for each slot the time ns at which the tenure that held it
        before the step ended in it, freed or overtaken, `NEVER` where it did not.
        """
        kind = np.uint16 if len(self.count) < 2**16 else np.int64
        order = np.argsort(slots.astype(kind), kind="stable")
        records, slots = take(records, order), slots[order]
        alloc = records["verb"] == Verb.ALLOC
        before, ends = _before(slots, alloc)
        inside = before >= 0
        matched, ended = self._match(records, slots, alloc, before)
        freed = np.full(len(records), NEVER)
        freed[before[matched & inside]] = records["t_ns"][matched & inside]
        held = np.where(inside, freed[before] == NEVER, self._held[slots] & (ended[slots] == NEVER))
        previous = np.where(inside, records["room"][before], self._room[slots])
        turn = Turn(records, slots, alloc, held, matched, previous)
        self._keep(turn, freed, ended, ends)
        # A tenure that another overtakes is over for its writes, though it was never freed.
        over, t_ns = alloc & held, records["t_ns"]
        freed[before[over & inside]] = t_ns[over & inside]
        ended[slots[over & ~inside]] = t_ns[over & ~inside]
        return turn, _tenures(records, slots, freed, alloc), ended

    def _match(self, records: Records, slots: Index, alloc: Mask, before: Index) -> tuple[Mask, U64]:
        """FREE records that end the current tenure of their slot, and when the step ends inherited tenures."""
        inside = before >= 0
        tenure = np.where(inside, records["tenure"][before], self._tenure[slots])
        matched = ~alloc & (inside | self._held[slots]) & (records["tenure"] == tenure)
        at = np.flatnonzero(matched)
        whose = np.where(inside, before, -1 - slots)[at]
        # Of several FREEs of one tenure the first ends it.
        matched[at[1:][whose[1:] == whose[:-1]]] = False
        ended = np.full(len(self.count), NEVER)
        inherited = matched & ~inside
        ended[slots[inherited]] = records["t_ns"][inherited]
        return matched, ended

    def _keep(self, turn: Turn, freed: U64, ended: U64, ends: Index) -> None:
        """Carry each slot's last tenure into the next step."""
        self._held &= ended == NEVER
        slots = turn.slots[ends]
        self._room[slots] = turn.records["room"][ends]
        self._tenure[slots] = turn.records["tenure"][ends]
        self._held[slots] = freed[ends] == NEVER
        self.count += np.bincount(turn.slots[turn.alloc], minlength=len(self.count))


def _before(slots: Index, alloc: Mask) -> tuple[Index, Index]:
    """For each record the nearest ALLOC before it in its slot, -1 for none; and the last ALLOC of each slot."""
    count = len(slots)
    if not count:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    places = np.arange(count)
    first = np.concatenate([[True], slots[1:] != slots[:-1]])
    group = np.maximum.accumulate(np.where(first, places, 0))
    latest = np.maximum.accumulate(np.where(alloc, places, -1))
    before = np.concatenate([[-1], latest[:-1]])
    before[before < group] = -1
    closing = np.concatenate([first[1:], [True]])
    ends = latest[closing]
    return before, ends[ends >= group[closing]]


def _tenures(records: Records, slots: Index, freed: U64, alloc: Mask) -> Rows:
    new = np.empty(int(alloc.sum()), TENURE)
    new["slot"], new["free_t"] = slots[alloc], freed[alloc]
    for name, source in (("tenure", "tenure"), ("room", "room"), ("alloc_t", "t_ns"), ("word", "value")):
        new[name] = records[source][alloc]
    return new


class Log:
    """Recent tenures, by slot and then in order; the last one of each slot is always there."""

    def __init__(self) -> None:
        """No tenure yet."""
        self.rows: Rows = np.empty(0, TENURE)
        self._rooms = Lookup(self.rows["room"])
        self._times: U64 = np.zeros(0, np.uint64)
        self._places: Index = np.zeros(0, np.intp)

    def extend(self, new: Rows, ended: U64) -> None:
        """Add tenures; `ended` is as in `Slots.turn`."""
        slots = np.flatnonzero(ended != NEVER)
        if len(slots):
            at = np.searchsorted(self.rows["slot"], slots, side="right") - 1
            self.rows["free_t"][at] = ended[slots]
        rows = join([self.rows, new], TENURE)
        self.rows = take(rows, np.argsort(rows["slot"], kind="stable"))
        self._rooms = Lookup(self.rows["room"].copy())
        self._times = np.zeros(0, np.uint64)

    def prune(self, horizon: np.uint64) -> None:
        """Forget tenures that ended before `horizon` ns, except for each slot's last."""
        rows = self.rows
        if not len(rows):
            return
        last = np.concatenate([rows["slot"][1:] != rows["slot"][:-1], [True]])
        self.rows = take(rows, last | (rows["free_t"] >= horizon))

    def of(self, rooms: U64) -> tuple[Index, Mask]:
        """Positions of the tenures of `rooms` (n,), and which were found."""
        return self._rooms.find(rooms)

    def holder(self, slots: Index, t_ns: U64) -> Index:
        """Position of the last tenure that began in each of `slots` (n,) before `t_ns` (n,), -1 for none."""
        if not len(self.rows):
            return np.full(len(slots), -1, np.intp)
        if not len(self._times):
            self._times = np.sort(self.rows["alloc_t"])
            self._places = self._place(self.rows["slot"], self.rows["alloc_t"])
        at = np.searchsorted(self._places, self._place(slots, t_ns)) - 1
        at[(at >= 0) & (self.rows["slot"][at] != slots)] = -1
        return at

    def _place(self, slots: Index, t_ns: U64) -> Index:
        """One number that orders by slot and then by time: a time's rank among those of the log fits beside the slot."""
        place: Index = slots * (len(self._times) + 1) + np.searchsorted(self._times, t_ns)
        return place

    def following(self, slots: Index, t_ns: U64) -> Index:
        """Position of the first tenure that began in each of `slots` (n,) at `t_ns` (n,) or later, -1 for none."""
        if not len(self.rows):
            return np.full(len(slots), -1, np.intp)
        self.holder(slots[:1], t_ns[:1])
        at = np.searchsorted(self._places, self._place(slots, t_ns))
        at[at == len(self.rows)] = 0
        at[(self.rows["slot"][at] != slots) | (self.rows["alloc_t"][at] < t_ns)] = -1
        return at
