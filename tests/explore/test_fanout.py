"""A prefill rank that serves two decode ranks: every order of the request, both transfer infos, aborts, repeats and the ends of both writes."""

from __future__ import annotations

from collections import Counter

import pytest

from .fan import ABORT, CANCEL, EXCHANGE, REQUEST, Script, orders, settings_of

ASK: Script = {"router": [REQUEST], "decode 0": [EXCHANGE[0]], "decode 1": [EXCHANGE[1]]}
TWICE: Script = {**ASK, "decode 0": [EXCHANGE[0], EXCHANGE[0]]}
SCRIPTS: dict[str, Script] = {
    "all is well": ASK,
    "an info comes twice": TWICE,
    "each info comes twice": {**TWICE, "decode 1": [EXCHANGE[1], EXCHANGE[1]]},
    "one rank gives up": {**ASK, "decode 1": [EXCHANGE[1], ABORT[1]]},
    "one rank gives up, and says so twice": {**ASK, "decode 0": [EXCHANGE[0], ABORT[0], ABORT[0]]},
    "both give up": {**ASK, "decode 0": [EXCHANGE[0], ABORT[0]], "decode 1": [EXCHANGE[1], ABORT[1]]},
    "an abort overtakes its info": {**ASK, "decode 0": [ABORT[0], EXCHANGE[0]]},
    "the other's info never comes": {"router": [REQUEST], "decode 0": [EXCHANGE[0], ABORT[0]], "decode 1": []},
    "the client gives up": {**ASK, "client": [CANCEL]},
    "the client and one rank give up": {**ASK, "decode 1": [EXCHANGE[1], ABORT[1]], "client": [CANCEL]},
    "an info comes twice, and its rank gives up": {**ASK, "decode 0": [EXCHANGE[0], EXCHANGE[0], ABORT[0]]},
}


def _wrong(script: Script, guards: str) -> Counter[str]:
    found: Counter[str] = Counter()
    ended = 0
    for _, fan in orders(script, settings_of(guards)):
        ended += 1
        found.update(set(fan.judge()))
    assert ended >= 3
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_rank_is_written_once_after_all_are_there_and_told_its_own_end(name: str) -> None:
    assert _wrong(SCRIPTS[name], "hardened") == {}


def test_messages_that_are_counted_instead_of_ranks_begin_a_room_without_one_of_them() -> None:
    found = _wrong(TWICE, "hardened,-count_destinations")
    assert found["a write before all were there"]
    assert found["a rank that is told nothing"]


def test_without_a_repeat_that_mutant_does_no_harm() -> None:
    assert _wrong(ASK, "hardened,-count_destinations") == {}
