"""Decode ranks that agree within one process."""

from __future__ import annotations

import numpy as np

from decode_node.agreement import Agreement, Vector


def minimum(*ballots: Vector) -> Vector:
    """Elementwise MIN."""
    lowest: Vector = np.minimum.reduce(ballots)
    return lowest


class Shared:
    """Ranks in one process: a reduction is over once all have begun it."""

    def __init__(self, ranks: int) -> None:
        self.begun: list[Vector | None] = [None] * ranks
        self.results: list[Vector | None] = [None] * ranks

    def rank(self, rank: int) -> Agreement:
        """One rank's end."""
        return _End(self, rank)


class _End:
    def __init__(self, shared: Shared, rank: int) -> None:
        self._shared, self._rank = shared, rank

    @property
    def busy(self) -> bool:
        return self._shared.begun[self._rank] is not None or self._shared.results[self._rank] is not None

    def begin(self, votes: Vector) -> None:
        begun = self._shared.begun
        begun[self._rank] = votes
        if all(vector is not None for vector in begun):
            lowest = minimum(*(vector for vector in begun if vector is not None))
            self._shared.results[:] = [lowest] * len(begun)
            begun[:] = [None] * len(begun)

    def result(self) -> Vector | None:
        found, self._shared.results[self._rank] = self._shared.results[self._rank], None
        return found

    def close(self) -> None:
        """Nothing to leave."""
