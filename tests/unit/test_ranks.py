"""Who writes what to whom: every byte of every page has exactly one writer."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import scenario
from harness.errors import FieldError
from harness.history.event import Role
from harness.history.threads import rank_of_thread, thread_to
from harness.protocol.guards import PRESETS, parse
from harness.protocol.ranks import Ranks, placeholder, shard

LAYERS, PAGE_BYTES = 5, 136
SIZES = st.builds(
    lambda least, times, wide, pp: Ranks(
        prefill_tp=least if wide else least * times, prefill_pp=pp, decode_tp=least * times if wide else least
    ),
    st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(1, LAYERS),
)  # fmt: skip
"""One of both TP sizes is a multiple of the other."""


@settings(deadline=None)
@given(SIZES, st.integers(0, 2), st.integers(0, 2))
def test_every_byte_of_a_decode_ranks_pages_has_one_writer(ranks: Ranks, at: int, to: int) -> None:
    leader = at * ranks.count(Role.PREFILL)
    for decode in ranks.members(Role.DECODE, to * ranks.decode_tp):
        written: Counter[tuple[int, int]] = Counter()
        writers = ranks.writers(leader, decode)
        for writer in writers:
            assert ranks.rank(Role.DECODE, decode) in ranks.served(writer)
            assert ranks.leader(Role.PREFILL, writer) == leader
            first, end = ranks.share(writer, PAGE_BYTES)
            written.update((layer, byte) for layer in ranks.layers(writer, LAYERS) for byte in range(first, end))
        assert len(writers) == ranks.group * ranks.prefill_pp == len(set(writers))
        assert set(written) == {(layer, byte) for layer in range(LAYERS) for byte in range(PAGE_BYTES)}
        assert set(written.values()) == {1}


@settings(deadline=None)
@given(SIZES)
def test_each_prefill_process_writes_to_the_decode_ranks_that_it_serves(ranks: Ranks) -> None:
    named = Counter(writer for decode in range(ranks.decode_tp) for writer in ranks.writers(0, decode))
    assert named == dict.fromkeys(ranks.members(Role.PREFILL, 0), ranks.fan_out)
    assert 1 in {ranks.group, ranks.fan_out}
    assert ranks.group * ranks.decode_tp == ranks.fan_out * ranks.prefill_tp


def test_one_prefill_rank_serves_neighbours() -> None:
    ranks = Ranks(prefill_tp=2, decode_tp=6, prefill_pp=2)
    assert [list(ranks.served(index)) for index in range(4, 8)] == [[0, 1, 2], [3, 4, 5]] * 2
    assert ranks.writers(4, 6 + 3) == (5, 7)


@given(st.sampled_from(["main", "mover", "recv", "engine"]), st.integers(0, 63), st.integers(2, 9))
def test_streams_of_a_process_that_serves_several_ranks_name_the_rank(thread: str, rank: int, number: int) -> None:
    assert rank_of_thread(thread_to(thread, rank)) == rank
    assert rank_of_thread(f"{thread_to(thread, rank)}-{number}") == rank
    assert rank_of_thread(thread) is rank_of_thread(f"{thread}-{number}") is None


def test_stages_follow_each_other_and_the_last_one_leads() -> None:
    ranks = Ranks(prefill_tp=2, prefill_pp=3)
    second = range(6, 12)
    assert [ranks.stage(index) for index in second] == [0, 0, 1, 1, 2, 2]
    assert [index for index in second if ranks.is_last(index)] == [10, 11]
    assert ranks.next_stage(7) == 9
    assert list(ranks.entries(Role.PREFILL, 6)) == [6, 7]
    assert [ranks.part(index) for index in second] == [0, 1, 0, 1, 0, 1]
    assert ranks.leader(Role.PREFILL, 11) == 6
    assert ranks.writers(9, 0) == tuple(second)


def test_one_rank_each_is_what_it_was() -> None:
    ranks = Ranks()
    assert ranks.single
    assert not Ranks(prefill_pp=2).single
    assert ranks.writers(3, 5) == (3,)
    assert ranks.is_last(3)
    assert ranks.leader(Role.DECODE, 5) == 5
    assert ranks.share(3, 1024) == (0, 1024)
    assert list(ranks.layers(3, 2)) == [0, 1]


def test_payloads_of_ranks_and_stages_differ() -> None:
    marked = {shard(0, rank) for rank in range(64)} | {placeholder(0, stage) for stage in range(64)}
    assert len(marked) == 64 + 64
    assert max(marked) < 1 << 31


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topology.decode_tp": 2, "topology.prefill_tp": 3}, "topology.prefill_tp"),
        ({"topology.decode_tp": 6, "topology.prefill_tp": 4}, "topology.prefill_tp"),
        ({"topology.prefill_pp": 3}, "topology.prefill_pp"),
        ({"topology.prefill_tp": 4, "engine.page_bytes": 24}, "topology.prefill_tp"),
        ({"topology.prefill": 64, "topology.prefill_tp": 8}, "topology.prefill"),
        (
            {"topology.decode": 2, "topology.decode_dp": 64, "topology.prefill_tp": 4, "topology.decode_tp": 4},
            "topology.decode",
        ),
        ({"topology.prefill_dp": 65}, "topology.prefill_dp"),
        ({"topology.prefill_tp": 0}, "topology.prefill_tp"),
        ({"topology.decode_tp": 2, "topology.prefill_tp": 2, "faults": ["kill:node=any"]}, "topology.decode_tp"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        scenario.load(None, changes)
    assert str(caught.value).startswith(f"{field}: ")
    assert "\n" not in str(caught.value)


def test_decode_may_have_more_tp_ranks_than_prefill() -> None:
    topology = scenario.load(None, {"topology.decode_tp": 6, "topology.prefill_tp": 2}).topology
    assert topology.processes == (2, 6)
    assert topology.ranks.fan_out == 3


def test_a_scenario_says_how_many_processes_there_are() -> None:
    changes = {"topology.prefill": 2, "topology.prefill_tp": 4, "topology.prefill_pp": 2, "topology.decode": 3}
    topology = scenario.load(None, {**changes, "topology.decode_tp": 2}).topology
    assert topology.processes == (16, 6)
    assert topology.ranks == Ranks(prefill_tp=4, prefill_pp=2, decode_tp=2)


def test_releases_await_all_ranks_and_take_the_minimum_but_send_the_row_from_every_stage() -> None:
    for name, guards in PRESETS.items():
        assert guards.await_all_ranks, name
        assert guards.min_over_ranks, name
        assert guards.count_destinations, name
        assert guards.named_dp_rank is (name == "hardened"), name
        assert guards.last_stage_aux is guards.vote_on_data is (name == "hardened"), name
    assert not parse("sglang-0.5.12").gate_before_min
    assert parse("sglang-0.5.13").gate_before_min


@settings(deadline=None)
@given(SIZES, st.integers(1, 5), st.integers(1, 5), st.integers(0, 500), st.integers(1, (1 << 63) - 1))
def test_data_parallel_ranks_are_groups_one_behind_the_other(
    sizes: Ranks, prefill_dp: int, decode_dp: int, index: int, room: int
) -> None:
    ranks = msgspec.structs.replace(sizes, prefill_dp=prefill_dp, decode_dp=decode_dp)
    for role, dp in ((Role.PREFILL, prefill_dp), (Role.DECODE, decode_dp)):
        instance, rank = ranks.instance(role, index), ranks.dp_rank(role, index)
        assert ranks.leader(role, index) == (instance * dp + rank) * ranks.count(role)
        assert 0 <= rank < dp
        assert {ranks.dp_rank(role, member) for member in ranks.members(role, index)} == {rank}
    named = ranks.of_room(index, room)
    assert named == ranks.leader(Role.PREFILL, named)
    assert ranks.instance(Role.PREFILL, named) == ranks.instance(Role.PREFILL, index)
    assert ranks.dp_rank(Role.PREFILL, named) == room % prefill_dp


def test_data_parallel_ranks_multiply_the_processes_and_are_named() -> None:
    changes = {"topology.prefill": 2, "topology.prefill_dp": 3, "topology.prefill_tp": 2, "topology.decode_dp": 2}
    topology = scenario.load(None, changes).topology
    assert topology.processes == (12, 2)
    names = topology.ranks.names(topology.prefill, topology.decode)
    assert len(names) == 14
    assert names["prefill-9"] == "instance 1, dp 1, stage 0, tp 1"
    assert names["decode-1"] == "instance 0, dp 1, tp 0"
    assert Ranks(decode_dp=2).names(1, 1) == {
        "prefill-0": "instance 0, stage 0, tp 0",
        "decode-0": "instance 0, dp 0, tp 0",
        "decode-1": "instance 0, dp 1, tp 0",
    }


def test_processes_are_told_apart_in_results() -> None:
    names = Ranks(prefill_tp=2, prefill_pp=2, decode_tp=2).names(2, 1)
    assert len(names) == 8 + 2
    assert names["prefill-7"] == "instance 1, stage 1, tp 1"
    assert names["decode-1"] == "instance 0, tp 1"
    assert Ranks().names(4, 4) == {}
