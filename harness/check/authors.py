"""Finds who made a field that is not the request's own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.check import limits
from harness.check.arrays import FIELDS, U64, Counts, Lookup, Mask, Rows, join, spread, take
from harness.check.streams import Step
from harness.check.table import Table
from harness.history.event import Verb

MADE = np.dtype([("room", "u8"), ("index", "u8"), ("t", "u8"), ("mask", "u2"), ("tags", "u4", (FIELDS,))])

PREVIOUS, ANOTHER, UNKNOWN = "previous owner of the slot", "another request", "unknown"
STAGE = "pipeline stage before the last"
AUTHORS = (PREVIOUS, ANOTHER, UNKNOWN, STAGE)

Kinds = npt.NDArray[np.uint8]
"""Places in `AUTHORS`, shape (n, 9)."""


class Authors:
    """What prefill made lately, and for the last tenure of each slot."""

    def __init__(self, slots: int) -> None:
        """Nothing made; `slots` over all decodes."""
        self._window = np.empty(0, MADE)
        self._stages = np.empty(0, MADE)
        self._owners = np.zeros(slots, MADE)
        self._since = np.zeros(slots, np.uint64)

    def placeholders(self, step: Step, table: Table) -> None:
        """Remember what stages before the last sent as rows, their own hand-off's or another's."""
        records = step.pick(Verb.PLACEHOLDER)[0]
        if not len(records):
            return
        at, found = table.find(records["room"])
        records, at = take(records, found), at[found]
        new = np.empty(len(records), MADE)
        for name, source in (("room", "room"), ("t", "t_ns"), ("mask", "code"), ("tags", "tags")):
            new[name] = records[source]
        new["index"] = table.rows["index"][at]
        self._stages = join([self._stages, new], MADE)

    def keep(self, rows: Rows, invoked: int) -> None:
        """Remember what was made for judged `rows` of a `Table`; `invoked` hand-offs have begun."""
        made = take(rows, rows["mades"] > 0)
        joined = join([self._window, _made(made)], MADE)
        oldest = max(invoked - limits.LAG - limits.WINDOW, 0)
        self._window = take(joined, joined["index"] >= np.uint64(oldest))
        self._stages = take(self._stages, self._stages["index"] >= np.uint64(oldest))
        # Rows are in the order of their invokes, not of their tenures: the latest tenure of a slot is put last.
        placed = take(made, made["slot"] >= 0)
        placed = take(placed, placed["alloc_t"] >= self._since[placed["slot"]])
        placed = take(placed, np.argsort(placed["alloc_t"], kind="stable"))
        self._since[placed["slot"]] = placed["alloc_t"]
        self._owners[placed["slot"]] = _made(placed)

    def search(self, rows: Rows, wrong: Mask, around: Rows, invoked: int) -> tuple[Kinds, U64]:
        """Look for the makers of the fields `wrong` (n, 9) of committed `rows` (n,); `around` are the rows at hand.

        Returns the kind of author and its room, 0 where it is unknown, both (n, 9).
        """
        pool = join([_made(take(around, around["mades"] > 0)), self._window], MADE)
        kinds = np.full(wrong.shape, AUTHORS.index(UNKNOWN), np.uint8)
        rooms = np.zeros(wrong.shape, np.uint64)
        closed = np.minimum(rows["settle"], np.uint64(invoked + limits.LAG)).astype(np.int64) - limits.LAG
        oldest = closed - limits.WINDOW
        previous = self._previous(rows, pool)
        by_previous = wrong & (previous["tags"] == rows["tags"]) & spread(previous["mask"])
        kinds[by_previous] = AUTHORS.index(PREVIOUS)
        rooms[by_previous] = np.broadcast_to(previous["room"][:, None], wrong.shape)[by_previous]
        for made, author in ((pool, ANOTHER), (self._stages, STAGE)):
            left = wrong & (kinds == AUTHORS.index(UNKNOWN))
            for field in np.flatnonzero(left.any(axis=0)):
                who = np.flatnonzero(left[:, field])
                found, maker = _makers(made, int(field), take(rows, who), oldest[who])
                kinds[who[found], field] = AUTHORS.index(author)
                rooms[who[found], field] = maker
        return kinds, rooms

    def _previous(self, rows: Rows, pool: Rows) -> Rows:
        """Look up what was made for the preceding tenure of each row's slot; no fields where that is not known."""
        previous = np.zeros(len(rows), MADE)
        at, found = Lookup(pool["room"].copy()).find(rows["prev"])
        found &= rows["prev"] != 0
        previous[found] = pool[at[found]]
        owners = self._owners[np.maximum(rows["slot"], 0)]
        kept = ~found & (rows["slot"] >= 0) & (rows["prev"] != 0) & (owners["room"] == rows["prev"])
        previous[kept] = owners[kept]
        return previous


def _made(rows: Rows) -> Rows:
    made = np.empty(len(rows), MADE)
    for name, source in (("room", "room"), ("index", "index"), ("t", "made_t"), ("mask", "made_mask")):
        made[name] = rows[source]
    made["tags"] = rows["made_tags"]
    return made


def _makers(pool: Rows, field: int, rows: Rows, oldest: Counts) -> tuple[Mask, U64]:
    """Which of the `rows` (n,) hold a tag of `field` that was made before they read it, and the makers of those.

    A field that its maker did not use is cleared, the same for everybody, and names no author.
    """
    users = np.flatnonzero(pool["mask"] >> field & 1)
    if not len(users):
        return np.zeros(len(rows), np.bool_), np.zeros(0, np.uint64)
    tags = pool["tags"][users, field]
    order = np.argsort(tags)
    ordered, wanted = tags[order], rows["tags"][:, field]
    found, maker = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.intp)
    # Two makers may have one tag by chance, 1 in 2**32 for each pair: look at the first and the last of equal ones.
    for at in (np.searchsorted(ordered, wanted), np.searchsorted(ordered, wanted, side="right") - 1):
        candidate = users[order[np.clip(at, 0, len(ordered) - 1)]]
        fits = pool["tags"][candidate, field] == wanted
        fits &= (pool["index"][candidate].astype(np.int64) >= oldest) & (pool["t"][candidate] <= rows["commit_t"])
        fits &= ~found | (pool["index"][candidate] > pool["index"][maker])
        maker[fits] = candidate[fits]
        found |= fits
    return found, pool["room"][maker[found]]
