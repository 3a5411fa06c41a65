"""The hand-offs of a run as one decode rank has seen them, and the rules that look at one rank at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from harness.check import limits
from harness.check.aborts import Aborts
from harness.check.arrays import Mask, Rows
from harness.check.authors import Authors
from harness.check.coverage import Window
from harness.check.delivery import Delivery
from harness.check.faults import Faults
from harness.check.liveness import Liveness
from harness.check.ownership import Ownership
from harness.check.report import Expectations
from harness.check.streams import Step
from harness.check.table import Table
from harness.check.tally import Tally
from harness.check.tenures import Turn


class View:
    """One decode rank of all instances; `decodes` are all decode processes. Rank 0 also judges what the driver alone can tell."""

    def __init__(self, rank: int, expect: Expectations, decodes: int, tally: Tally, faults: Faults) -> None:
        """Nothing seen yet."""
        self.rank = rank
        self.table = Table()
        self.authors = Authors(expect.slots * decodes)
        self.ownership = Ownership(expect, decodes, tally)
        self.delivery = Delivery(tally, self.authors, first=rank == 0)
        self.aborts = Aborts(expect, tally, faults, first=rank == 0)
        self.liveness = Liveness(expect, tally, faults)
        self.window = Window()
        self._bounds: deque[tuple[int, np.uint64]] = deque()

    def take(self, step: Step, load: Mask) -> tuple[Turn, Rows]:
        """Take in this rank's part of a step and judge the hand-offs that are complete by then; returns the step's tenures and those."""
        self.table.absorb(step, load)
        self.authors.placeholders(step, self.table)
        turn = self.ownership.take(step, self.table)
        rows = self.table.settle(all_rows=step.last)
        self.delivery.judge(rows, self.table.rows, self.table.invoked)
        while self.table.late_ends:
            self.delivery.late_ends(self.table.late_ends.pop())
        self.aborts.judge(rows)
        if not self.rank:
            self.liveness.judge(rows)
        self.window.judge(rows)
        self.authors.keep(rows, self.table.invoked)
        self._prune(step.bound)
        return turn, rows

    def _prune(self, bound: np.uint64) -> None:
        """Let tenures go that ended `limits.LAG` hand-offs ago."""
        self._bounds.append((self.table.invoked, bound))
        horizon = np.uint64(0)
        while self._bounds[0][0] < self.table.invoked - limits.LAG:
            horizon = self._bounds.popleft()[1]
        self.ownership.prune(horizon)


def attribution(views: Sequence[View]) -> dict[str, int]:
    """Causes of mismatch aborts, over all ranks."""
    total: Counter[str] = Counter()
    for view in views:
        total.update(view.aborts.attribution)
    return dict(views[0].aborts.attribution) | dict(total)
