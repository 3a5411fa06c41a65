"""Which part of a run each decode rank has seen: a request has one slot at every rank, so each rank is judged for itself.

Rank 0 answers the driver; for it everything is checked. For the others what only the driver can tell (lost, hung, failed for no reason) is
not counted again, but a rank that did otherwise than the driver was told is an `outcome-mismatch`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from harness.check.arrays import take
from harness.check.report import Expectations
from harness.check.streams import Step
from harness.history.event import Role, Verb
from harness.history.threads import rank_of_thread

Node = tuple[int, int]
"""Role and index."""


def decode_rank(process: str, thread: str, expect: Expectations) -> int:
    """Rank of a decode process (`decode-3`), or the one that a prefill process's thread writes to; 0 for others.

    A prefill process that serves several has streams for each, and others with nothing but faults, which concern all.
    """
    role, _, number = process.partition("-")
    if role == "decode":
        return int(number) % expect.decode_tp
    if role == "prefill":
        named = rank_of_thread(thread)
        return int(number) % expect.prefill_tp * expect.decode_tp // expect.prefill_tp if named is None else named
    return 0


def instance(node: Node, expect: Expectations) -> Node:
    """The instance of a process, by its rank 0: as requests name it."""
    role, index = node
    count = {Role.PREFILL: expect.prefill_tp * expect.prefill_pp, Role.DECODE: expect.decode_tp}.get(Role(role), 1)
    return role, index - index % count


def seen_by(step: Step, rank: int, decodes: Sequence[int]) -> Step:
    """What concerns one decode rank; `decodes` are the ranks by key, other roles' keys are -1 - rank. Faults concern all."""
    parts = []
    for key, records in step.parts:
        if (decodes[key] if key >= 0 else -1 - key) == rank:
            parts.append((key, records))
        elif (faults := records["verb"] == Verb.FAULT).any():
            parts.append((key, take(records, np.flatnonzero(faults))))
    return dataclasses.replace(step, parts=parts)
