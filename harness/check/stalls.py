"""Stretches in which the driver itself was not run: what timed out for want of time then says nothing about the engine.

The driver has none of the engine's code and never waits for more than some ms, so when it stood still the machine did, or gave all its time
to others. Such a time-out is neither an anomaly nor a pass: the run is `unknown`.
"""

from __future__ import annotations

import numpy as np

from harness.check.arrays import Mask, Rows, take
from harness.history.event import NodeEvent, Verb
from harness.history.reader import Records


class Stalls:
    """Follows the driver's STALLED events; flat memory for a run that stands still seldom."""

    def __init__(self) -> None:
        """None yet."""
        self._spans: list[tuple[int, int]] = []
        self.timeouts = 0
        """Hand-offs whose time-out a stall explains."""

    def __bool__(self) -> bool:
        """Whether there was any."""
        return bool(self._spans)

    def take(self, driver: Records) -> None:
        """Look at a step's driver records (n,)."""
        which = (driver["verb"] == Verb.NODE) & (driver["code"] == NodeEvent.STALLED)
        found = take(driver, which)
        self._spans += [
            (end - length, end) for end, length in zip(found["t_ns"].tolist(), found["a"].tolist(), strict=True)
        ]

    @property
    def total_s(self) -> float:
        """How long the driver stood still in all."""
        return sum(end - begin for begin, end in self._spans) * 1e-9

    def explain(self, rows: Rows) -> Mask:
        """Which of the `rows` (n,) of a `Table` have ended and saw the driver stand still for at least half of the time that they took."""
        begin_t = rows["invoke_t"].astype(np.int64)
        until_t = rows["end_t"].astype(np.int64)
        stood = np.zeros(len(rows), np.int64)
        for begin, end in self._spans:
            stood += np.maximum(np.minimum(until_t, end) - np.maximum(begin_t, begin), 0)
        found: Mask = (stood > 0) & (2 * stood >= until_t - begin_t)
        return found
