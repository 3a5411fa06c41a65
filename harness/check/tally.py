"""Counts what the rules find and keeps, for each kind, the three earliest cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.check.arrays import U64
from harness.history.reader import Records, Stream

CASES = 3


@dataclass(frozen=True, order=True)
class Case:
    """One finding to be shown: when, and the rooms whose events tell it, the subject first."""

    t_ns: int
    rooms: tuple[int, ...]


@dataclass
class Finding:
    """All findings of one kind."""

    count: int = 0
    detail: Counter[str] = field(default_factory=Counter)
    cases: list[Case] = field(default_factory=list)
    shown: list[list[tuple[Stream, Records]]] = field(default_factory=list)
    """Cases whose records are at hand: nothing has to be looked up."""


class Tally:
    """Findings by anomaly name; flat memory however many there are."""

    def __init__(self) -> None:
        """Nothing found yet."""
        self.found: dict[str, Finding] = {}

    def _of(self, name: str) -> Finding:
        return self.found.setdefault(name, Finding())

    def count(self, name: str) -> int:
        """How many of `name` were found."""
        return self.found[name].count if name in self.found else 0

    def add(self, name: str, t_ns: U64, *rooms: U64, detail: Mapping[str, int] | None = None) -> None:
        """Add one finding for each element of `t_ns` (n,); `rooms` (n,) each, the subject's first, 0 for none."""
        if not len(t_ns):
            return
        finding = self._of(name)
        finding.count += len(t_ns)
        finding.detail.update(detail or {})
        for i in np.lexsort((rooms[0], t_ns))[:CASES]:
            named = tuple(dict.fromkeys(int(room[i]) for room in rooms if room[i]))
            finding.cases.append(Case(int(t_ns[i]), named))
        finding.cases = sorted(finding.cases)[:CASES]

    def show(self, name: str, detail: str, amount: int, records: list[tuple[Stream, Records]]) -> None:
        """Add one finding of `name` with the records that show it; `detail` counts `amount`."""
        finding = self._of(name)
        finding.count += 1
        finding.detail[detail] += amount
        if len(finding.shown) < CASES:
            finding.shown.append(records)

    def move(self, other: Tally, key: str, name: str) -> None:
        """Add the findings that `other` keeps under `key` to those of `name`."""
        source, target = other.found[key], self._of(name)
        target.count += source.count
        target.detail.update(source.detail)
        target.cases = sorted(target.cases + source.cases)[:CASES]

    def drop(self, name: str) -> int:
        """Forget `name`; returns how many there were."""
        return self.found.pop(name).count if name in self.found else 0
