"""What an engine team writes in its own repository, word for word: see test_foreign.py and docs/pytest.md."""

import pytest


@pytest.mark.integration
@pytest.mark.handoff(guards="hardened", transport="tcp", requests=20_000, concurrency=64, slots=16)
def test_slot_reuse(handoff_run):
    handoff_run().assert_valid()


@pytest.mark.parametrize("slots", [1, 4, 32])
def test_small_pools(handoff_cluster, slots):
    with handoff_cluster(slots=slots) as cluster:
        result = cluster.stress(requests=5_000)
        assert result.false_aborts == 0
