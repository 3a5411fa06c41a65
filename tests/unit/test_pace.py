"""How long what there is to look at waits for a poll: idle time is no gap, and the slowest one is not lost in the many."""

from __future__ import annotations

import pytest

from decode_node.pace import Pace


def test_gaps_are_counted_from_when_there_was_something_to_look_at() -> None:
    pace = Pace()
    pace.polled(0.0)
    pace.idle()
    pace.wanted(5.0)
    pace.wanted(5.001)
    pace.polled(5.002)
    assert pace.slowest_us == pytest.approx(2000)
    pace.polled(5.003)
    pace.idle()
    pace.polled(9.0)
    assert pace.slowest_us == pytest.approx(2000)


def test_median_and_slowest() -> None:
    pace, now = Pace(), 0.0
    pace.polled(now)
    for gap_s in [0.001] * 999 + [0.2]:
        now += gap_s
        pace.polled(now)
    slowest, p999, median = pace.census()
    assert slowest == pytest.approx(200_000, rel=0.001)
    assert p999 == pytest.approx(1000, rel=0.1)
    assert median == pytest.approx(1000, rel=0.1)


def test_without_polls_all_is_0() -> None:
    assert Pace().census() == (0, 0, 0)
