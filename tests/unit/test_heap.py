"""What is alive is out of the collector's sight, and comes back where the process is not ours alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from harness.node import heap


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_alive_is_not_looked_at_again() -> None:
    mine = [[] for _ in range(1000)]
    heap.freeze()
    assert not any(item is mine for item in gc.get_objects())
    assert gc.get_freeze_count() > 1000


def test_it_comes_back_afterwards() -> None:
    mine = [[]]
    with heap.frozen():
        assert not any(item is mine for item in gc.get_objects())
    assert any(item is mine for item in gc.get_objects())
    assert not gc.get_freeze_count()


def test_what_the_owner_froze_stays_frozen() -> None:
    mine = [[]]
    gc.freeze()
    with heap.frozen():
        pass
    assert not any(item is mine for item in gc.get_objects())
