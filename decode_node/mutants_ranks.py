"""Small named changes of how the ranks of a decode instance agree, each the mechanism of a known bug (`harness.protocol.mutants` has them in words)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from decode_node.agreement import CELLS, Agreement, Vector, ballot, decided, votes_of
from decode_node.engines.handoff import Handoff
from harness.history.event import Reason

Engine = Any
"""A `GroupedEngine` whose agreement is replaced."""


class _Around:
    """An agreement that does something else with the votes."""

    def __init__(self, inner: Agreement) -> None:
        """Around `inner`, which belongs to the node and is closed by it."""
        self._inner = inner

    @property
    def busy(self) -> bool:
        return self._inner.busy

    def begin(self, votes: Vector) -> None:
        self._inner.begin(votes)

    def result(self) -> Vector | None:
        return self._inner.result()

    def close(self) -> None:
        self._inner.close()


class _ByPlace(_Around):
    """Poll results are reduced as a list, in the order of the rank's own queue, and nothing says which request each is about."""

    _queue: tuple[int, ...] = ()

    def begin(self, votes: Vector) -> None:
        own = votes_of(votes)
        self._queue = tuple(sorted(own))
        self._inner.begin(ballot({place: own[index] for place, index in enumerate(self._queue)}))

    def result(self) -> Vector | None:
        lowest = self._inner.result()
        if lowest is None:
            return None
        return ballot({self._queue[place]: vote for place, vote in decided(lowest).items()})


class _SkipsWhenEmpty(_Around):
    """An iteration has two collectives, and a rank whose queue is empty leaves the first one out: from then on ranks are in different ones."""

    _first: Vector | None = None
    _second = False

    @property
    def busy(self) -> bool:
        return self._first is not None or self._second

    def begin(self, votes: Vector) -> None:
        self._second = not votes_of(votes)
        self._first = None if self._second else votes
        self._inner.begin(np.zeros(2 * CELLS, np.int64) if self._second else votes)

    def result(self) -> Vector | None:
        lowest = self._inner.result()
        if lowest is None:
            return None
        if self._first is not None and not self._second:
            self._first, self._second = lowest.copy(), True
            self._inner.begin(np.zeros(2 * CELLS, np.int64))
            return None
        lowest, self._first, self._second = lowest if self._first is None else self._first, None, False
        return lowest


def _votes_by_place(engine: Engine) -> None:
    cancel = engine.cancel

    def patched(room: int, now: float) -> None:
        """An aborted request leaves the queue of this rank at once."""
        handoff = engine.open.get(room)
        if handoff is not None:
            engine._forget(handoff.index)
            engine._settled.add(handoff.index)
        cancel(room, now)

    engine.cancel = patched
    _with(_ByPlace)(engine)


def _fails_alone(engine: Engine) -> None:
    fail = engine._fail

    def patched(handoff: Handoff, reason: Reason, word: int = 0) -> None:
        if reason is Reason.PREFILL_FAILED and engine._rank:
            engine._settled.add(handoff.index)
        fail(handoff, reason, word)

    engine._fail = patched
    engine._give_up = lambda _: None


def _with(around: Callable[[Agreement], Agreement]) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        if getattr(engine, "_agreement", None) is not None:
            engine._agreement = around(engine._agreement)

    return change


CHANGES: Mapping[str, Callable[[Engine], None]] = {
    "votes_by_place": _votes_by_place,
    "fails_alone": _fails_alone,
    "skipped_reduction": _with(_SkipsWhenEmpty),
}
