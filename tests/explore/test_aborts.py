"""The client gives a request up, at every moment, while its data is under way."""

from __future__ import annotations

import pytest

from .judge import WRONG_DATA
from .planes import PLANES
from .show import explored
from .world import Setup

PLANE = pytest.mark.parametrize("plane", PLANES)
SIDES = pytest.mark.parametrize("side", ["both", "decode", "prefill"])


@PLANE
@SIDES
def test_nothing_goes_wrong_when_the_client_gives_up(plane: str, side: str) -> None:
    assert explored(Setup(guards="hardened", plane=plane, abort=side)).anomalies == {}


@pytest.mark.parametrize("plane", ["ordered-unacked", "one-sided"])
def test_nothing_goes_wrong_when_the_requests_come_at_any_time_too(plane: str) -> None:
    assert explored(Setup(guards="hardened", plane=plane, abort="both", arrive="any")).anomalies == {}


@pytest.mark.parametrize("plane", ["ordered-unacked", "one-sided", "acked"])
@pytest.mark.parametrize("mishap", ["overtake", "repeat"])
def test_nothing_goes_wrong_when_a_message_is_late_or_comes_twice(plane: str, mishap: str) -> None:
    setup = Setup(
        guards="hardened", plane=plane, abort="decode", overtake=mishap == "overtake", repeat=mishap == "repeat"
    )
    assert explored(setup).anomalies == {}


def test_an_abort_frees_a_slot_that_is_still_written_to() -> None:
    result = explored(Setup(guards="sglang-0.5.12", plane="one-sided", abort="both"))
    assert {"foreign-write A", "foreign-kv B"} <= set(result.anomalies)
    assert result.names & WRONG_DATA


def test_an_abort_that_is_told_stops_only_what_was_not_issued() -> None:
    result = explored(Setup(guards="sglang-0.5.13", plane="one-sided", abort="both"))
    assert {"foreign-write A", "foreign-kv B"} <= set(result.anomalies)


def test_a_deferred_release_keeps_the_late_write_out() -> None:
    assert explored(Setup(guards="sglang-0.5.20", plane="one-sided", abort="both")).anomalies == {}
