"""An invariant: a status never comes before the row that it announces. A transport that waits for visible data keeps it."""

from collections.abc import Iterable

from harness.history.event import Finding, Verb
from harness.invariants import History
from harness.plugin import invariant


@invariant("early-status", "Success was known before the row was there")
def early_status(history: History) -> Iterable[int]:
    """Rooms of which a poll found the slot still empty."""
    polls = history.of(Verb.POLL, "decode")
    found: list[int] = polls["room"][polls["code"] == Finding.EMPTY].tolist()
    return found
