"""What was injected, and which ends of a request that explains: those of the very request, or of requests open at a node while it was hit.

Nothing here excuses wrong data, a late or foreign write, a slot given out twice, a leak, or a mismatch that stale data brought about. A fault
excuses a request's failure, by its reason, and nothing else. A fault that never hit anything is missing coverage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from harness.check.arrays import NEVER, U64, Mask, Rows, take
from harness.check.ranks import instance
from harness.check.report import Coverage, Expectations
from harness.check.stalls import Stalls
from harness.check.streams import Step
from harness.check.table import LOSS_BIT
from harness.check.tally import Tally
from harness.history.event import FaultEvent, FaultKind, Loss, Reason, Role, Verb
from harness.history.reader import Records, Stream

OF_ROOM: Mapping[Reason, tuple[int, ...]] = {
    Reason.CANCELLED: (FaultKind.ABORT,),
    Reason.PREFILL_FAILED: (FaultKind.FAIL, FaultKind.ABORT),
    Reason.TIMEOUT: (LOSS_BIT + Loss.NEEDED,),
    Reason.DRIVER_TIMEOUT: (LOSS_BIT + Loss.CLIENT,),
    Reason.MISMATCH: (FaultKind.CORRUPT,),
}
"""Reason of a failure to the bits of the table's `faults` that explain it: what was done to that very request."""
SLOWING = (FaultKind.HOLD_WRITE, FaultKind.DELAY, FaultKind.REORDER)
"""Explain a time-out when they held the request up for at least half of the time that it took."""
OF_NODE: Mapping[Reason, tuple[FaultKind, ...]] = {
    Reason.TIMEOUT: (FaultKind.STOP, FaultKind.FILL_QUEUE, FaultKind.LINK),
    Reason.DRIVER_TIMEOUT: (FaultKind.STOP, FaultKind.FILL_QUEUE, FaultKind.LINK),
    Reason.REJECTED: (FaultKind.BURST,),
}
"""Reason of a failure to the faults that explain it when they hit one of its nodes while it was open."""
PROBES = (FaultKind.DUPLICATE_ROOM, FaultKind.BAD_ROOM)
ANSWERS = (Reason.REJECTED, Reason.PEER_LOST, Reason.NODE_EXIT)
"""What a probe may be answered."""


def bits(kinds: tuple[int, ...]) -> int:
    """A mask of kinds, as in the table's `faults`."""
    return sum(1 << kind for kind in kinds)


class Faults:
    """Follows FAULT events in all streams."""

    def __init__(self, expect: Expectations, tally: Tally, driver: Stream) -> None:
        """Nothing injected."""
        self._expect, self._tally, self._driver = expect, tally, driver
        self.hits: Counter[int] = Counter()
        """By number of the fault in the scenario."""
        self.windows: list[list[int]] = []
        """[kind, node, begin ns, end ns]."""
        self._probes: Counter[str] = Counter()
        self._last_probe: list[tuple[Stream, Records]] = []
        self._silent: list[Records] = []
        self._unheard: Counter[int] = Counter()
        """Messages to or from decode that were lost on purpose, by room."""
        self.stalls = Stalls()
        """Not injected, but of the machine."""

    def take(self, step: Step) -> None:
        """Look at a step's records."""
        self.stalls.take(step.driver)
        own = step.driver["verb"] == Verb.FAULT
        if own.any():
            self._driver_records(take(step.driver, own))
        self._count(step.pick(Verb.FAULT)[0])

    def _count(self, records: Records) -> None:
        hit = (records["code"] == FaultEvent.HIT) | (records["code"] == FaultEvent.BEGIN)
        self.hits.update((records["flags"][hit] & 0xFFFF).tolist())
        lost = (records["code"] == FaultEvent.HIT) & (records["c"] == Loss.CLIENT)
        self._unheard.update(records["room"][lost].tolist())

    def _driver_records(self, records: Records) -> None:
        self._count(records)
        kinds = records["flags"] >> 16
        for kind, code, node, t_ns in zip(
            kinds.tolist(), records["code"].tolist(), records["value"].tolist(), records["t_ns"].tolist(), strict=True
        ):
            if code == FaultEvent.BEGIN:
                self.windows.append([kind, node, t_ns, int(NEVER)])
            elif code == FaultEvent.END:
                for window in self.windows:
                    if window[:2] == [kind, node] and window[3] == NEVER:
                        window[3] = t_ns
        self._probed(take(records, np.isin(kinds, PROBES)))

    def _probed(self, records: Records) -> None:
        code = records["code"]
        right = (code == FaultEvent.ANSWERED) & np.isin(records["c"], ANSWERS)
        silent = code == FaultEvent.SILENT
        wrong = (code == FaultEvent.ANSWERED) & ~right
        sent = np.flatnonzero(code == FaultEvent.HIT)
        self._probes["sent"] += len(sent)
        if len(sent):
            self._last_probe = [(self._driver, take(records, sent[-1:]))]
        self._probes["over"] += int((right | wrong | silent).sum())
        self._silent += [take(records, np.array([i])) for i in np.flatnonzero(silent)]
        for i in np.flatnonzero(wrong):
            what = "failed otherwise" if records["c"][i] else "served"
            self._tally.show("not-refused", what, 1, [(self._driver, take(records, np.array([i])))])

    def _silences(self) -> None:
        """Probes that were not answered, but for those whose request or answer was lost on purpose: once for each that was lost."""
        for record in self._silent:
            room = int(record["room"][0])
            if self._unheard[room] > 0:
                self._unheard[room] -= 1
            else:
                self._tally.show("not-refused", "not answered", 1, [(self._driver, record)])

    def close(self, *, complete: bool) -> None:
        """Probes that were not answered, or of which nobody said anything."""
        self._silences()
        left = self._probes["sent"] - self._probes["over"]
        if complete and left:
            self._tally.show("not-refused", "no answer recorded", left, self._last_probe)

    def excused(self, rows: Rows, reason: Reason) -> Mask:
        """Which of the `rows` (n,) of a `Table` may have failed for `reason`, or late with TIMEOUT."""
        found: Mask = (rows["faults"] & bits(OF_ROOM.get(reason, ()))) != 0
        if reason in {Reason.TIMEOUT, Reason.DRIVER_TIMEOUT}:
            slowed = (rows["faults"] & bits(SLOWING)) != 0
            found |= slowed & (2 * rows["held"] >= _end(rows) - rows["invoke_t"])
        for kind, node, begin, end in self.windows:
            if kind in OF_NODE.get(reason, ()):
                open_then = (rows["invoke_t"] <= end) & (_end(rows) >= begin)
                found |= open_then & _at(rows, self._instance(node))
        return found

    def _instance(self, node: int) -> int:
        """The instance of a node, by its rank 0, as requests name it; 0, for all, stays."""
        role, index = instance((node >> 32, node & 0xFFFFFFFF), self._expect)
        return role << 32 | index


def _end(rows: Rows) -> U64:
    ends: U64 = np.where(rows["ends"] > 0, rows["end_t"], NEVER)
    return ends


def _at(rows: Rows, node: int) -> Mask:
    """Whether a node (role << 32 | index; 0: all) is one of the row's."""
    if not node:
        return np.ones(len(rows), np.bool_)
    name = "prefill" if node >> 32 == Role.PREFILL else "decode"
    same: Mask = rows[name] == node & 0xFFFFFFFF
    return same


def coverage(expect: Expectations, hits: Mapping[int, int]) -> list[Coverage]:
    """One entry for each armed fault: one that never fired is an error, not a pass."""
    meaning = "times that the fault was injected"
    return [
        Coverage(f"fault {text}", hits.get(number, 0), 1, hits.get(number, 0) >= 1, meaning)
        for number, text in enumerate(expect.faults)
    ]
