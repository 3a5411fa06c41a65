"""A queue that is full: while the driver has a node stopped (`fill-queue`), this node fills what waits for it up to ZMQ's high-water mark.

What this node then wants to send there is lost, as `harness.node.post.Outbox` does with a full queue: it does not wait, whoever else wants
something of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.faults.plan import Rule
from harness.faults.spec import Fault
from harness.history.event import FaultKind, Loss, Role
from harness.history.recorder import Observer
from harness.node.post import Outbox
from harness.protocol import wire

Peer = tuple[int, int]
STEP_MAX = 4096
"""Messages a step: a loop that fills for a second would be the fault itself."""
_ROLES = {"prefill": int(Role.PREFILL), "decode": int(Role.DECODE)}


class Queues:
    """The `fill-queue` faults of one node. `filler` is what is sent to no purpose; `count` says how many nodes a role has."""

    def __init__(
        self, faults: Iterable[Fault], seed: int, record: Observer, filler: wire.Message, count: Callable[[int], int]
    ) -> None:
        """Not armed."""
        mine = [fault for fault in faults if fault.kind.number is FaultKind.FILL_QUEUE]
        self._rules = [Rule(fault, seed, record) for fault in mine]
        self._filler, self._count = filler, count
        self._began = 0.0
        self.full: Peer | None = None
        """The peer whose queue is full now."""

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._rules)

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal."""
        self._began, self.full = now, None
        for rule in self._rules:
            rule.arm(now, armed=armed)

    def step(self, peers: Mapping[Peer, Outbox], now: float) -> None:
        """Fill a little more, if it is time: the driver keeps the same times from the same beginning."""
        self.full = None
        for rule in self._rules:
            peer = self._target(rule, now)
            outbox = peers.get(peer) if peer is not None else None
            if outbox is not None and outbox.fill(self._filler, STEP_MAX):
                self.full = peer

    def _target(self, rule: Rule, now: float) -> Peer | None:
        """The node that the driver has stopped now: each in turn."""
        every_s, length_s = rule.fault.f("every_s"), rule.fault.f("for_ms") * 1e-3
        turn, inside_s = divmod(now - self._began, every_s + length_s)
        if not rule.active(now) or inside_s < every_s:
            return None
        role = _ROLES[rule.fault.s("node")]
        return role, int(turn) % self._count(role)

    def lost(self, message: wire.Message) -> None:
        """A message found the queue full."""
        for rule in self._rules:
            rule.hit(getattr(message, "room", 0), c=Loss.NEEDED)
