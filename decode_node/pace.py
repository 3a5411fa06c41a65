"""How regularly a decode node polls while there is something to look at: how long that waits, as a histogram. Sans-I/O."""

from __future__ import annotations

import math

_PER_OCTAVE = 8
_BUCKETS = 32 * _PER_OCTAVE


class Pace:
    """Gaps from one poll, or from when there was something to look at, to the next poll; what a loop without work waits is no gap."""

    def __init__(self) -> None:
        """Nothing polled yet."""
        self._counts = [0] * _BUCKETS
        self._slowest_s = 0.0
        self._last = math.nan

    def wanted(self, now: float) -> None:
        """There is something to look at, at `now`, monotonic seconds."""
        if math.isnan(self._last):
            self._last = now

    def polled(self, now: float) -> None:
        """A poll begins at `now`."""
        gap_s = now - self._last
        if gap_s > 0:
            self._slowest_s = max(self._slowest_s, gap_s)
            self._counts[min(max(int(math.log2(gap_s * 1e6) * _PER_OCTAVE), 0), _BUCKETS - 1)] += 1
        self._last = now

    def idle(self) -> None:
        """Nothing is left to look at: the next gap does not count."""
        self._last = math.nan

    def gap_us(self, share: float) -> int:
        """The gap, µs, that `share` of the gaps do not exceed, to within 9 %; 0 where there were none."""
        wanted = share * sum(self._counts)
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(round(2 ** ((bucket + 1) / _PER_OCTAVE)), self.slowest_us)
        return 0

    @property
    def slowest_us(self) -> int:
        """The longest gap, µs."""
        return round(self._slowest_s * 1e6)

    def census(self) -> tuple[int, int, int]:
        """(slowest, 99.9 %, median) gap, µs."""
        return self.slowest_us, self.gap_us(0.999), self.gap_us(0.5)
