"""Which processes of an instance are sent what."""

from __future__ import annotations

from harness.history.event import Role
from harness.protocol import wire
from harness.protocol.ranks import Ranks
from harness.router import ONE_EACH, addressed, serving

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
