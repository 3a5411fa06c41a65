"""Faults that a decode node carries out: aborts at a state of the request, slots and pages taken away for a while."""

from __future__ import annotations

from typing import Any, Protocol

from harness.faults.catalogue import parse_all
from harness.faults.plan import Rule
from harness.history.event import FaultEvent, FaultKind, Role
from harness.history.recorder import Observer
from harness.protocol import wire
from harness.protocol.settings import NodeSettings
from harness.protocol.slots import Pool


class Engine(Protocol):
    """What a fault does to a decode engine."""

    index: int
    slots: Pool
    pages: Pool

    def cancel(self, room: int, now: float) -> None:
        """Give the request up."""


class DecodeFaults:
    """Those of `settings` that are this node's, on `engine` (whose pools are taken from: the reference has them)."""

    def __init__(self, settings: NodeSettings, record: Observer, engine: Any) -> None:
        """Not armed."""
        rules = [Rule(fault, settings.seed, record) for fault in parse_all(settings.faults)]
        self._aborts = [rule for rule in rules if rule.fault.values.get("state") == "exchange"]
        self._starve = [_Starve(rule, engine) for rule in rules if rule.fault.kind.number is FaultKind.STARVE]
        self._engine: Engine = engine

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._aborts or self._starve)

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal."""
        for rule in self._aborts:
            rule.arm(now, armed=armed)
        for starve in self._starve:
            starve.arm(now, armed=armed)

    def step(self, now: float) -> float:
        """Carry on; returns how many seconds there will be nothing to do, at most 0.05."""
        for starve in self._starve:
            starve.step(now)
        return 0.01 if self._starve else 0.05

    def sent(self, message: object, now: float) -> None:
        """A message has gone out: that is a state of its request."""
        if self._aborts and isinstance(message, wire.RoomExchange):
            for rule in self._aborts:
                if rule.picks(message.room, now):
                    rule.hit(message.room)
                    self._engine.cancel(message.room, now)


class _Starve:
    """Takes free slots or pages out of a pool now and then, and gives them back."""

    def __init__(self, rule: Rule, engine: Engine) -> None:
        self._rule, self._engine = rule, engine
        self._taken: list[int] = []
        self._next = 0.0
        self._until = 0.0

    def _pool(self) -> Pool:
        return self._engine.slots if self._rule.fault.s("what") == "slots" else self._engine.pages

    def arm(self, now: float, *, armed: bool) -> None:
        self._rule.arm(now, armed=armed)
        self._next = now + self._rule.fault.f("every_s")
        if not armed:
            self._give(now)

    def step(self, now: float) -> None:
        rule = self._rule
        if self._taken and now >= self._until:
            self._give(now)
        if now < self._next or not (rule.active(now) or self._taken):
            return
        pool, keep = self._pool(), int(rule.fault.f("keep"))
        if not self._taken:
            self._until = now + rule.fault.f("for_ms") * 1e-3
            rule.hit(node=Role.DECODE << 32 | self._engine.index, event=FaultEvent.BEGIN)
        # What comes free is taken too, so that it stays scarce all the time.
        while pool.free_count and pool.size - len(self._taken) > keep:
            self._taken.append(pool.take())

    def _give(self, now: float) -> None:
        if self._taken:
            self._pool().give_many(self._taken)
            self._taken = []
            self._rule.hit(node=Role.DECODE << 32 | self._engine.index, event=FaultEvent.END)
        self._next = now + self._rule.fault.f("every_s")
