"""What each released protocol does and does not do, over every schedule of two requests on one slot."""

from __future__ import annotations

import pytest

from .judge import WRONG_DATA
from .planes import PLANES
from .show import explored
from .world import Setup

ABORTS = {"false-abort", "foreign-abort", "abort", "hang"}
ARRIVE = pytest.mark.parametrize("arrive", ["known", "any"])
AFTER_LANDING = [name for name in PLANES if name.startswith(("acked", "shared"))]


@ARRIVE
@pytest.mark.parametrize("guards", ["sglang-0.5.9", "sglang-0.5.12"])
def test_the_old_room_in_a_slot_aborts_the_next_request(guards: str, arrive: str) -> None:
    result = explored(Setup(guards=guards, arrive=arrive))
    assert set(result.anomalies) == {"false-abort B"}
    assert 0 < result.anomalies["false-abort B"] < result.schedules


@ARRIVE
def test_without_a_room_check_whatever_is_there_is_taken(arrive: str) -> None:
    result = explored(Setup(guards="sglang-0.5.8", arrive=arrive))
    assert {"misdelivery A", "misdelivery B", "foreign-token B", "foreign-kv B"} <= set(result.anomalies)
    assert "foreign-token A" not in result.anomalies
    assert not result.names & ABORTS


@ARRIVE
@pytest.mark.parametrize("guards", ["sglang-0.5.13", "sglang-0.5.20", "hardened"])
def test_clearing_on_free_is_enough_where_blocks_stay_in_order(guards: str, arrive: str) -> None:
    assert explored(Setup(guards=guards, arrive=arrive)).anomalies == {}


@ARRIVE
@pytest.mark.parametrize("plane", AFTER_LANDING)
@pytest.mark.parametrize("guards", ["sglang-0.5.9", "sglang-0.5.12"])
def test_nothing_goes_wrong_where_the_status_comes_last(guards: str, plane: str, arrive: str) -> None:
    assert explored(Setup(guards=guards, plane=plane, arrive=arrive)).anomalies == {}


def test_a_room_that_lands_first_gives_a_torn_row() -> None:
    result = explored(Setup(guards="sglang-0.5.13", plane="one-sided-reorder"))
    assert {"torn A", "torn B", "misdelivery B", "foreign-token B", "foreign-kv B"} <= set(result.anomalies)
    assert not result.names & ABORTS


@pytest.mark.parametrize("guards", ["sglang-0.5.13", "sglang-0.5.20"])
def test_nothing_is_torn_where_one_sided_blocks_stay_in_order(guards: str) -> None:
    assert explored(Setup(guards=guards, plane="one-sided")).anomalies == {}


def test_a_timed_out_request_writes_into_the_next_ones_slot() -> None:
    result = explored(Setup(guards="sglang-0.5.13", timeout=True))
    assert set(result.anomalies) == {"hang A", "foreign-write A", "foreign-abort B"}


def test_a_timed_out_request_gives_its_data_to_the_next_one() -> None:
    result = explored(Setup(guards="sglang-0.5.13", plane="one-sided", timeout=True))
    wrong = {"misdelivery B", "torn B", "foreign-kv B", "foreign-token B"}
    assert wrong | {"foreign-write A"} <= set(result.anomalies)
    assert not {name for name in result.anomalies if name.endswith(" A")} - {"hang A", "foreign-write A"}


def test_a_timed_out_request_writes_late() -> None:
    result = explored(Setup(guards="sglang-0.5.12", timeout=True, arrive="any"))
    assert {"late-write A", "foreign-write A", "false-abort B", "foreign-abort B"} <= set(result.anomalies)
    assert not result.names & WRONG_DATA


def test_draining_keeps_a_timed_out_request_out_where_completions_can_be_trusted() -> None:
    drained = explored(Setup(guards="sglang-0.5.20", plane="one-sided", timeout=True))
    assert set(drained.anomalies) == {"hang A"}
    trusting = explored(Setup(guards="sglang-0.5.20", timeout=True))
    assert "foreign-write A" in trusting.anomalies
