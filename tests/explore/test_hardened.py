"""`hardened` over every schedule: nothing goes wrong, every request ends and nothing stays held."""

from __future__ import annotations

from typing import Any

import pytest

from .judge import WRONG_DATA
from .planes import PLANES
from .show import explored
from .world import BY_USE, Setup

PLANE = pytest.mark.parametrize("plane", PLANES)
ONE_SIDED = pytest.mark.parametrize("plane", [name for name, plane in PLANES.items() if not plane.refuses])
ONLY_THE_TIMEOUT = {"hang A"}
"""A's own time-out, in the schedules where it strikes before A is committed: told to the client as such."""

VARIANTS: dict[str, dict[str, Any]] = {
    "any": {"arrive": "any"},
    "A uses more fields": {"wants": (3, 0), "groups": BY_USE, "prefill_slots": 1},
    "B uses more fields": {"wants": (0, 3), "groups": BY_USE},
}


@PLANE
@pytest.mark.parametrize("arrive", ["known", "any"])
def test_nothing_goes_wrong(plane: str, arrive: str) -> None:
    assert explored(Setup(guards="hardened", plane=plane, arrive=arrive)).anomalies == {}


@PLANE
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_goes_wrong_when_a_request_is_given_up(plane: str, variant: str) -> None:
    result = explored(Setup(guards="hardened", plane=plane, timeout=True, **VARIANTS[variant]))
    assert set(result.anomalies) == ONLY_THE_TIMEOUT
    assert result.anomalies["hang A"] < result.schedules


@ONE_SIDED
@pytest.mark.parametrize("instant", ["A", "B", "AB"])
def test_nothing_goes_wrong_when_some_writes_are_done_at_once(plane: str, instant: str) -> None:
    result = explored(Setup(guards="hardened", plane=plane, timeout=True, instant=instant))
    assert set(result.anomalies) == ONLY_THE_TIMEOUT


@pytest.mark.parametrize("plane", ["ordered-unacked", "one-sided", "one-sided-reorder", "acked", "shared"])
def test_nothing_goes_wrong_when_another_rank_fails(plane: str) -> None:
    result = explored(Setup(guards="hardened", plane=plane, timeout=True, rank_fails=True))
    assert set(result.anomalies) == {"abort A", *ONLY_THE_TIMEOUT}


@PLANE
def test_nothing_goes_wrong_when_prefill_takes_several_messages_at_once(plane: str) -> None:
    """An abort may then come while the write that it shall stop still waits to be carried out."""
    result = explored(Setup(guards="hardened", plane=plane, timeout=True, batched=True))
    assert set(result.anomalies) == ONLY_THE_TIMEOUT


@PLANE
def test_nothing_goes_wrong_when_a_request_waits_long_for_its_slot(plane: str) -> None:
    """Prefill must not forget one that decode still queues: back-pressure is no transfer."""
    assert explored(Setup(guards="hardened", plane=plane, forget=True, arrive="any")).anomalies == {}


@ONE_SIDED
def test_nothing_goes_wrong_when_a_hold_is_over_its_deadline(plane: str) -> None:
    result = explored(Setup(guards="hardened", plane=plane, timeout=True, expire=True))
    assert set(result.anomalies) == ONLY_THE_TIMEOUT


@pytest.mark.parametrize("plane", ["one-sided", "shared-one-sided"])
def test_no_wrong_data_even_when_a_deadline_ends_a_hold(plane: str) -> None:
    """Without the quarantine the next request may be aborted or wait for ever, but it is not given what is not its own."""
    result = explored(Setup(guards="hardened,-quarantine", plane=plane, timeout=True, expire=True))
    assert {"foreign-write A", "lost B", "late-write A"} <= set(result.anomalies)
    assert not result.names & WRONG_DATA
