"""Faults of the traffic, carried out by the driver: client aborts, rooms used twice, rooms that are none, requests that reach one side, bursts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.faults.plan import Rule
from harness.faults.spec import Fault
from harness.history.event import FaultEvent, FaultKind, Loss, Reason, Role
from harness.history.recorder import Observer
from harness.protocol import wire
from harness.protocol.rooms import room_of

Node = tuple[int, int]
Post = Callable[[Node, wire.Message], None]
PROBES = 1 << 48
"""Index of the first probe: requests have lower ones."""
BAD_ROOMS = (0, -1, -(1 << 63), 1 << 63, (1 << 64) - 1)
PENDING_MAX = 65_536
_KINDS = (FaultKind.ABORT, FaultKind.DUPLICATE_ROOM, FaultKind.BAD_ROOM, FaultKind.ORPHAN_ROOM, FaultKind.BURST)
_PREFILL, _DECODE = int(Role.PREFILL), int(Role.DECODE)


@dataclass(slots=True)
class _Probe:
    rule: Rule
    room: int
    deadline: float


class Traffic:
    """What the scenario's faults do to the requests of one run. `post` sends to a node; `burst` has the load send more."""

    def __init__(
        self, faults: Iterable[Fault], seed: int, record: Observer, *, post: Post, burst: Callable[[int], None],
        answer_s: float,
    ) -> None:  # fmt: skip
        """Not armed. A probe must be answered within `answer_s`."""
        mine = [fault for fault in faults if fault.kind.number in _KINDS]
        mine = [fault for fault in mine if fault.values.get("state", "any") in {"any", "queued"}]
        rules = [Rule(fault, seed, record) for fault in mine]
        self._of = {kind: [rule for rule in rules if rule.fault.kind.number is kind] for kind in _KINDS}
        self._rules, self._seed, self._post, self._burst, self._answer_s = rules, seed, post, burst, answer_s
        self._aborts: list[tuple[float, int, Rule, tuple[Node, ...]]] = []
        self._bursts = dict.fromkeys(self._of[FaultKind.BURST], 0.0)
        self._probes: dict[int, _Probe] = {}
        self._next_probe = PROBES

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._rules)

    @property
    def unanswered(self) -> int:
        """Probes that are still to be answered."""
        return len(self._probes)

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal: aborts that are still to come come now."""
        for rule in self._rules:
            rule.arm(now, armed=armed)
        self._bursts = {rule: now + rule.fault.f("every_s") for rule in self._bursts}
        if not armed:
            self._abort_due(now + 3600.0)

    def issue(self, request: wire.Request, now: float) -> None:
        """Send a request, or do to it what its faults say."""
        prefill, decode = (_PREFILL, request.prefill), (_DECODE, request.decode)
        sides = [decode, prefill]
        for rule in self._of[FaultKind.ORPHAN_ROOM]:
            if rule.picks(request.room, now):
                self._orphan(rule, request, sides)
        for side in sides:
            self._post(side, request)
        for rule in self._of[FaultKind.ABORT]:
            if len(self._aborts) < PENDING_MAX and rule.picks(request.room, now):
                self._plan_abort(rule, request, now)
        for rule in self._of[FaultKind.DUPLICATE_ROOM]:
            if rule.picks(request.room, now):
                self._probe(rule, request, request.room, now)
        for rule in self._of[FaultKind.BAD_ROOM]:
            if rule.picks(request.room, now):
                self._probe(rule, request, BAD_ROOMS[rule.hits % len(BAD_ROOMS)], now)

    def _orphan(self, rule: Rule, request: wire.Request, sides: list[Node]) -> None:
        if rule.fault.s("side") == "decode":
            rule.hit(request.room, c=Loss.NEEDED)
            sides.pop()
            return
        ghost = room_of(self._seed, PROBES + rule.hits)
        rule.hit()
        self._post(sides[1], wire.Request(ghost, 0, 0, PROBES, request.prefill, request.decode))

    def _plan_abort(self, rule: Rule, request: wire.Request, now: float) -> None:
        both = ((_DECODE, request.decode), (_PREFILL, request.prefill))
        sides = {"both": both, "decode": both[:1], "prefill": both[1:]}[rule.fault.s("side")]
        at_once = rule.fault.s("state") == "queued"
        after_s = 0.0 if at_once else rule.amount(request.room, rule.fault.f("ms")) * 1e-3
        if after_s:
            heapq.heappush(self._aborts, (now + after_s, request.room, rule, sides))
        else:
            self._abort(request.room, rule, sides)

    def _abort(self, room: int, rule: Rule, sides: tuple[Node, ...]) -> None:
        rule.hit(room)
        for side in sides:
            self._post(side, wire.Cancel(room))

    def _abort_due(self, now: float) -> None:
        while self._aborts and self._aborts[0][0] <= now:
            _, room, rule, sides = heapq.heappop(self._aborts)
            self._abort(room, rule, sides)

    def _probe(self, rule: Rule, like: wire.Request, room: int, now: float) -> None:
        """Send a request that must be refused, to both sides, as a router would."""
        index, self._next_probe = self._next_probe, self._next_probe + 1
        self._probes[index] = _Probe(rule, room, now + self._answer_s)
        rule.hit(b=index)
        probe = wire.Request(room, 0, like.wants, index, like.prefill, like.decode)
        self._post((_DECODE, like.decode), probe)
        self._post((_PREFILL, like.prefill), probe)

    def answered(self, index: int, reason: int) -> None:
        """A result for a probe has come."""
        probe = self._probes.pop(index, None)
        if probe is not None:
            probe.rule.hit(event=FaultEvent.ANSWERED, b=index, c=reason)

    def forget(self, decode: int) -> None:
        """A decode node is gone, and with it whoever would answer."""
        del decode
        for index in list(self._probes):
            self.answered(index, Reason.NODE_EXIT)

    def step(self, now: float) -> float:
        """Carry on; returns how many seconds there will be nothing to do, at most 0.05."""
        self._abort_due(now)
        for rule, due in self._bursts.items():
            if rule.active(now) and now >= due:
                self._bursts[rule] = now + rule.fault.f("every_s")
                rule.hit(event=FaultEvent.BEGIN)
                self._burst(int(rule.fault.f("size")))
        while self._probes and (first := next(iter(self._probes.items())))[1].deadline <= now:
            del self._probes[first[0]]
            first[1].rule.hit(first[1].room, event=FaultEvent.SILENT, b=first[0])
        return min(max(self._aborts[0][0] - now, 0.0), 0.05) if self._aborts else 0.05
