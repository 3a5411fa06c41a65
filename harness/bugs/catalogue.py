"""The whole catalogue, and how to choose from it."""

from __future__ import annotations

from collections.abc import Sequence

from harness import extension
from harness.bugs import data, life
from harness.bugs.record import KINDS, Bug
from harness.errors import FieldError
from harness.scenario import Scenario, load

BUGS: tuple[Bug, ...] = (
    *data.K1, *data.K2, *data.K3, *data.K4, *life.K5, *life.K6, *life.K7, *life.K8, *life.K9, *life.K10, *life.K11,
    *life.K12,
)  # fmt: skip
BY_ID = {bug.id: bug for bug in BUGS}
DURATION_S = 3.0
HOSTED_REQUESTS = 2000
_COMMON = {
    "workload.duration_s": DURATION_S,
    "limits.transfer_timeout_s": 2.0,
    "limits.request_timeout_s": 8.0,
    "limits.min_window": 0,
}


def scenario(bug: Bug, *, mutant: bool, seed: int = 1, plugins: Sequence[str] = ()) -> Scenario:
    """The scenario of a record, with its mutant or with the hardened reference."""
    changes = {
        **_COMMON,
        **bug.changes,
        "faults": list(bug.faults),
        "seed": seed,
        "name": f"bug-{bug.id}",
        "plugins": list(plugins),
    }
    if mutant:
        changes |= {"guards": bug.guards, "mutants": list(bug.mutants)}
    return load(None, changes)


def on_engine(bug: Bug, engine: str, transport: str, seed: int = 1) -> Scenario:
    """The scenario of a record on a released engine; raises FieldError for one that no hosted run can show."""
    if bug.hosted is None:
        can = ", ".join(name for name, other in BY_ID.items() if other.hosted is not None)
        raise FieldError("bug", bug.id, f"one that a hosted engine can show: {can}")
    given = {
        "engine.name": engine,
        "transport.name": transport,
        "workload.requests": HOSTED_REQUESTS,
        "limits.min_window": 0,
    }
    return load(None, {**given, **bug.hosted, "seed": seed, "name": f"bug-{bug.id}"})


def choose(ids: Sequence[str], kinds: Sequence[str]) -> list[Bug]:
    """Records by id (`all`, or none and no kind: all) and by kind; raises FieldError for what is not there."""
    known = {**BY_ID, **extension.active().bugs}
    for name in ids:
        if name != "all" and name not in known:
            raise FieldError("bug", name, "`all` or an id that `handoff bugs` lists")
    for kind in kinds:
        if kind not in KINDS:
            raise FieldError("kind", kind, "one of " + ", ".join(KINDS))
    every = "all" in ids or not (ids or kinds)
    return [bug for bug in known.values() if every or bug.id in ids or bug.kind in kinds]
