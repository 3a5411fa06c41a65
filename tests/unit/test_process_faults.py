"""When nodes are killed and started again, and when they serve again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster import Member
from harness.faults.catalogue import parse_all
from harness.faults.process import SERVES_S, Hands, ProcessFaults
from harness.history.event import FaultEvent, NodeEvent, Role, Verb
from harness.nemesis import Nemesis
from harness.node.link import CLEAR, Weather
from harness.protocol import wire
from harness.registry import RegistryCore

REGISTRY = (int(Role.REGISTRY), 0)
NODES = [(int(role), index) for role in (Role.PREFILL, Role.DECODE) for index in (0, 1)] + [REGISTRY]


class _Record(list):
    def event(self, verb: int, room: int = 0, **fields: Any) -> None:
        self.append((verb, fields))


class _Cluster(Hands):
    """Nodes that end when told to, and serve again when told to."""

    def __init__(self) -> None:
        self.killed: list[tuple[int, int]] = []
        self.ended = True
        self.back = True
        self.revived = 0
        self.weather: list[Weather] = []

    def link(self, weather: Weather) -> None:
        self.weather.append(weather)

    def nodes(self) -> list[tuple[int, int]]:
        return NODES

    def kill(self, node: tuple[int, int]) -> None:
        self.killed.append(node)

    def revive(self, node: tuple[int, int]) -> bool:
        self.revived += self.ended
        return self.ended

    def serving(self, node: tuple[int, int]) -> bool:
        return self.back


def _armed(fault: str) -> tuple[ProcessFaults, _Cluster, _Record]:
    hands, record = _Cluster(), _Record()
    faults = ProcessFaults(parse_all([fault]), 1, record, hands)
    faults.arm(0.0, armed=True)
    return faults, hands, record


def _kills(faults: ProcessFaults, hands: _Cluster, until_s: float) -> list[float]:
    """Times of the kills of a node that is back at the next step."""
    found = []
    for step in range(int(until_s * 20)):
        before = len(hands.killed)
        faults.step(step / 20)
        found += [step / 20] * (len(hands.killed) - before)
    return found


def test_kills_come_so_many_seconds_after_each_other() -> None:
    faults, hands, _ = _armed("kill:node=any,every_s=3")
    assert _kills(faults, hands, 13) == pytest.approx([3, 6, 9, 12], abs=0.2)


def test_a_node_that_is_back_late_serves_before_the_next_kill() -> None:
    faults, hands, _ = _armed("kill:node=prefill,every_s=1")
    hands.back = False
    faults.step(1.0)
    faults.step(7.0)
    hands.back = True
    faults.step(7.1)
    faults.step(7.1 + SERVES_S / 2)
    assert len(hands.killed) == 1
    faults.step(7.2 + SERVES_S)
    assert len(hands.killed) == 2


def test_nothing_is_started_in_a_nodes_place_before_its_end_was_seen() -> None:
    faults, hands, record = _armed("kill:node=decode,every_s=1")
    hands.ended = False
    for now in (1.0, 1.1, 1.2):
        faults.step(now)
    assert (hands.revived, faults.busy) == (0, True)
    hands.ended = True
    faults.step(1.3)
    assert hands.revived == 1
    assert [fields["code"] for _, fields in record] == [FaultEvent.BEGIN, FaultEvent.END]


@pytest.mark.parametrize(
    ("node", "roles"),
    [("registry", {Role.REGISTRY}), ("any", {Role.PREFILL, Role.DECODE}), ("prefill", {Role.PREFILL})],
)
def test_only_what_was_named_is_killed(node: str, roles: set[Role]) -> None:
    faults, hands, _ = _armed(f"kill:node={node},every_s=1")
    _kills(faults, hands, 9)
    assert {role for role, _ in hands.killed} == roles


def test_a_link_is_bad_for_a_while_and_hits_all_nodes_until_tcp_has_tried_again() -> None:
    faults, hands, record = _armed("link:node=prefill,every_s=1,for_ms=500,loss=0.5,delay_ms=20")
    silent = []
    for now in (1.0, 1.4, 1.6, 1.9, 2.1):
        faults.step(now)
        silent.append(faults.stopped)
    assert hands.weather == [Weather(0.02, 0.5), CLEAR]
    assert silent == [set(NODES[:2])] * 4 + [set()]
    assert [(fields["code"], fields["value"]) for _, fields in record] == [(FaultEvent.BEGIN, 0), (FaultEvent.END, 0)]


def test_a_link_heals_at_once_when_the_load_ends() -> None:
    faults, hands, _ = _armed("link:every_s=1,for_ms=2000")
    faults.step(1.0)
    faults.arm(1.1, armed=False)
    faults.step(1.2)
    assert hands.weather == [Weather(0.0, 1.0), CLEAR]


def _nemesis() -> tuple[Nemesis, _Record]:
    member = Member(Role.REGISTRY, 0, 2, SimpleNamespace(pid=5), Path())
    record = _Record()
    driver: Any = SimpleNamespace(
        record=record, send=None, ready={}, registered={(NODES[0], 1), (NODES[2], 4)}, cluster=SimpleNamespace(members=[member])
    )  # fmt: skip
    nemesis = Nemesis([], 1, driver, SimpleNamespace(burst=None), 1.0)  # type: ignore[arg-type]
    nemesis.away.add(REGISTRY)
    return nemesis, record


def _topology(*nodes: tuple[tuple[int, int], int], incarnation: int = 2) -> wire.Topology:
    core = RegistryCore(incarnation)
    for (role, index), life in nodes:
        core.register(wire.Register(role, index, life, 1, "ipc://@x"), 0.0)
    return core.topology()


@pytest.mark.parametrize(
    "topology",
    [
        _topology((NODES[0], 1)),
        _topology((NODES[0], 1), (NODES[2], 3)),
        _topology((NODES[0], 1), (NODES[2], 4), incarnation=1),
    ],
)
def test_a_registry_that_does_not_know_all_yet_is_still_away(topology: wire.Topology) -> None:
    nemesis, record = _nemesis()
    nemesis.listed(topology)
    assert (nemesis.away, record) == ({REGISTRY}, [])


def test_what_a_registry_said_before_its_end_does_not_count() -> None:
    nemesis, record = _nemesis()
    nemesis.hands.member(REGISTRY).expected = True
    nemesis.listed(_topology((NODES[0], 1), (NODES[2], 4)))
    assert (nemesis.away, record) == ({REGISTRY}, [])


def test_a_registry_that_knows_all_that_are_there_serves() -> None:
    nemesis, record = _nemesis()
    nemesis.listed(_topology((NODES[0], 1), (NODES[2], 4), (NODES[1], 1)))
    assert nemesis.away == set()
    (event,) = record
    assert event == (Verb.NODE, {"code": NodeEvent.UP, "flags": 1, "value": Role.REGISTRY << 32, "b": 5})


def test_the_end_of_the_registry_makes_nobody_open_its_sessions_anew() -> None:
    nemesis, _ = _nemesis()
    nemesis.ended(REGISTRY)
    nemesis._welcome()
    assert nemesis.away == {REGISTRY}
