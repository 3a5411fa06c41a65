"""How full the slots were during the load, and how long a hand-off waited until it had one."""

from __future__ import annotations

import numpy as np

from harness.check.arrays import Rows
from harness.check.liveness import Latencies, Load
from harness.check.tenures import Turn


class Occupancy:
    """Integrates the number of slots held over the load.

    Decode does not record when a request reaches it, so a wait runs from the driver's INVOKE to decode's ALLOC: it holds the
    way of the request and decode's queue, too. With a free slot it is that way alone.
    """

    def __init__(self, slots: int) -> None:
        """`slots` of all decode nodes together."""
        self.waits = Latencies()
        self._slots = slots
        self._held = 0
        self._area_ns = 0.0
        self._length_ns = 0
        self._upto = 0

    def take(self, turn: Turn, load: Load, bound: int) -> None:
        """Take in a step's tenures; the step ends at `bound` ns, and `load` has seen its driver records."""
        begins = turn.alloc & ~turn.held
        moved = begins | turn.matched
        delta = np.where(begins, 1, -1)[moved]
        low, high = load.window(self._upto, bound)
        if high > low:
            at = np.clip(turn.records["t_ns"][moved].astype(np.int64), low, high)
            self._area_ns += self._held * (high - low) + float((delta * (high - at)).sum())
            self._length_ns += high - low
        self._held += int(delta.sum())
        self._upto = bound

    def judge(self, rows: Rows) -> None:
        """Count the waits of the load's hand-offs among `rows` of a `Table`; clocks of different hosts are not compared."""
        good = rows["load"] & (rows["allocs"] > 0) & (rows["alloc_t"] > rows["invoke_t"])
        self.waits.add(rows["alloc_t"][good] - rows["invoke_t"][good])

    @property
    def share(self) -> float:
        """Share of slots held during the load, averaged over time, 0 to 1."""
        return self._area_ns / (self._length_ns * self._slots) if self._length_ns and self._slots else 0.0
