"""Pools of slots and pages."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.protocol.slots import POLICIES, Pool


def _cycle(policy: str) -> list[int]:
    """What is handed out after 0, 1, 2 were taken and 1, 0 given back, of four."""
    pool = Pool(4, policy)
    first = pool.take_many(3)
    pool.give_many([first[1], first[0]])
    return [*first, *pool.take_many(3)]


def test_fifo_reuses_last_what_was_freed_last() -> None:
    assert _cycle("fifo") == [0, 1, 2, 3, 1, 0]


def test_lifo_reuses_at_once() -> None:
    assert _cycle("lifo") == [3, 2, 1, 3, 2, 0]


def test_random_depends_on_the_seed_and_hands_out_everything() -> None:
    orders = [Pool(50, "random", seed).take_many(50) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != list(range(50))
    assert all(sorted(order) == list(range(50)) for order in orders)


@given(
    st.sampled_from(POLICIES),
    st.integers(1, 12),
    st.integers(0, 5),
    st.lists(st.integers(0, 30), max_size=60),
)
def test_an_index_is_free_or_held_never_both(policy: str, size: int, seed: int, steps: list[int]) -> None:
    pool, held = Pool(size, policy, seed), deque[int]()
    for step in steps:
        if step % 2 and held:
            held.rotate(step)
            pool.give(held.popleft())
        elif len(held) < size:
            index = pool.take()
            assert 0 <= index < size
            assert index not in held
            held.append(index)
        assert (pool.held_count, pool.free_count) == (len(held), size - len(held))


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_pool_raises_and_takes_nothing(policy: str) -> None:
    pool = Pool(3, policy)
    with pytest.raises(IndexError, match="4 wanted, 3 free"):
        pool.take_many(4)
    assert pool.free_count == 3
    pool.take_many(3)
    with pytest.raises(IndexError):
        pool.take()
    assert pool.held_count == 3


@pytest.mark.parametrize("policy", POLICIES)
def test_a_double_free_is_refused_and_changes_nothing(policy: str) -> None:
    pool = Pool(3, policy)
    index = pool.take()
    pool.give(index)
    with pytest.raises(HarnessError, match=f"index {index} freed twice"):
        pool.give(index)
    assert pool.free_count == 3
    assert sorted(pool.take_many(3)) == [0, 1, 2]
    with pytest.raises(HarnessError, match="freed twice"):
        Pool(2, policy).give(1)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_that_was_never_there_is_refused(index: int) -> None:
    pool = Pool(3, "fifo")
    pool.take_many(3)
    with pytest.raises(HarnessError):
        pool.give(index)
