"""Small named changes of the reference engine, each the mechanism of a known bug (`harness.protocol.mutants` has them in words).

Each is a function that changes one engine before its run; the reference itself knows nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from decode_node import mutants_ranks
from decode_node.engine import DecodeEngine
from decode_node.engines.handoff import Handoff
from decode_node.engines.reference import FAILED, SUCCESS
from harness.protocol import wire

Engine = Any
"""A `ReferenceEngine` whose methods are replaced."""
NEVER_FREED_EVERY = 97
LEAKS_MAX = 24
"""A mutant that keeps what it should free stops in time: a run that starves says less than one that leaks."""


def _no_timeout(engine: Engine) -> None:
    allocate = engine._allocate

    def patched(handoff: Handoff) -> None:
        allocate(handoff)
        handoff.deadline = math.inf

    engine._allocate = patched


def _ignore_failed(engine: Engine) -> None:
    deliver = engine.deliver

    def patched(message: wire.Status | wire.Drained) -> None:
        if not isinstance(message, wire.Status) or message.status != FAILED:
            deliver(message)

    engine.deliver = patched


class _WrongKeys(list[Any]):
    """Actions, whose aborts name the room by what decode itself calls the request."""

    def append(self, action: Any) -> None:
        peer, message = action
        if isinstance(message, wire.Abort):
            action = (peer, wire.Abort(message.room ^ 1, message.tenure, message.decode))
        super().append(action)


def _abort_wrong_key(engine: Engine) -> None:
    engine.out = _WrongKeys()


def _strict_status(engine: Engine) -> None:
    deliver = engine.deliver

    def patched(message: wire.Status | wire.Drained) -> None:
        if isinstance(message, wire.Status) and message.room not in engine.open:
            raise KeyError(message.room)
        deliver(message)

    engine.deliver = patched


def _strict_duplicate(engine: Engine) -> None:
    deliver = engine.deliver
    seen: dict[int, None] = {}

    def patched(message: wire.Status | wire.Drained) -> None:
        if isinstance(message, wire.Status) and message.status == SUCCESS:
            assert message.room not in seen, "the request has finished receiving already"
            seen[message.room] = None
        deliver(message)

    engine.deliver = patched


def _insert_asserts(engine: Engine) -> None:
    admit = engine.admit

    def patched(request: wire.Request, now: float) -> None:
        assert request.room not in engine.open, "inserted already"
        admit(request, now)

    engine.admit = patched


def _duplicate_clears(engine: Engine) -> None:
    admit, poll = engine.admit, engine.poll
    polled: dict[int, None] = {}

    def patched(request: wire.Request, now: float) -> None:
        if request.room in engine.open:
            polled[request.room] = None
            engine._close(engine.open[request.room])
        admit(request, now)

    def patched_poll(now: float) -> None:
        for room in polled:
            engine.open[room].status  # noqa: B018  the first request's state, which the second's end has cleared
        poll(now)

    engine.admit, engine.poll = patched, patched_poll


def _to_rank(choose: Callable[[Engine, wire.Request], int]) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        admit = engine.admit

        def patched(request: wire.Request, now: float) -> None:
            rank = choose(engine, request)
            admit(wire.Request(request.room, request.attempt, request.wants, request.index, rank, request.decode), now)

        engine.admit = patched

    return change


def _keeps(engine: Engine, which: Callable[[Handoff], bool]) -> None:
    """Aborted hand-offs for which `which` holds are ended without giving back what they have."""
    cancel = engine.cancel
    kept: list[int] = []

    def patched(room: int, now: float) -> None:
        handoff = engine.open.get(room)
        if handoff is None or handoff.slot < 0 or not which(handoff) or len(kept) >= LEAKS_MAX:
            cancel(room, now)
            return
        kept.append(room)
        end, engine._end = engine._end, lambda *_, **__: None
        cancel(room, now)
        engine._end = end

    engine.cancel = patched


def _hold_for_the_dead(engine: Engine) -> None:
    lose = engine.lose_prefill
    engine.lose_prefill = lambda prefill, now, **_: lose(prefill, now, dead=False)


def _pages_never_freed(engine: Engine) -> None:
    release = engine._release
    count = [0, 0]

    def patched(handoff: Handoff) -> None:
        count[0] += 1
        if count[0] % NEVER_FREED_EVERY or count[1] >= LEAKS_MAX:
            release(handoff)
        else:
            count[1] += 1

    engine._release = patched


def _lost_wakeup(engine: Engine) -> None:
    poll, deliver = engine.poll, engine.deliver
    woken: list[int] = []

    def patched(message: wire.Status | wire.Drained) -> None:
        deliver(message)
        if isinstance(message, wire.Status) and message.room in engine.ready:
            if len(woken) == 7:  # one notification wakes one waiter, and it may be another's
                engine.ready.pop(woken.pop(0), None)
            woken.append(message.room)

    def patched_poll(now: float) -> None:
        poll(now)
        woken.clear()

    engine.deliver, engine.poll = patched, patched_poll


def _ignore_peer_loss(engine: Engine) -> None:
    engine.lose_prefill = lambda *_, **__: None


def _cancelled_stays_queued(engine: Engine) -> None:
    fill = engine._fill

    def patched() -> None:
        for handoff in engine.waiting:
            if engine.open.get(handoff.room) is not handoff:
                raise AttributeError("the receiver of a waiting request is None")
        fill()

    engine._fill = patched


def _in_queue(handoff: Handoff) -> bool:
    return handoff.status < 0


def _done(handoff: Handoff) -> bool:
    return handoff.status == SUCCESS


CHANGES: Mapping[str, Callable[[Engine], None]] = {
    "no_timeout": _no_timeout,
    "ignore_failed": _ignore_failed,
    "abort_wrong_key": _abort_wrong_key,
    "strict_status": _strict_status,
    "strict_duplicate": _strict_duplicate,
    "insert_asserts": _insert_asserts,
    "duplicate_clears": _duplicate_clears,
    "rank_zero": _to_rank(lambda engine, request: engine.settings.ranks.of_room(request.prefill, 0)),
    "abort_keeps_slot": lambda engine: _keeps(engine, _in_queue),
    "ready_abort_keeps_pages": lambda engine: _keeps(engine, _done),
    "hold_for_the_dead": _hold_for_the_dead,
    "pages_never_freed": _pages_never_freed,
    "lost_wakeup": _lost_wakeup,
    "ignore_peer_loss": _ignore_peer_loss,
    "cancelled_stays_queued": _cancelled_stays_queued,
    **mutants_ranks.CHANGES,
}


def apply(names: Iterable[str], engine: DecodeEngine) -> None:
    """Change `engine`; names of mutants at prefill are not its own and left alone."""
    for name in names:
        if name in CHANGES:
            CHANGES[name](engine)
