"""Which processes of an instance are sent what."""

from __future__ import annotations

from harness.history.event import Role
from harness.protocol import wire
from harness.protocol.ranks import Ranks
from harness.router import ONE_EACH, addressed, choose, serving

RANKS = Ranks(prefill_tp=2, prefill_pp=2, decode_tp=2)
REQUEST = wire.Request(7, 0, 0, 0, 4, 2)
PREFILL, DECODE = int(Role.PREFILL), int(Role.DECODE)


def test_a_request_enters_at_the_first_stage_and_at_every_decode_rank() -> None:
    assert list(addressed(RANKS, (PREFILL, 4), REQUEST)) == [4, 5]
    assert list(addressed(RANKS, (DECODE, 2), REQUEST)) == [2, 3]


def test_every_rank_is_told_that_a_request_is_given_up_and_that_faults_begin() -> None:
    for message in (wire.Cancel(7), wire.Arm(armed=True)):
        assert list(addressed(RANKS, (PREFILL, 4), message)) == [4, 5, 6, 7]
        assert list(addressed(RANKS, (DECODE, 2), message)) == [2, 3]


def test_everything_else_is_for_one_process() -> None:
    assert list(addressed(RANKS, (PREFILL, 6), wire.CensusRequest(1))) == [6]
    assert list(addressed(ONE_EACH, (PREFILL, 6), REQUEST)) == [6]


def test_an_instance_serves_when_all_its_ranks_are_there() -> None:
    there = [(PREFILL, index) for index in (0, 1, 2, 4, 5, 6, 7)] + [(DECODE, 0)]
    assert serving(RANKS, PREFILL, there) == [(PREFILL, 4)]
    assert serving(RANKS, DECODE, there) == []
    assert serving(ONE_EACH, PREFILL, there) == [node for node in there if node[0] == PREFILL]


DP = Ranks(prefill_tp=2, prefill_dp=3, decode_dp=2)
"""A prefill instance has the leaders 0, 2, 4, or 6, 8, 10; a decode instance 0, 1, or 2, 3."""
PREFILLS = [(PREFILL, leader) for leader in range(0, 12, 2)]
DECODES = [(DECODE, leader) for leader in range(4)]


def test_the_room_names_prefills_dp_rank_in_the_instance_whose_turn_it_is() -> None:
    for index in range(20):
        for room in (1, 2, 3, 1 << 62):
            _, leader = choose(DP, "room", PREFILLS, index, room, {})
            assert DP.instance(PREFILL, leader) == index % 2
            assert DP.dp_rank(PREFILL, leader) == room % 3


def test_decodes_dp_ranks_take_turns() -> None:
    chosen = [choose(DP, "room", DECODES, index, 7, {})[1] for index in range(8)]
    assert chosen == [0, 2, 1, 3, 0, 2, 1, 3]


def test_where_the_rooms_rank_is_gone_another_of_its_instance_takes_the_request() -> None:
    there = [node for node in PREFILLS if node[1] != 8]
    chosen = {choose(DP, "room", there, 2 * turn + 1, 1, {})[1] for turn in range(4)}
    assert chosen == {6, 10}


def test_the_rank_with_the_fewest_open_hand_offs_is_chosen_whatever_the_room() -> None:
    is_open = {0: 5, 2: 1, 4: 3, 6: 2, 8: 2, 10: 1}
    assert choose(DP, "least-open", PREFILLS, 0, 3, is_open) == (PREFILL, 2)
    assert choose(DP, "least-open", PREFILLS, 1, 3, is_open) == (PREFILL, 10)
    assert choose(DP, "least-open", DECODES, 0, 3, {0: 1}) == (DECODE, 1)
