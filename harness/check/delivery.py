"""Each request was given its own row and pages, once, and the client was told what happened.

Which fields count: a field that the request asked for (MADE's mask) and consumes (COMMIT's mask) must be as made. A
consumed field that it did not ask for must be as cleared, else it is a `stale-field`. What it does not consume cannot
hurt it and is only counted.

A wrong row is `torn` when it also has own fields, or fields of several authors (an unknown one counts as one), else a
`misdelivery`: also when nobody made what is in it, for that is not the request's row either.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from harness.check.arrays import NEVER, Mask, Rows, by_field, join, spread, take
from harness.check.authors import AUTHORS, Authors, Kinds
from harness.check.table import ROW
from harness.check.tally import Tally
from harness.history.event import Kind
from harness.history.reader import Records

TOKEN_BITS = np.uint64(0x7FFFFFFF)


class Delivery:
    """Judges hand-offs whose records are complete."""

    def __init__(self, tally: Tally, authors: Authors, *, first: bool = True) -> None:
        """Nothing judged yet. `first`: rank 0, which answers the driver."""
        self._first = first
        self.wrong_data = 0
        self.stale: Counter[str] = Counter()
        """Rows by field that another's value stayed in without being consumed."""
        self._tally, self._authors = tally, authors

    def judge(self, rows: Rows, rest: Rows, invoked: int) -> None:
        """Judge `rows` of a `Table`; `rest` are its other rows, `invoked` the hand-offs begun so far."""
        self._outcome(rows)
        done = take(rows, rows["commits"] > 0)
        made = done["mades"] > 0
        self._add("phantom", done, ~made)
        done = take(done, made)
        wrong = self._row(done, (rows, rest), invoked)
        foreign = done["kv"] != done["made_kv"]
        self._add("foreign-kv", done, foreign, detail=_pages(done, foreign))
        self.wrong_data += int((wrong | foreign).sum())
        changed = done["changed"] != 0
        self._add("changed-after-commit", done, changed, detail=by_field(spread(done["changed"])))
        self._token(done, wrong)

    def late_ends(self, ends: Records) -> None:
        """Terminal events of hand-offs that were judged long ago."""
        if self._first:
            self._tally.add("duplicate", ends["t_ns"], ends["room"])

    def _add(self, name: str, rows: Rows, which: Mask, *, detail: dict[str, int] | None = None) -> None:
        found = take(rows, which)
        self._tally.add(name, found["invoke_t"], found["room"], found["prev"], detail=detail)

    def _outcome(self, rows: Rows) -> None:
        twice = (rows["ends"] > 1) & self._first
        self._add("lost", rows, (rows["ends"] == 0) & self._first)
        self._add("duplicate", rows, twice | (rows["commits"] > 1))
        committed = rows["commits"] > 0
        told = {
            "told of success without a commit": (rows["end_kind"] == Kind.OK) & ~committed,
            "told of failure after a commit": (rows["end_kind"] == Kind.FAIL) & committed,
        }
        if not self._first:
            told = dict(zip(("another rank did not commit", "another rank committed"), told.values(), strict=True))
        for what, which in told.items():
            self._add("outcome-mismatch", rows, which, detail={what: int(which.sum())})

    def _row(self, done: Rows, around: tuple[Rows, Rows], invoked: int) -> Mask:
        """Judge the fields of committed rows; returns which rows (n,) were wrong."""
        differs = done["tags"] != done["made_tags"]
        consumed, used = spread(done["mask"]), spread(done["made_mask"])
        self.stale.update(by_field(differs & ~consumed))
        stale = differs & consumed & ~used
        self._add("stale-field", done, stale.any(axis=1), detail=by_field(stale))
        wrong = differs & consumed & used
        bad: Mask = wrong.any(axis=1)
        if bad.any():
            own = (~differs & consumed & used)[bad].any(axis=1)
            self._wrong(take(done, bad), wrong[bad], own, around, invoked)
        return bad

    def _wrong(self, rows: Rows, wrong: Mask, own: Mask, around: tuple[Rows, Rows], invoked: int) -> None:
        """Tell torn rows from foreign ones; `own` (n,): the row has fields of its own request."""
        kinds, makers = self._authors.search(rows, wrong, join(around, ROW), invoked)
        lowest = np.where(wrong, makers, NEVER).min(axis=1)
        highest = np.where(wrong, makers, np.uint64(0)).max(axis=1)
        torn = own | (lowest != highest)
        for name, which in (("torn", torn), ("misdelivery", ~torn)):
            detail = by_field(wrong[which]) | _by_author(kinds[which], wrong[which])
            found = take(rows, which)
            self._tally.add(name, found["invoke_t"], found["room"], found["prev"], highest[which], detail=detail)

    def _token(self, done: Rows, wrong: Mask) -> None:
        """Compare first tokens of rows that were right."""
        known = self._first & (done["end_kind"] == Kind.OK) & (done["sents"] > 0) & ~wrong
        differ: Mask = done["end_value"] != (done["token"] & TOKEN_BITS)
        self._add("wrong-token", done, known & differ)


def _by_author(kinds: Kinds, wrong: Mask) -> dict[str, int]:
    """How many wrong fields each kind of author made, without the zeros."""
    counts = np.bincount(kinds[wrong], minlength=len(AUTHORS))
    return {name: int(count) for name, count in zip(AUTHORS, counts, strict=True) if count}


def _pages(rows: Rows, foreign: Mask) -> dict[str, int]:
    """Count requests with pages of another, with pages that are not whole, and with neither on record."""
    others, torn = rows["kv_foreign"] > 0, rows["kv_torn"] > 0
    kinds = {"foreign pages": others, "incomplete pages": torn, "no page recorded": ~others & ~torn}
    counts = {name: int((which & foreign).sum()) for name, which in kinds.items()}
    return {name: count for name, count in counts.items() if count}
