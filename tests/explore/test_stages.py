"""Two pipeline stages write one slot: every schedule of two requests, both stages' blocks, statuses and drain notices."""

from __future__ import annotations

from typing import Any

import pytest

from .judge import WRONG_DATA
from .planes import PLANES
from .show import explored
from .world import Setup

WHOLE_ROW = ((0, 1, 2, 3, 4, 5, 6, 7, 8),)
"""Two writers are enough to try: fields of one writer land together, but for the room."""


def _staged(guards: str, plane: str, **more: Any) -> Setup:
    return Setup(guards=guards, plane=plane, groups=WHOLE_ROW, stages=2, **more)


@pytest.mark.parametrize("plane", PLANES)
def test_nothing_goes_wrong(plane: str) -> None:
    assert explored(_staged("hardened", plane)).anomalies == {}


def test_a_stages_row_is_taken_for_the_requests() -> None:
    """sgl-project/sglang#22716, where every status comes after its data, and where everything else is guarded."""
    assert "misdelivery A" in explored(_staged("sglang-0.5.20", "acked")).anomalies
    assert "misdelivery A" in explored(_staged("hardened,-last_stage_aux", "one-sided")).anomalies


def test_one_writer_of_the_row_is_enough_where_the_status_comes_last() -> None:
    assert explored(_staged("sglang-0.5.20,+last_stage_aux", "acked")).anomalies == {}


def test_half_a_hand_off_is_committed_when_the_first_success_wins() -> None:
    mutant = explored(_staged("sglang-0.5.20,+last_stage_aux,-await_all_ranks", "acked"))
    assert "foreign-kv A" in mutant.anomalies


def test_digests_wait_for_every_rank_by_themselves() -> None:
    result = explored(_staged("hardened,-await_all_ranks", "acked"))
    assert not result.names & WRONG_DATA
