"""One prefill rank and two decode ranks that agree: random orders of every message, write and poll, with losses, repeats and aborts."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.history.event import Reason
from harness.protocol import wire

from .instance import CLIENT, PREFILL, RANKS, ROOMS, Instance

ORDER = st.lists(st.integers(0, 1 << 16), min_size=10, max_size=90)
MISHAPS = st.dictionaries(
    st.integers(0, 60), st.sampled_from(["lose", "repeat", "cancel", "cancel at one"]), max_size=3
)


def _mishap(instance: Instance, what: str, choice: int) -> None:
    """Something goes wrong with one message between the nodes, or a client gives a request up."""
    room = ROOMS[choice % len(ROOMS)]
    if what.startswith("cancel"):
        for to in (PREFILL, *RANKS) if what == "cancel" else (choice % 2,):
            instance.post(CLIENT, to, wire.Cancel(room))
        return
    queues = [queue for (sender, _), queue in sorted(instance.queues.items()) if queue and sender != CLIENT]
    if queues:
        queue = queues[choice % len(queues)]
        if what == "lose":
            queue.pop(0)
        else:
            queue.append(queue[0])


def _run(instance: Instance, order: list[int], mishaps: dict[int, str]) -> list[str]:
    for step, choice in enumerate(order):
        if step in mishaps:
            _mishap(instance, mishaps[step], choice)
        actions = instance.actions()
        instance.do(*actions[choice % len(actions)])
    instance.rest()
    return instance.judge()


@settings(deadline=None, max_examples=150)
@given(ORDER, MISHAPS)
def test_every_request_ends_the_same_at_both_ranks_and_nothing_is_kept(
    order: list[int], mishaps: dict[int, str]
) -> None:
    with closing(Instance("hardened")) as instance:
        assert _run(instance, order, mishaps) == []
        if not mishaps:
            assert list(instance.results.values()) == [[0]] * len(ROOMS)


@pytest.mark.parametrize("rank", RANKS)
def test_a_lost_transfer_info_ends_the_request_with_a_reason_in_its_bound(rank: int) -> None:
    with closing(Instance("hardened")) as instance:
        _admit(instance)
        queue = instance.queues[rank, PREFILL]
        lost = queue.pop(0)
        assert isinstance(lost, wire.RoomExchange)
        instance.rest()
        assert instance.judge() == []
        assert instance.results == {ROOMS[0]: [Reason.TIMEOUT], ROOMS[1]: [0], ROOMS[2]: [0]}


@pytest.mark.parametrize(("guards", "reason"), [("hardened", 0), ("hardened,-count_destinations", Reason.TIMEOUT)])
def test_a_transfer_info_that_comes_twice(guards: str, reason: int) -> None:
    with closing(Instance(guards)) as instance:
        _admit(instance)
        queue = instance.queues[0, PREFILL]
        queue.insert(0, queue[0])
        for _ in range(2):
            instance.do("deliver", (0, PREFILL))
        instance.rest()
        assert instance.judge() == []
        assert instance.results == {ROOMS[0]: [reason], ROOMS[1]: [0], ROOMS[2]: [0]}


@pytest.mark.parametrize(
    ("guards", "found"), [("hardened", []), ("hardened,-repeat_abort", ["SLOTS held", "ROOMS held"])]
)
def test_a_lost_drain_notice_of_one_rank_is_that_ranks_affair(guards: str, found: list[str]) -> None:
    with closing(Instance(guards)) as instance:
        _admit(instance)
        for rank in RANKS:
            instance.do("deliver", (rank, PREFILL))
        assert len(instance.pending) == len(RANKS)
        for to in RANKS:
            instance.post(CLIENT, to, wire.Cancel(ROOMS[0]))
            instance.do("deliver", (CLIENT, to))
        for rank in (*RANKS, *RANKS):
            instance.do("poll", rank)
        for rank in RANKS:
            instance.do("deliver", (rank, PREFILL))  # the other request's info: one of each rank is there now
            instance.do("deliver", (rank, PREFILL))
        for at in (1, 0):
            instance.do("land", at)
        lost = instance.queues[PREFILL, 1].pop(0)
        assert isinstance(lost, wire.Drained)
        instance.rest()
        assert instance.judge() == found
        assert instance.results == {ROOMS[0]: [Reason.CANCELLED], ROOMS[1]: [0], ROOMS[2]: [0]}


def _admit(instance: Instance) -> None:
    """All that the client sent has come; the first two requests have slots at both ranks."""
    for to in (PREFILL, *RANKS):
        for _ in ROOMS:
            instance.do("deliver", (CLIENT, to))
