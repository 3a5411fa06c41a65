"""Faults of messages, between a process and its outboxes: delay, drop, duplicate, reorder, partition.

Held messages wait in a bounded heap on the loop's own clock; nothing sleeps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from harness.faults.plan import Rule
from harness.faults.spec import Fault
from harness.history.event import FaultKind, Loss, Role
from harness.history.recorder import Observer
from harness.protocol import wire

Peer = tuple[int, int]
Send = Callable[[Peer, Any, bytes | None], None]
HELD_MAX = 65_536
"""Messages held back at once; above that they go at once."""
_TYPES: dict[str, type] = {
    "request": wire.Request, "exchange": wire.RoomExchange, "status": wire.Status, "drained": wire.Drained,
    "abort": wire.Abort, "result": wire.Result,
}  # fmt: skip
_KINDS = (FaultKind.DELAY, FaultKind.DROP, FaultKind.DUPLICATE, FaultKind.REORDER)
_DIRECTIONS = {"to-prefill": (int(Role.PREFILL),), "to-decode": (int(Role.DECODE),), "both": (1, 2)}


def _loss(peer: Peer, message: Any) -> Loss:
    """What it means that `message` never comes."""
    if isinstance(message, wire.Result) or (isinstance(message, wire.Request) and peer[0] == Role.DECODE):
        return Loss.CLIENT
    return Loss.NEEDED


class Messages:
    """What the scenario's faults do to the messages of one process. `send` really sends."""

    def __init__(self, faults: Iterable[Fault], seed: int, record: Observer, send: Send, *, node: bool = True) -> None:
        """Not armed: everything goes at once. `node`: a prefill or decode node's; partitions lie between those."""
        self._send = send
        self._rules: dict[type, list[Rule]] = {}
        self._partitions: list[Rule] = []
        for fault in faults:
            rule = Rule(fault, seed, record)
            if fault.kind.number in _KINDS:
                self._rules.setdefault(_TYPES[fault.s("message")], []).append(rule)
            elif fault.kind.number is FaultKind.FAIL and fault.s("when") == "silent":
                self._rules.setdefault(wire.Status, []).append(rule)
            elif fault.kind.number is FaultKind.PARTITION and node:
                self._partitions.append(rule)
        self._held: list[tuple[float, int, Peer, Any, bytes | None]] = []
        self._overtaken: list[tuple[list[int], float, Peer, Any, bytes | None]] = []
        self._serial = 0
        self._began = 0.0

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._rules or self._partitions)

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal."""
        self._began = now
        for rule in (*self._partitions, *(rule for rules in self._rules.values() for rule in rules)):
            rule.arm(now, armed=armed)

    def cut_off(self, peer: Peer, now: float) -> Rule | None:
        """The partition that lies between this node and `peer` now."""
        for rule in self._partitions:
            if peer[0] in _DIRECTIONS[rule.fault.s("direction")] and rule.active(now):
                length_s = rule.fault.f("for_ms") * 1e-3
                if (now - self._began) % (rule.fault.f("every_s") + length_s) >= rule.fault.f("every_s"):
                    return rule
        return None

    def send(self, peer: Peer, message: Any, raw: bytes | None, now: float) -> None:
        """Send a message, or do to it what its fault says; the first fault that picks it has it."""
        room = getattr(message, "room", 0)
        cut = self.cut_off(peer, now) if self._partitions else None
        if cut is not None:
            cut.hit(room, c=Loss.NEEDED)
            return
        for rule in self._rules.get(type(message), ()):
            if rule.picks(room, now):
                self._apply(rule, peer, message, raw, now)
                break
        else:
            self._send(peer, message, raw)
        if self._overtaken:
            self._count_down(peer)

    def _apply(self, rule: Rule, peer: Peer, message: Any, raw: bytes | None, now: float) -> None:
        kind, room = rule.fault.kind.number, message.room
        if rule.fault.kind.act is not None:
            self._own(rule, peer, message, raw, now)
            return
        if kind in {FaultKind.DROP, FaultKind.FAIL}:
            rule.hit(room, c=_loss(peer, message))
            return
        delay_s = rule.amount(room, rule.fault.f("ms")) * 1e-3
        if kind is FaultKind.DUPLICATE:
            self._send(peer, message, raw)
        if kind is FaultKind.REORDER:
            delay_s = rule.fault.f("ms") * 1e-3
            rule.hit(room, held_s=delay_s)
            self._overtaken.append(([int(rule.fault.f("by")) + 1], now + delay_s, peer, message, raw))
            return
        rule.hit(room, held_s=delay_s if kind is FaultKind.DELAY else 0.0)
        self._hold(now + delay_s, peer, message, raw)

    def _own(self, rule: Rule, peer: Peer, message: Any, raw: bytes | None, now: float) -> None:
        """A plugin's: it says by how much the message is late, or that it is lost."""
        assert rule.fault.kind.act is not None
        delay_s = rule.fault.kind.act(rule, message)
        if delay_s is None:
            rule.hit(message.room, c=_loss(peer, message))
            return
        rule.hit(message.room, held_s=delay_s)
        self._hold(now + delay_s, peer, message, raw)

    def _hold(self, due: float, peer: Peer, message: Any, raw: bytes | None) -> None:
        if len(self._held) >= HELD_MAX:
            self._send(peer, message, raw)
            return
        self._serial += 1
        heapq.heappush(self._held, (due, self._serial, peer, message, raw))

    def _count_down(self, peer: Peer) -> None:
        """One more message has gone to `peer`: those that enough have overtaken go now."""
        for entry in [entry for entry in self._overtaken if entry[2] == peer]:
            entry[0][0] -= 1
            if entry[0][0] <= 0:
                self._overtaken.remove(entry)
                self._send(*entry[2:])

    def holds(self, kind: type[Any], room: int) -> bool:
        """Whether a message of that class about `room` is held back, and will be sent yet."""
        waiting = [entry[3] for entry in self._held] + [entry[3] for entry in self._overtaken]
        return any(isinstance(message, kind) and message.room == room for message in waiting)

    def flush(self, now: float) -> float:
        """Send what is due; returns how many seconds nothing will be, at most 0.05."""
        while self._held and self._held[0][0] <= now:
            _, _, peer, message, raw = heapq.heappop(self._held)
            self._send(peer, message, raw)
        for entry in [entry for entry in self._overtaken if entry[1] <= now]:
            self._overtaken.remove(entry)
            self._send(*entry[2:])
        if self._overtaken:
            return 0.001
        return min(max(self._held[0][0] - now, 0.0), 0.05) if self._held else 0.05
