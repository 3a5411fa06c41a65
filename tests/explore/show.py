"""Explores once for all tests that ask for the same setup, and prints what came of it."""

from __future__ import annotations

import functools

from .explorer import Result, explore, tell
from .world import Setup


@functools.cache
def _explored(setup: Setup) -> Result:
    return explore(setup)


def explored(setup: Setup) -> Result:
    """Every schedule of `setup`; printed with the shortest schedule of each anomaly."""
    result = _explored(setup)
    print(result.line())
    for anomaly in result.anomalies:
        print(f"  {anomaly}, for example:")
        for line in tell(setup, result.shortest(anomaly)):
            print(f"    {line}")
    assert result.schedules > 0
    return result
