"""The load, sans-I/O: which hand-off is issued when, which are open, what came of them."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from dataclasses import dataclass

from harness.history.event import Reason, Wants
from harness.protocol.rooms import draw, room_of
from harness.scenario import DEFAULT_DURATION_S, Scenario

_WANTS, _ARRIVAL = 11, 12
_UNIT = 1.0 / (1 << 32)
_LOGPROBS, _HIDDEN = int(Wants.LOGPROBS), int(Wants.HIDDEN)
RECENT = 4096
_REASONS = {int(reason): reason for reason in Reason}


@dataclass(slots=True)
class Open:
    """One hand-off in flight. Times: monotonic seconds. `prefill`, `decode`: the nodes that were chosen; the latter is to end it."""

    index: int
    since: float
    intended: float
    decode: int
    prefill: int = 0


class Load:
    """See the module. `now` is always the caller's monotonic clock in seconds."""

    def __init__(self, scenario: Scenario) -> None:
        """Nothing issued; the timed part begins with `begin`."""
        workload = scenario.workload
        self.workload = workload
        self.seed = scenario.seed
        self.concurrency = workload.concurrency
        self.open: dict[int, Open] = {}
        self.issued = 0
        self.ended: Counter[Reason] = Counter()
        self.recent_ms: deque[float] = deque(maxlen=RECENT)
        self.stopped = False
        self._extra = 0
        self.warm = workload.warmup == 0
        bounded = workload.requests or workload.duration_s
        self._duration_s = workload.duration_s if bounded else DEFAULT_DURATION_S
        self._limit = workload.warmup + workload.requests if workload.requests else math.inf
        self._end = math.inf
        self._next_arrival = 0.0
        self._arrivals = random.Random(draw(scenario.seed, _ARRIVAL))
        self._timeout_s = scenario.limits.request_timeout_s
        self.began = self.last_end = 0.0
        """Begin of the timed part and the last result, for a rate without a history."""

    def begin(self, now: float) -> None:
        """The timed part begins."""
        self.warm = True
        self._next_arrival = self.began = now
        if self._duration_s:
            self._end = now + self._duration_s

    @property
    def progress(self) -> tuple[int, float]:
        """(requests asked for or 0, end time or inf)."""
        return self.workload.requests, self._end

    def burst(self, size: int) -> None:
        """Issue `size` hand-offs at once, above the concurrency."""
        self._extra = len(self.open) + size

    def stop(self) -> None:
        """Issue nothing more."""
        self.stopped = True

    def exhausted(self, now: float) -> bool:
        """True when nothing more will be issued."""
        if not self.warm:
            return self.stopped or self.issued >= self.workload.warmup
        return self.stopped or self.issued >= self._limit or now >= self._end

    def due(self, now: float) -> float | None:
        """Intended time of a hand-off to issue now, or None. Closed loop: now, whenever there is room for it."""
        if self._extra and len(self.open) < self._extra and not self.exhausted(now):
            return now
        self._extra = 0
        if len(self.open) >= self.concurrency or self.exhausted(now):
            return None
        if self.workload.arrival == "closed" or not self.warm:
            return now
        if self._next_arrival > now:
            return None
        intended = self._next_arrival
        mean = 1.0 / self.workload.rate_per_s
        self._next_arrival += mean if self.workload.arrival == "fixed" else self._arrivals.expovariate(1.0) * mean
        return intended

    def wait_s(self, now: float) -> float:
        """How long nothing is due, at most 0.05 s."""
        if self.workload.arrival == "closed" or not self.warm or len(self.open) >= self.concurrency:
            return 0.05
        return min(max(self._next_arrival - now, 0.0), 0.05)

    def issue(self, now: float, intended: float, decodes: int = 1) -> tuple[int, int, int]:
        """(room, index, wants) of the next hand-off, now open; unless the caller says otherwise it goes to decode node `index % decodes`."""
        index = self.issued
        self.issued += 1
        room = room_of(self.seed, index)
        self.open[room] = Open(index, now, intended, index % decodes)
        chance = draw(self.seed, _WANTS, index)
        workload = self.workload
        wants = _LOGPROBS if (chance & 0xFFFFFFFF) * _UNIT < workload.logprob_fraction else 0
        if (chance >> 32) * _UNIT < workload.hidden_fraction:
            wants |= _HIDDEN
        return room, index, wants

    def finish(self, room: int, reason: int, now: float) -> Open | None:
        """A result has come; None for one that is not open (any more)."""
        opened = self.open.pop(room, None)
        if opened is not None:
            self.ended[_REASONS.get(reason, Reason.REJECTED)] += 1
            self.last_end = now
            if not reason:
                self.recent_ms.append((now - opened.intended) * 1e3)
        return opened

    def orphaned(self, decode: int) -> list[tuple[int, Open]]:
        """Hand-offs whose decode node is gone: nobody will end them; they are open no more."""
        found = [(room, opened) for room, opened in self.open.items() if opened.decode == decode]
        for room, _ in found:
            del self.open[room]
            self.ended[Reason.NODE_EXIT] += 1
        return found

    def overdue(self, now: float) -> list[tuple[int, Open]]:
        """Hand-offs that nobody ended within the bound; they are open no more. In order of issue, so the first tells."""
        late = []
        for room, opened in self.open.items():
            if now - opened.since < self._timeout_s:
                break
            late.append((room, opened))
        for room, _ in late:
            del self.open[room]
            self.ended[Reason.DRIVER_TIMEOUT] += 1
        return late
