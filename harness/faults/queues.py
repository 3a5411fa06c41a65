"""A queue that is full: while the driver has a node stopped (`fill-queue`), this node fills what waits for it up to ZMQ's high-water mark.

What this node then wants to send there is lost, as `harness.node.post.Outbox` does with a full queue: it does not wait, whoever else wants
something of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

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
    """The `fill-queue` faults of one node. `filler` is what is sent to no purpose; `leaders`: of each role, the nodes that are stopped in turn."""

    def __init__(
        self,
        faults: Iterable[Fault],
        seed: int,
        record: Observer,
        filler: wire.Message,
        leaders: Mapping[int, Sequence[int]],
    ) -> None:
        """Not armed."""
        mine = [fault for fault in faults if fault.kind.number is FaultKind.FILL_QUEUE]
        # `count` bounds how often a node is stopped, not how much is lost then.
        endless = (dataclasses.replace(fault, values={**fault.values, "count": 0.0}) for fault in mine)
        self._rules = [
            (Rule(fault, seed, record), int(own.f("count"))) for fault, own in zip(endless, mine, strict=True)
        ]
        self._filler, self._leaders = filler, leaders
        self._began = 0.0

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._rules)

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal."""
        self._began = now
        for rule, _ in self._rules:
            rule.arm(now, armed=armed)

    def step(self, peers: Mapping[Peer, Outbox], now: float) -> list[Peer]:
        """Fill a little more, if it is time: the driver keeps the same times from the same beginning. Returns whose queue is full."""
        targets = [peer for rule, count in self._rules if (peer := self._target(rule, count, now)) in peers]
        return [peer for peer in targets if peers[peer].fill(self._filler, STEP_MAX)]

    def _target(self, rule: Rule, count: int, now: float) -> Peer:
        """The node that the driver has stopped now, each in turn; one that there is not while it has stopped none."""
        fault = rule.fault
        every_s, length_s = fault.f("every_s"), fault.f("for_ms") * 1e-3
        turn, inside_s = divmod(now - self._began - max(every_s, fault.f("from_s")), every_s + length_s)
        role = _ROLES[fault.s("node")]
        if not rule.active(now) or turn < 0 or inside_s >= length_s or 0 < count <= turn:
            return role, -1
        return role, self._leaders[role][int(turn) % len(self._leaders[role])]

    def lost(self, message: wire.Message) -> None:
        """A message found the queue full."""
        for rule, _ in self._rules:
            rule.hit(getattr(message, "room", 0), c=Loss.NEEDED)
