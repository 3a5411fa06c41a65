"""Who is silent, and who could not be heard."""

from __future__ import annotations

import math

import pytest

from harness.history.event import Role
from harness.node.shell import LOST_S
from harness.node.silence import STALL_S, excuse
from harness.protocol import wire
from harness.registry import Registry, RegistryCore


@pytest.mark.parametrize(
    ("late_s", "seen"),
    [(STALL_S, {"a": 1.0, "b": 99.0}), (60.0, {"a": 61.0, "b": 100.0}), (1e6, {"a": 100.0, "b": 100.0})],
)
def test_time_in_which_nobody_listened_is_no_silence(late_s: float, seen: dict[str, float]) -> None:
    heard = {"a": 1.0, "b": 99.0}
    excuse(heard, 100.0, late_s)
    assert heard == seen


def test_a_registry_that_was_not_run_drops_nobody() -> None:
    registry = object.__new__(Registry)
    registry.core, registry.peers = RegistryCore(), {}
    registry.role, registry.index, registry.incarnation = Role.REGISTRY, 0, 1
    registry._parent_fd, registry._leave_at, registry._next_beat = None, math.inf, 1.0
    registry.core.register(wire.Register(Role.DECODE, 0, 1, 7, "tcp://127.0.0.1:9"), 1.0)
    registry._beat(1.0 + LOST_S + 60)
    assert len(registry.core.nodes) == 1
    registry._next_beat = now = 1.0 + 3 * LOST_S + 60
    registry._beat(now)
    assert not registry.core.nodes
