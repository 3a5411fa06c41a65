"""Faults of processes: kill and start again, stop and continue, slow down. Carried out by the driver on nodes that it started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

from harness.faults.plan import Rule
from harness.faults.spec import Fault
from harness.history.event import FaultEvent, FaultKind, Role
from harness.history.recorder import Observer
from harness.node.link import CLEAR, Weather

Node = tuple[int, int]
PULSE_S = 0.01
_KINDS = (FaultKind.KILL, FaultKind.STOP, FaultKind.SLOW, FaultKind.FILL_QUEUE, FaultKind.LINK)
_ROLES = {
    "prefill": (Role.PREFILL,), "decode": (Role.DECODE,), "any": (Role.PREFILL, Role.DECODE), "registry": (Role.REGISTRY,),
}  # fmt: skip
SERVES_S = 0.5
"""A node that was killed and took long to return serves at least so long before the next kill."""


class Hands:
    """What a process fault needs of the driver."""

    def nodes(self) -> list[Node]:
        """Nodes that serve now, and the registry."""
        raise NotImplementedError

    def pid(self, node: Node) -> int:
        """Process id."""
        raise NotImplementedError

    def kill(self, node: Node) -> None:
        """SIGKILL."""
        raise NotImplementedError

    def revive(self, node: Node) -> bool:
        """Start a killed node again, if the driver has seen its end: else its next life would be taken for it. Returns whether that was done."""
        raise NotImplementedError

    def serving(self, node: Node) -> bool:
        """Whether it takes requests (again)."""
        raise NotImplementedError

    def link(self, weather: Weather) -> None:
        """What the link between the two roles does to packets from now on."""
        raise NotImplementedError


class ProcessFaults:
    """What the scenario's faults do to processes."""

    def __init__(self, faults: Iterable[Fault], seed: int, record: Observer, hands: Hands) -> None:
        """Not armed."""
        mine = [fault for fault in faults if fault.kind.number in _KINDS]
        make: dict[FaultKind, Callable[[Rule, Hands], _Process]] = {
            FaultKind.KILL: _Kill,
            FaultKind.STOP: _Stop,
            FaultKind.SLOW: _Slow,
            FaultKind.FILL_QUEUE: _Stop,
            FaultKind.LINK: _Link,
        }
        self._each = [make[fault.kind.number](Rule(fault, seed, record), hands) for fault in mine]

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._each)

    @property
    def busy(self) -> bool:
        """Whether a node is hit now."""
        return any(fault.node is not None for fault in self._each)

    @property
    def stopped(self) -> set[Node]:
        """Nodes that cannot give a sign of life, though they live."""
        return set().union(*(fault.silent() for fault in self._each if fault.node is not None))

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal: what is stopped goes on, what is killed is started at once."""
        for fault in self._each:
            fault.arm(now, armed=armed)

    def step(self, now: float) -> float:
        """Carry on; returns how many seconds there will be nothing to do, at most 0.05."""
        for fault in self._each:
            fault.step(now, self._hit_by_others(fault))
        return PULSE_S if self._each else 0.05

    def _hit_by_others(self, fault: _Process) -> set[Node]:
        return {other.node for other in self._each if other is not fault and other.node is not None}


class _Process:
    """One fault: now and then it hits a node, for a while."""

    def __init__(self, rule: Rule, hands: Hands) -> None:
        self.node: Node | None = None
        self._rule, self._hands = rule, hands
        self._due = self._until = 0.0
        self._turn = 0

    def arm(self, now: float, *, armed: bool) -> None:
        self._rule.arm(now, armed=armed)
        self._due = now + self._rule.fault.f("every_s")
        self._until = min(self._until, now) if not armed else self._until

    def step(self, now: float, taken: set[Node]) -> None:
        if self.node is not None:
            if self._goes_on(now, self.node):
                return
            self._hit(self.node, FaultEvent.END)
            self.node, self._due = None, self._next(now)
        elif self._rule.active(now) and now >= self._due:
            self._begin(now, taken)

    def _begin(self, now: float, taken: set[Node]) -> None:
        roles = _ROLES[self._rule.fault.s("node")]
        role = roles[self._turn % len(roles)]
        nodes = sorted(node for node in self._hands.nodes() if node[0] == role and node not in taken)
        if not nodes:
            return
        self.node = nodes[self._turn // len(roles) % len(nodes)]
        self._turn += 1
        self._until = now + self._rule.fault.f("for_ms") * 1e-3
        self._hit(self.node, FaultEvent.BEGIN)
        self._strike(self.node)

    def silent(self) -> set[Node]:
        """Nodes that live and are not heard of while this fault hits."""
        return {self.node} if self.node is not None else set()

    def _next(self, now: float) -> float:
        """When the next node is hit, now that one goes on."""
        return now + self._rule.fault.f("every_s")

    def _hit(self, node: Node, event: FaultEvent) -> None:
        self._rule.hit(node=node[0] << 32 | node[1], event=event)

    def _strike(self, node: Node) -> None:
        raise NotImplementedError

    def _goes_on(self, now: float, node: Node) -> bool:
        raise NotImplementedError


class _Kill(_Process):
    _revived = False

    def silent(self) -> set[Node]:
        return set()

    def _next(self, now: float) -> float:
        """So long after the last kill; what a restart takes does not thin them out."""
        every_s = self._rule.fault.f("every_s")
        return max(self._due + every_s, now + min(every_s, SERVES_S))

    def _strike(self, node: Node) -> None:
        self._revived = False
        self._hands.kill(node)

    def _goes_on(self, now: float, node: Node) -> bool:
        if now >= self._until and not self._revived:
            self._revived = self._hands.revive(node)
        return not (self._revived and self._hands.serving(node))


class _Stop(_Process):
    def _strike(self, node: Node) -> None:
        os.kill(self._hands.pid(node), signal.SIGSTOP)

    def _goes_on(self, now: float, node: Node) -> bool:
        if now < self._until:
            return True
        os.kill(self._hands.pid(node), signal.SIGCONT)
        return False


class _Slow(_Process):
    _halted = False
    _toggle = 0.0

    def _strike(self, node: Node) -> None:
        del node  # the first pulse comes with the next step
        self._halted, self._toggle = False, 0.0

    def _goes_on(self, now: float, node: Node) -> bool:
        over = now >= self._until
        if self._halted if over else now >= self._toggle:
            self._toggle = now + PULSE_S
            self._halted = not self._halted
            os.kill(self._hands.pid(node), signal.SIGSTOP if self._halted else signal.SIGCONT)
        return not over


class _Link(_Process):
    """All nodes of the role are hit at once; for as long again after it TCP may still wait before it tries again."""

    _clear = True

    def silent(self) -> set[Node]:
        roles = _ROLES[self._rule.fault.s("node")]
        return {node for node in self._hands.nodes() if node[0] in roles}

    def _hit(self, node: Node, event: FaultEvent) -> None:
        del node
        self._rule.hit(event=event)

    def _strike(self, node: Node) -> None:
        del node
        fault = self._rule.fault
        self._clear = False
        self._hands.link(Weather(fault.f("delay_ms") * 1e-3, fault.f("loss")))

    def _goes_on(self, now: float, node: Node) -> bool:
        del node
        if now >= self._until and not self._clear:
            self._clear = True
            self._hands.link(CLEAR)
        return now < self._until + self._rule.fault.f("for_ms") * 1e-3
