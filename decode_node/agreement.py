"""How the ranks of a decode instance come to one decision for each request: MIN over what each of them would do. Sans-I/O.

Released engines take MIN over a list of poll results, so the lists must have the same requests in the same order on every rank, and the same
number of reductions must be made; ranks that saw an abort at different polls crashed or hung (sgl-project/sglang#36928, #37909). Here every reduction has one fixed size, and each cell names the
request that it is about: what is not the same request on all ranks is not agreed on, and comes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.int64]

CELLS = 512
WAIT, READY = 62, 63
"""Votes of a rank that does not know yet and of one that would commit; lower ones are the `Reason` for which it would fail the request: MIN fails it if any rank would."""
_STEP = READY + 1


class Agreement(Protocol):
    """One reduction after the other over the ranks of an instance; never blocks."""

    @property
    def busy(self) -> bool:
        """A reduction was begun and its result not taken."""

    def begin(self, votes: Vector) -> None:
        """Take part in the next reduction with `votes`, int64 (2 * CELLS,), which is not changed any more."""

    def result(self) -> Vector | None:
        """Elementwise MIN over all ranks, once all have taken part: int64 (2 * CELLS,); raises HarnessError when a rank is gone."""

    def close(self) -> None:
        """Leave the group."""


def ballot(votes: Mapping[int, int]) -> Vector:
    """Votes on all open requests, by index, as cells: (index + 1, vote) and, negated, index + 1 again, so that MIN gives MAX there.

    0 in a cell: no request. Of several for one cell the oldest has it.
    """
    cells = np.zeros(2 * CELLS, np.int64)
    for index in sorted(votes, reverse=True):
        cells[index % CELLS] = (index + 1) * _STEP + votes[index]
        cells[CELLS + index % CELLS] = -(index + 1)
    return cells


def votes_of(cells: Vector) -> dict[int, int]:
    """What a rank's own ballot says: vote by request index."""
    low = cells[:CELLS]
    return {int(cell) // _STEP - 1: int(cell) % _STEP for cell in low[low > 0].tolist()}


def decided(lowest: Vector) -> dict[int, int]:
    """Requests that every rank has and that are to be ended, and the lowest vote; `lowest` is the MIN over all ballots."""
    low, high = lowest[:CELLS], -lowest[CELLS:]
    # A rank without the request has 0, so the lowest is 0; ranks with different requests have different lowest and highest.
    agreed = np.flatnonzero((low > 0) & (low // _STEP == high) & (low % _STEP != WAIT))
    return {int(low[at]) // _STEP - 1: int(low[at]) % _STEP for at in agreed.tolist()}
