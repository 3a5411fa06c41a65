"""What a record of the catalogue is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS: Mapping[str, str] = {
    "K1": "slot identity: stale, foreign or partly written metadata in a reused slot",
    "K2": "late write: the destination is given away while a writer is still active",
    "K3": "the source is given away while the peer still reads it",
    "K4": "an end that is not passed on, not handled or not kept",
    "K5": "a late, early or doubled completion of a request that is gone",
    "K6": "rooms and ranks: one name for two requests, or the wrong peer",
    "K7": "ranks that disagree",
    "K8": "leaks, double frees, cleanup that depends on progress",
    "K9": "done before the data is there; the two ends expect different messages; lost wake-ups",
    "K10": "node failure, restart, stale peers",
    "K11": "capacity: queues that stop",
    "K12": "sockets: shared, stale or mute",
}
"""The twelve kinds."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One public record. The mutant is `guards` with `mutants`; it must show `anomaly` in the scenario, and the reference nothing.

    `mechanism` is in our own words, and what the model leaves out is in `note`.
    """

    id: str
    kind: str
    url: str
    seen: str
    mechanism: str
    anomaly: str
    guards: str = "hardened"
    mutants: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    hosted: Mapping[str, Any] | None = None
    """Fields of a scenario with which a released engine can show it; None: it takes a fault, a mutant or ranks that hosted runs do not have."""

    @property
    def mutant(self) -> str:
        """The change in one word: guards, or named changes."""
        return ", ".join((*(() if self.guards == "hardened" else (self.guards,)), *self.mutants))
