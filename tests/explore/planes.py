"""Data planes as rules about which blocks of which write may land next, and what prefill is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.transport.base import Outcome


@dataclass(frozen=True, kw_only=True)
class Plane:
    """`connections`: 0 where every write goes its own way; else the groups of a write go over so many, each in order."""

    outcome: Outcome
    """DONE: no completion will follow. POSTED: the status goes at once, a completion follows. PENDING: the status waits for it."""
    refuses: bool
    connections: int = 0
    reorder: bool = False
    """The groups of one write land in any order."""
    shared: bool = False
    """The row goes on the control plane, before its status."""


PLANES = {
    "ordered-unacked": Plane(outcome=Outcome.DONE, refuses=True, connections=1),
    "reordered-unacked": Plane(outcome=Outcome.DONE, refuses=True, connections=1, reorder=True),
    "striped-unacked": Plane(outcome=Outcome.DONE, refuses=True, connections=2),
    "one-sided": Plane(outcome=Outcome.POSTED, refuses=False),
    "one-sided-reorder": Plane(outcome=Outcome.POSTED, refuses=False, reorder=True),
    "acked": Plane(outcome=Outcome.PENDING, refuses=True, connections=1),
    "acked-reorder": Plane(outcome=Outcome.PENDING, refuses=True, connections=1, reorder=True),
    "acked-one-sided-reorder": Plane(outcome=Outcome.PENDING, refuses=False, reorder=True),
    "shared": Plane(outcome=Outcome.PENDING, refuses=True, connections=1, shared=True),
    "shared-one-sided": Plane(outcome=Outcome.PENDING, refuses=False, shared=True),
}

Pending = list[Any]
"""[ticket, (room, slot, tenure), prefill's sender, groups that have not landed, whether all that landed was applied, stage]; a group is
(position, bits, [(offset, data), ...]), no text in it: equal points must be saved as equal bytes."""


def landable(plane: Plane, pending: Sequence[Pending]) -> list[tuple[int, int]]:
    """(ticket, position) of each group that may land next; `pending` in the order in which the writes were issued."""
    found = []
    heads: dict[tuple[int, int], int] = {}
    for ticket, _, _, parts, _, stage in pending:
        for position, *_ in parts:
            way = (stage, (position + ticket) % plane.connections) if plane.connections else (ticket, 0)
            if way not in heads or (plane.reorder and heads[way] == ticket):
                heads[way] = ticket
                found.append((ticket, position))
    return found
