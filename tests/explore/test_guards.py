"""Each guard of `hardened` on its own: without it the exploration finds what `PREVENTS` says it prevents, with it nothing.

Three guards are not needed beside the others: `MASKED` says which one covers for each, and both off show the anomaly.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.bugs.catalogue import BUGS
from harness.protocol.guards import PREVENTS

from .planes import PLANES
from .show import explored
from .world import BY_USE, Setup

MUTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "copy_row": ("changed-after-commit A", {"wants": (3, 3), "groups": BY_USE}),
    "clear_on_free": ("false-abort B", {}),
    "notify_abort": ("write-after-abort A", {"timeout": True}),
    "terminal_failed": ("commit-after-failed A", {"rank_fails": True}),
    "drain_on_abort": ("foreign-write A", {"plane": "one-sided", "timeout": True}),
    "drain_on_commit": ("foreign-write A", {"plane": "one-sided-reorder", "wants": (0, 3), "groups": BY_USE}),
    "quarantine": ("foreign-write A", {"plane": "one-sided", "timeout": True, "expire": True}),
    "tenure_on_writes": ("foreign-write A", {"timeout": True}),
    "remember_rooms": ("foreign-write A", {"plane": "one-sided", "abort": "decode", "overtake": True, "arrive": "any"}),
    "notify_failed": ("lost A", {"abort": "prefill"}),
    "row_digest": ("torn B", {"plane": "one-sided-reorder"}),
    "kv_digest": ("foreign-kv B", {"plane": "one-sided-reorder"}),
}
"""Guard: the anomaly that its absence must show, and where."""

STAGES: dict[str, Any] = {"stages": 2, "groups": ((0, 1, 2, 3, 4, 5, 6, 7, 8),)}
MUTANTS["last_stage_aux"] = ("misdelivery A", {"plane": "one-sided", **STAGES})
OPTIONAL_FIELDS: dict[str, Any] = {"wants": (3, 0), "groups": BY_USE, "prefill_slots": 1}
MASKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "validate_room": ("row_digest", "misdelivery B", {"plane": "one-sided"}),
    "clear_optional": ("requested_fields_only", "stale-field B", OPTIONAL_FIELDS),
    "requested_fields_only": ("clear_optional", "stale-field B", OPTIONAL_FIELDS),
}
MASKED["await_all_ranks"] = ("kv_digest", "foreign-kv A", {"plane": "acked", **STAGES})
"""Guard: the other guard that covers for it, the anomaly without both, and where."""


IN_THE_CATALOGUE = {"notify_unadmitted", "refuse_duplicate", "repeat_abort", "named_dp_rank"}
"""Guards that need what two requests on one slot cannot show: full queues, rooms used twice, lost messages, several nodes."""


OF_DECODE_RANKS = {"min_over_ranks", "gate_before_min", "vote_on_data", "count_destinations"}
"""There is one decode rank here: `tests/unit/test_agreement.py` has them, `test_fanout.py` the last one."""


def test_every_guard_is_here() -> None:
    assert MUTANTS.keys() | MASKED.keys() | IN_THE_CATALOGUE | OF_DECODE_RANKS == PREVENTS.keys()
    assert not MUTANTS.keys() & MASKED.keys()
    off = " ".join(bug.guards for bug in BUGS)
    assert all(f"-{guard}" in off for guard in IN_THE_CATALOGUE)


@pytest.mark.parametrize("guard", MUTANTS)
def test_without_its_guard_an_anomaly_is_found(guard: str) -> None:
    anomaly, where = MUTANTS[guard]
    mutant = explored(Setup(guards=f"hardened,-{guard}", **where))
    assert anomaly in mutant.anomalies
    assert anomaly not in explored(Setup(guards="hardened", **where)).anomalies


def test_a_late_write_of_an_old_tenure_makes_the_next_request_wait_for_ever() -> None:
    """Why holding after a commit matters although the row was whole: a block that changed nothing then does so later."""
    anomaly, where = MUTANTS["drain_on_commit"]
    mutant = explored(Setup(guards="hardened,-drain_on_commit", **where))
    assert set(mutant.anomalies) == {anomaly, "lost B", "leak"}


@pytest.mark.parametrize("guard", MASKED)
def test_a_masked_guard_shows_only_without_the_one_that_covers_for_it(guard: str) -> None:
    other, anomaly, where = MASKED[guard]
    assert anomaly not in explored(Setup(guards=f"hardened,-{guard}", **where)).anomalies
    assert anomaly in explored(Setup(guards=f"hardened,-{guard},-{other}", **where)).anomalies


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("guard", ["validate_room", "requested_fields_only"])
def test_a_masked_guard_is_masked_on_every_plane(guard: str, plane: str) -> None:
    setup = Setup(guards=f"hardened,-{guard}", plane=plane, timeout=True, **OPTIONAL_FIELDS)
    assert set(explored(setup).anomalies) == {"hang A"}


def test_a_stale_optional_field_is_sent_along_but_not_used() -> None:
    result = explored(Setup(guards="hardened,-clear_optional", **OPTIONAL_FIELDS))
    assert result.anomalies == {"unconsumed-stale B": result.schedules}
    assert explored(Setup(guards="hardened", **OPTIONAL_FIELDS)).anomalies == {}
