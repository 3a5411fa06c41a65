"""The faults of one run as the driver carries them out: traffic, processes, its own messages; and the return of nodes that were killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.cluster import Cluster, Member
from harness.errors import HarnessError
from harness.faults.messages import Messages
from harness.faults.process import Hands, ProcessFaults
from harness.faults.spec import Fault
from harness.faults.traffic import Traffic
from harness.history.event import NodeEvent, Role, Verb
from harness.load import Load
from harness.node.link import Weather
from harness.node.shell import REGISTRY
from harness.protocol import wire

if TYPE_CHECKING:
    from harness.driver import Driver

Node = tuple[int, int]


class Nemesis:
    """See the module. Used by one driver for one run."""

    def __init__(self, faults: Sequence[Fault], seed: int, driver: Driver, load: Load, answer_s: float) -> None:
        """Not armed."""
        record = driver.record
        self._driver = driver
        self._now = 0.0
        self._armed = False
        self.away: set[Node] = set()
        """Nodes that were killed and do not serve again yet."""
        self._awaited: set[Node] = set()
        self.messages = Messages(faults, seed, record, driver.send, node=False)
        post = self._post if self.messages.any else driver.send
        self.traffic = Traffic(faults, seed, record, post=post, burst=load.burst, answer_s=answer_s)
        self.hands = _Hands(self, driver)
        self.processes = ProcessFaults(faults, seed, record, self.hands)

    @property
    def busy(self) -> bool:
        """Whether anything is still to heal, or a probe to be answered."""
        return self.processes.busy or bool(self.away) or self.traffic.unanswered > 0

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal, at every node."""
        self._armed = armed
        for part in (self.messages, self.traffic, self.processes):
            part.arm(now, armed=armed)
        for role in (Role.PREFILL, Role.DECODE):
            for node in self._driver.workers(role):
                self._driver.send(node, wire.Arm(armed))

    def heal(self, timeout_s: float) -> None:
        """Have the faults heal, and wait until every node serves again; raises HarnessError when one does not."""
        driver, deadline = self._driver, time.monotonic() + timeout_s
        self.arm(time.monotonic(), armed=False)
        while self.busy and not driver.lost:
            if driver.pump(self.step(time.monotonic())) > deadline:
                logs = driver.cluster.logs
                raise HarnessError(f"a node did not serve again within {timeout_s:g} s of its fault; see {logs}")

    def step(self, now: float) -> float:
        """Carry on; returns how many seconds there will be nothing to do, at most 0.05."""
        self._now = now
        if self.away:
            self._welcome()
        return min(self.messages.flush(now), self.traffic.step(now), self.processes.step(now))

    def _post(self, node: Node, message: wire.Message) -> None:
        self.messages.send(node, message, None, self._now)

    # Nodes that are killed ------------------------------------------------------------------------------------------

    def ended(self, node: Node) -> None:
        """The driver saw a killed node's end."""
        if node == REGISTRY:
            return  # nobody has to be told, and no session ends with it
        if node[0] == Role.DECODE:
            self.traffic.forget(node[1])
        elif node in self.away:
            # Every decode must open its session anew, and says so.
            self._awaited = {other for other in self._driver.ready if other[0] == Role.DECODE}
            for other in self._awaited:
                self._driver.ready.pop(other, None)
        self._awaited.add(node)
        self._driver.ready.pop(node, None)

    def registered(self, node: Node) -> None:
        """A node is there: if it was killed, it is configured as before."""
        if node in self.away:
            self._driver.ready.pop(node, None)
            self._driver.send(node, wire.Configure(self._driver.settings))

    def listed(self, topology: wire.Topology) -> None:
        """What the registry knows: one that was killed serves again once all that are there have registered anew."""
        if REGISTRY not in self.away:
            return
        member = self.hands.member(REGISTRY)
        if member.expected:
            return  # sent before its end
        known = {((node.role, node.index), node.incarnation) for node in topology.nodes}
        if topology.incarnation == member.incarnation and known >= self._driver.registered:
            value, pid = REGISTRY[0] << 32, int(member.process.pid)
            self._driver.record.event(Verb.NODE, code=NodeEvent.UP, flags=1, value=value, b=pid)
            self.away.discard(REGISTRY)

    def _welcome(self) -> None:
        """Take back the nodes that serve again."""
        ready = self._driver.ready
        for node in list(self.away):
            if ready.get(node):
                raise HarnessError(f"{Role(node[0]).name.lower()}-{node[1]}: {ready[node]}")
        if self._awaited and all(node in ready for node in self._awaited):
            for node in self.away & self._awaited:
                self._driver.send(node, wire.Arm(self._armed))
                self.away.discard(node)
            self._awaited.clear()


class _Hands(Hands):
    """On the driver's cluster."""

    def __init__(self, nemesis: Nemesis, driver: Driver) -> None:
        self._nemesis, self._driver = nemesis, driver

    def nodes(self) -> list[Node]:
        return [*self._driver.workers(Role.PREFILL), *self._driver.workers(Role.DECODE), REGISTRY]

    def member(self, node: Node) -> Member:
        """Its process, the latest; raises HarnessError for one that others started."""
        found = [member for member in self._driver.cluster.members if (int(member.role), member.index) == node]
        if not found:
            raise HarnessError("process faults need nodes that this run has started")
        return found[-1]

    def pid(self, node: Node) -> int:
        return int(self.member(node).process.pid or 0)

    def kill(self, node: Node) -> None:
        member = self.member(node)
        self._nemesis.away.add(node)
        member.expected = True
        member.process.kill()

    def revive(self, node: Node) -> bool:
        member, cluster = self.member(node), self._driver.cluster
        assert isinstance(cluster, Cluster)
        if member.reaped:
            cluster.start(member.role, member.index, member.incarnation + 1)
        return member.reaped

    def link(self, weather: Weather) -> None:
        cluster = self._driver.cluster
        assert isinstance(cluster, Cluster)
        assert cluster.link is not None
        cluster.link.change(weather)

    def serving(self, node: Node) -> bool:
        return node not in self._nemesis.away
