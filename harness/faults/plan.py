"""What a fault does to which room: a pure function of (seed, fault, room), so that every process draws the same without telling the others."""

from __future__ import annotations

from harness.faults.catalogue import parse_all
from harness.faults.spec import Fault
from harness.history.event import FaultEvent, Verb
from harness.history.recorder import Observer
from harness.protocol.rooms import NO_ROOM, draw, is_room
from harness.protocol.settings import NodeSettings

_FAULT, _AMOUNT = 31, 32
_UNIT = 1.0 / (1 << 64)
_HIT = int(FaultEvent.HIT)
_VERB = int(Verb.FAULT)


class Rule:
    """One fault as one process carries it out. Times in monotonic seconds."""

    def __init__(self, fault: Fault, seed: int, record: Observer) -> None:
        """Not armed."""
        self.fault = fault
        self.hits = 0
        self._seed = seed
        self._record = record
        self._threshold = int(float(fault.values.get("fraction", 1.0)) * (1 << 64))
        self._count = int(fault.f("count"))
        self._from = self._until = 0.0

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal."""
        self._from, self._until = (now + self.fault.f("from_s"), now + self.fault.f("until_s")) if armed else (0.0, 0.0)

    def active(self, now: float) -> bool:
        """Whether anything may be done now."""
        return self._from <= now < self._until and not (self._count and self.hits >= self._count)

    def picks(self, room: int, now: float) -> bool:
        """Whether this room is to be hit now."""
        return self.active(now) and draw(self._seed, _FAULT, self.fault.number, room & (1 << 64) - 1) < self._threshold

    def amount(self, room: int, most: float) -> float:
        """A number from 0 to `most` for this room."""
        return draw(self._seed, _AMOUNT, self.fault.number, room & (1 << 64) - 1) * _UNIT * most

    def hit(
        self, room: int = 0, *, node: int = 0, held_s: float = 0.0, event: int = _HIT, b: int = 0, c: int = 0
    ) -> None:
        """Record that it was done; `node` is role << 32 | index. What is no room, as another fault has it on purpose, is recorded as 0."""
        self.hits += event in {FaultEvent.HIT, FaultEvent.BEGIN}
        held_ns = int(held_s * 1e9)
        room = room if is_room(room) else NO_ROOM
        self._record.event(_VERB, room, code=event, flags=self.fault.flags, value=node, a=held_ns, b=b, c=c)


class StateAborts:
    """Aborts that strike when prefill is in a certain state of a request."""

    def __init__(self, settings: NodeSettings, record: Observer) -> None:
        """Not armed."""
        states = ("writing", "sent", "status")
        faults = [fault for fault in parse_all(settings.faults) if fault.values.get("state") in states]
        self._rules = [Rule(fault, settings.seed, record) for fault in faults]

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._rules)

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal."""
        for rule in self._rules:
            rule.arm(now, armed=armed)

    def picks(self, state: str, room: int, now: float) -> bool:
        """Whether the client gives `room` up in this state; recorded if so."""
        for rule in self._rules:
            if rule.fault.s("state") == state and rule.picks(room, now):
                rule.hit(room)
                return True
        return False
