"""A run on nodes that others started: who is registered decides the topology, and whether memory is shared the transport."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from harness.errors import FieldError, HarnessError
from harness.history.event import Role
from harness.node.address import cluster_tag, host_of, is_named, own, resolved
from harness.node.ask import AGAIN_S, ping
from harness.node.shared import SHARED
from harness.scenario import Scenario, get
from harness.session import Attach


@dataclass(frozen=True)
class Found:
    """What the registry knew when the driver came: how many nodes of each role, and whether they share memory."""

    prefill: int
    decode: int
    shared: bool

    @property
    def defaults(self) -> dict[str, Any]:
        """Scenario fields that follow from it where nobody names them: every node takes part; tcp where memory is not shared."""
        return {
            "topology.prefill": self.prefill,
            "topology.decode": self.decode,
            "transport.name": "shm" if self.shared else "tcp",
        }

    def fitted(self, scenario: Scenario) -> Scenario:
        """`scenario`, if it leaves no registered node without a part; raises FieldError."""
        for field, count in (("topology.prefill", self.prefill), ("topology.decode", self.decode)):
            if get(scenario, field) < count:
                raise FieldError(field, get(scenario, field), f"{count} or more, since {count} are registered")
        return scenario

    def differences(self, asked: Scenario, adopted: Scenario) -> list[str]:
        """Options that make the same of `asked` elsewhere, where nothing is registered."""
        changed = [(field, get(adopted, field)) for field in self.defaults if get(adopted, field) != get(asked, field)]
        return [part for field, value in changed for part in ("--set", f"{field}={value}")]


def found(registry: str, inbox: str, cluster: str, leave_as: str | None, timeout_s: float) -> tuple[Attach, Found]:
    """Ask the registry until a node of each role is there; raises HarnessError when none is in time.

    `leave_as`: the nodes leave after the run only if this is a name of the driver's host (None: always). In compose a driver that
    `up` started has its service's name, one of `run` has not, and what `run` started beside it is to stay.
    Start the driver when every node is registered: those that come later find that the run has begun without them.
    """
    deadline = time.monotonic() + timeout_s
    registry = resolved(registry, timeout_s)
    where = own(inbox, registry)
    while True:
        pong = ping(registry, cluster_tag(cluster), max(deadline - time.monotonic(), AGAIN_S))
        counts = Counter(role for role, _ in pong.peers)
        missing = [role.name.lower() for role in (Role.PREFILL, Role.DECODE) if not counts[role]]
        if not missing:
            there = Found(counts[Role.PREFILL], counts[Role.DECODE], shared=SHARED in pong.peers)
            return Attach(registry, where, cluster, leave_as is None or is_named(host_of(where), leave_as)), there
        if time.monotonic() >= deadline:
            raise HarnessError(f"{registry}: no {' and no '.join(missing)} node registered within {timeout_s:g} s")
        time.sleep(AGAIN_S)
