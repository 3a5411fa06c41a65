"""The registry gives out indices: the lowest that is free, the same to who asks again, back when its node is gone."""

from __future__ import annotations

from harness.history.event import Role
from harness.node.shell import LOST_S
from harness.node.silence import STALL_S
from harness.protocol import wire
from harness.registry import CLAIM_S, CLAIMS_MAX, RegistryCore

PREFILL, DECODE = int(Role.PREFILL), int(Role.DECODE)


def claim(core: RegistryCore, token: int, now: float = 0.0, role: int = PREFILL) -> int | None:
    return core.claim(wire.Claim(role, token, "tcp://127.0.0.1:1"), now)


def register(core: RegistryCore, index: int, now: float = 0.0, role: int = PREFILL) -> None:
    core.register(wire.Register(role, index, 1, 1, f"tcp://127.0.0.1:{100 + index}"), now)


def test_each_token_gets_the_lowest_free_index_of_its_role() -> None:
    core = RegistryCore()
    assert [claim(core, token) for token in (7, 8, 9)] == [0, 1, 2]
    assert claim(core, 10, role=DECODE) == 0


def test_who_asks_again_gets_the_same() -> None:
    core = RegistryCore()
    assert [claim(core, token) for token in (7, 8, 7, 8, 7)] == [0, 1, 0, 1, 0]
    register(core, 0)
    assert claim(core, 7) == 0


def test_an_index_that_a_node_chose_itself_is_not_given_out() -> None:
    core = RegistryCore()
    register(core, 0)
    register(core, 2)
    assert [claim(core, token) for token in (7, 8)] == [1, 3]


def test_a_node_that_left_gives_its_index_back() -> None:
    core = RegistryCore()
    assert [claim(core, token) for token in (7, 8)] == [0, 1]
    register(core, 0)
    register(core, 1)
    assert core.gone(wire.Gone(PREFILL, 0, 1))
    assert claim(core, 9) == 0


def test_a_node_that_fell_silent_gives_its_index_back() -> None:
    core = RegistryCore()
    assert claim(core, 7) == 0
    register(core, 0)
    assert claim(core, 8, LOST_S) == 1
    assert core.expire(LOST_S + 1)
    assert claim(core, 9, LOST_S + 1) == 0


def test_a_claim_waits_for_its_node_but_not_for_ever() -> None:
    core = RegistryCore()
    assert claim(core, 7) == 0
    assert claim(core, 8, CLAIM_S) == 1
    assert claim(core, 9, CLAIM_S + 1) == 0


def test_a_registered_nodes_claim_does_not_run_out() -> None:
    core = RegistryCore()
    assert claim(core, 7) == 0
    register(core, 0)
    assert claim(core, 8, 10 * CLAIM_S) == 1
    assert claim(core, 7, 10 * CLAIM_S) == 0


def test_claims_are_bounded() -> None:
    core = RegistryCore()
    for token in range(CLAIMS_MAX):
        assert claim(core, token) == token
    assert claim(core, CLAIMS_MAX) is None
    assert claim(core, 5) == 5
    assert claim(core, CLAIMS_MAX, CLAIM_S + 1) == 0


def test_who_was_not_run_itself_gives_nobody_up_for_that() -> None:
    core = RegistryCore()
    register(core, 0, now=1.0)
    register(core, 1, now=LOST_S)
    core.excuse(LOST_S + 2.0, STALL_S)  # no more than a loop that is busy
    assert core.expire(LOST_S + 2.0)
    assert set(core.nodes) == {(PREFILL, 1)}
    core.excuse(3 * LOST_S, 2 * LOST_S)
    assert not core.expire(3 * LOST_S)
    assert core.expire(3 * LOST_S + LOST_S + 0.1)
