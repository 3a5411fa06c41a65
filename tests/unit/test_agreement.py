"""Decode ranks end a request as one: MIN over their votes, whatever each has at the moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from explore.agreeing import Shared, minimum
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_node import mutants_ranks
from decode_node.agreement import CELLS, READY, WAIT, ballot, decided
from decode_node.engines.grouped import GroupedEngine
from harness import scenario
from harness.history.event import Reason, Role
from harness.history.recorder import NullRecorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.transport.base import Ownership

VOTE = st.sampled_from([READY, WAIT, Reason.MISMATCH, Reason.TIMEOUT, Reason.CANCELLED]).map(int)
VOTES = st.dictionaries(st.integers(0, 3 * CELLS), VOTE, max_size=40)


@settings(deadline=None)
@given(VOTES, VOTES)
def test_only_what_both_voted_on_is_decided_and_as_the_lower_vote_says(
    one: dict[int, int], two: dict[int, int]
) -> None:
    found = decided(minimum(ballot(one), ballot(two)))
    assert found.keys() <= one.keys() & two.keys()
    assert all(vote == min(one[index], two[index]) for index, vote in found.items())


@settings(deadline=None)
@given(VOTES)
def test_votes_that_all_ranks_share_are_decided_the_oldest_of_a_cell_first(votes: dict[int, int]) -> None:
    found = decided(minimum(ballot(votes), ballot(votes), ballot(votes)))
    oldest = {index for index in votes if not any(other < index and other % CELLS == index % CELLS for other in votes)}
    assert found == {index: votes[index] for index in oldest if votes[index] != WAIT}


def test_different_requests_in_one_cell_are_not_taken_for_one_another() -> None:
    assert decided(minimum(ballot({5: READY}), ballot({5 + CELLS: int(Reason.TIMEOUT)}))) == {}
    assert decided(minimum(ballot({5: READY}), ballot({}))) == {}


class _Instance:
    """Two decode ranks with four slots each."""

    def __init__(self, guards: str) -> None:
        changes = {"guards": guards, "engine.slots": 4, "topology.prefill_tp": 2, "topology.decode_tp": 2}
        settings = scenario.node_settings(scenario.load(None, changes), Path("unused"), record=False)
        layout = Layout(settings.decode_layout)
        shared = Shared(2)
        self.buffers = [Buffers(Memory.create("test", layout.size_bytes), layout) for _ in range(2)]
        self.engines = [
            GroupedEngine(
                rank, settings, self.buffers[rank], Payload(layout), Ownership(4, enforce=False), NullRecorder(),
                refuses=False, agreement=shared.rank(rank) if settings.guards.min_over_ranks else None,
            )
            for rank in range(2)
        ]  # fmt: skip
        self.now = 0.0

    def admit(self, room: int, index: int, *ranks: int) -> None:
        """A request reaches these ranks."""
        for rank in ranks or (0, 1):
            self.engines[rank].admit(wire.Request(room, 0, 0, index, 0, 0), self.now)

    def status(self, rank: int, room: int, *, row: bool = True) -> None:
        """A prefill rank reports to a decode rank, after its row or before."""
        if row:
            self.buffers[rank].room_words[self.engines[rank].open[room].slot * 8] = room
        self.engines[rank].deliver(wire.Status(room, 4, rank, drained=True))

    def poll(self, times: int = 3) -> None:
        """Both poll in turn."""
        for _ in range(times):
            self.now += 1e-3
            for engine in self.engines:
                engine.poll(self.now)

    def open(self, rank: int) -> set[int]:
        """Rooms that are open at a rank."""
        return set(self.engines[rank].open)

    def results(self) -> list[tuple[int, int]]:
        """(room, reason) told to the driver, by all ranks."""
        found = []
        for engine in self.engines:
            found += [(m.room, m.reason) for (role, _), m in engine.out if role == Role.DRIVER]
        return found


def test_a_commit_waits_for_the_slower_rank_and_rank_0_alone_answers() -> None:
    pair = _Instance("sglang-0.5.20")
    pair.admit(7, 0)
    pair.status(0, 7)
    pair.poll()
    assert pair.open(0) == pair.open(1) == {7}
    pair.status(1, 7)
    pair.poll()
    assert pair.open(0) == pair.open(1) == set()
    assert pair.results() == [(7, 0)]


@pytest.mark.parametrize("aborted", [0, 1])
def test_what_one_rank_aborts_no_other_commits(aborted: int) -> None:
    pair = _Instance("sglang-0.5.20")
    pair.admit(7, 0)
    pair.status(0, 7)
    pair.status(1, 7)
    pair.engines[aborted].cancel(7, pair.now)
    pair.poll()
    assert pair.results() == [(7, Reason.CANCELLED)]
    assert pair.open(0) == pair.open(1) == set()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_need_not_wait_for_the_other_ranks_data(failing: int) -> None:
    pair = _Instance("hardened")
    pair.admit(7, 0)
    pair.poll()
    pair.engines[failing].cancel(7, pair.now)
    pair.poll()
    assert pair.results() == [(7, Reason.CANCELLED)]


def test_without_the_minimum_one_rank_commits_what_another_aborts() -> None:
    pair = _Instance("sglang-0.5.20,-min_over_ranks")
    pair.admit(7, 0)
    pair.status(0, 7)
    pair.status(1, 7)
    pair.engines[1].cancel(7, pair.now)
    pair.poll()
    assert pair.results() == [(7, 0)]
    assert pair.open(1) == set()


def test_ranks_may_have_requests_in_different_slots_and_at_different_times() -> None:
    pair = _Instance("sglang-0.5.20")
    pair.engines[1].slots.take()
    pair.admit(7, 0, 0)
    pair.poll()
    pair.admit(8, 1, 0)
    pair.admit(7, 0, 1)
    pair.admit(8, 1, 1)
    assert pair.engines[0].open[7].slot != pair.engines[1].open[7].slot
    for room in (8, 7):
        pair.status(0, room)
        pair.status(1, room)
    pair.poll()
    assert sorted(pair.results()) == [(7, 0), (8, 0)]


def test_the_gate_keeps_a_rank_without_its_row_from_voting() -> None:
    gated = _Instance("sglang-0.5.13")
    gated.admit(7, 0)
    gated.status(0, 7)
    gated.status(1, 7, row=False)
    gated.poll()
    assert gated.open(0) == gated.open(1) == {7}
    free = _Instance("sglang-0.5.13,-gate_before_min")
    free.admit(7, 0)
    free.status(0, 7)
    free.status(1, 7, row=False)
    free.poll()
    assert free.open(0) == set()
    assert free.open(1) == {7}


def test_a_foreign_row_at_one_rank_aborts_there_alone_where_votes_are_on_the_status() -> None:
    pair = _Instance("sglang-0.5.20")
    pair.admit(7, 0)
    pair.status(0, 7)
    pair.status(1, 7)
    pair.buffers[1].room_words[0] = 99
    pair.poll()
    assert pair.results() == [(7, 0)]
    assert pair.open(1) == set()


def test_a_foreign_row_at_one_rank_aborts_at_all_where_votes_are_on_the_data() -> None:
    pair = _Instance("sglang-0.5.20,+vote_on_data")
    pair.admit(7, 0)
    pair.status(0, 7)
    pair.status(1, 7)
    pair.buffers[1].room_words[0] = 99
    pair.poll()
    assert pair.results() == [(7, Reason.MISMATCH)]
    assert pair.open(0) == pair.open(1) == set()


def test_a_request_that_one_rank_alone_has_ends_within_its_bound() -> None:
    pair = _Instance("hardened")
    pair.admit(7, 0, 0)
    pair.engines[0].cancel(7, pair.now)
    pair.poll()
    assert pair.open(0) == {7}
    pair.now += pair.engines[0].settings.transfer_timeout_s + 1.0
    pair.poll()
    assert pair.open(0) == set()
    assert pair.results() == [(7, Reason.CANCELLED)]


def _mutants(name: str, guards: str = "sglang-0.5.20") -> _Instance:
    pair = _Instance(guards)
    for engine in pair.engines:
        mutants_ranks.CHANGES[name](engine)
    return pair


def test_the_mutant_that_votes_by_place_commits_what_another_rank_aborted() -> None:
    pair = _mutants("votes_by_place")
    for index, room in enumerate((7, 8)):
        pair.admit(room, index)
        pair.status(0, room)
    pair.status(1, 8)
    pair.engines[1].cancel(7, pair.now)
    pair.poll(2)
    assert (7, 0) in pair.results()
    assert pair.engines[1].open.keys() <= {8}


@pytest.mark.parametrize("seen_first_by", [(0,), (1,), (0, 1)])
def test_the_mutant_that_leaves_a_collective_out_hangs_where_queues_differ(seen_first_by: tuple[int, ...]) -> None:
    pair = _mutants("skipped_reduction")
    pair.poll(1)
    for rank in seen_first_by:
        pair.admit(7, 0, rank)
    pair.poll(1)
    for rank in {0, 1} - set(seen_first_by):
        pair.admit(7, 0, rank)
    pair.status(0, 7)
    pair.status(1, 7)
    pair.poll(20)
    assert pair.results() == ([(7, 0)] if len(seen_first_by) == 2 else [])


def test_the_mutant_that_fails_alone_leaves_rank_0_waiting() -> None:
    pair = _mutants("fails_alone", "hardened")
    pair.admit(7, 0)
    for rank in (0, 1):
        pair.engines[rank].deliver(wire.Status(7, 0, rank, drained=True))
    pair.poll()
    pair.now += pair.engines[0].settings.transfer_timeout_s + 1.0
    pair.poll(10)
    assert (pair.open(0), pair.open(1)) == ({7}, set())
