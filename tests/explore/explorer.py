"""Tries every schedule of a setup.

Points that two schedules share are looked at once: a point holds all that can differ, the judge's memory included, so what follows it
does not depend on how it was reached. Schedules are counted exactly, as paths through the points, and so are those with an anomaly. A
poll that leaves the point as it was is no step: it leads to where it came from, so no schedule with it reaches anything new
(`test_basics` tries them all on a small case).
"""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from dataclasses import dataclass, field

from .world import Action, Setup, World

OPTIONAL = {"timeout", "expire", "rank fails", "forget", "abort", "overtake", "repeat"}
"""Actions that need not happen: a schedule may end though one of them could come."""
OPTIONS = ("timeout", "expire", "rank_fails", "forget", "abort", "overtake", "repeat", "instant", "batched", "stages")
END = -1


@dataclass
class Result:
    """What came of an exploration. Point 0 is the start."""

    setup: Setup
    edges: list[list[tuple[Action, int, frozenset[str]]]] = field(default_factory=list)
    """Of each point: action, next point (END: the schedule ends) and the anomalies of that step."""
    parents: list[tuple[int, Action] | None] = field(default_factory=list)

    @property
    def points(self) -> int:
        """Number of distinct points."""
        return len(self.edges)

    @functools.cached_property
    def _order(self) -> list[int]:
        """Points, each before those that follow it; raises ValueError for a circle, which would be schedules without end."""
        waiting = [0] * len(self.edges)
        for edges in self.edges:
            for _, after, _ in edges:
                if after != END:
                    waiting[after] += 1
        order, ready = [], [0]
        while ready:
            point = ready.pop()
            order.append(point)
            for _, after, _ in self.edges[point]:
                if after != END:
                    waiting[after] -= 1
                    if not waiting[after]:
                        ready.append(after)
        if len(order) != len(self.edges):
            raise ValueError("schedules go in circles")
        return order

    def _count(self, without: str = "") -> int:
        """Schedules, or those without one anomaly."""
        ways = [0] * len(self.edges)
        for point in reversed(self._order):
            for _, after, seen in self.edges[point]:
                if without not in seen:
                    ways[point] += 1 if after == END else ways[after]
        return ways[0]

    @functools.cached_property
    def schedules(self) -> int:
        """Number of schedules from the start to an end."""
        return self._count()

    @functools.cached_property
    def anomalies(self) -> dict[str, int]:
        """Anomaly to the number of schedules in which it occurs."""
        names = {name for edges in self.edges for _, _, seen in edges for name in seen}
        return {name: self.schedules - self._count(name) for name in sorted(names)}

    @property
    def names(self) -> set[str]:
        """Names of the anomalies, whichever request they befell."""
        return {name.split()[0] for name in self.anomalies}

    def shortest(self, anomaly: str) -> list[Action]:
        """A shortest run of actions that ends with `anomaly`."""
        for point, edges in enumerate(self.edges):
            for action, _, seen in edges:
                if anomaly in seen:
                    return [*self.path(point), action]
        raise KeyError(anomaly)

    def path(self, point: int) -> list[Action]:
        """Actions from the start to `point`."""
        actions: list[Action] = []
        parent = self.parents[point]
        while parent is not None:
            actions.append(parent[1])
            parent = self.parents[parent[0]]
        return actions[::-1]

    def complete(self, actions: list[Action], pick: int = 0) -> list[Action]:
        """Continue `actions` to an end of the schedule; `pick` chooses among the ways."""
        point, whole = 0, list(actions)
        for action in actions:
            point = next(after for done, after, _ in self.edges[point] if done == action)
        while point != END:
            edges = self.edges[point]
            pick, which = divmod(pick, len(edges))
            action, point, _ = edges[which]
            if point != END:
                whole.append(action)
        return whole

    def line(self) -> str:
        """One line for the log."""
        setup = self.setup
        options = [name for name in OPTIONS if getattr(setup, name) != getattr(Setup, name)]
        what = " ".join([setup.guards, "on", setup.plane, f"arrive={setup.arrive}", *options])
        found = ", ".join(f"{name}: {count}" for name, count in self.anomalies.items()) or "no anomaly"
        return f"{what}: {self.schedules} schedules over {self.points} points; {found}"


def explore(setup: Setup, *, limit: int = 200_000) -> Result:
    """Try every schedule, shortest first; raises ValueError above `limit` points."""
    world = World(setup)
    start = world.save()
    result = Result(setup, [[]], [None])
    numbers = {_digest(start): 0}
    waiting = deque([(0, start)])
    while waiting:
        point, saved = waiting.popleft()
        world.load(saved)
        edges = result.edges[point]
        actions = world.actions()
        for action in actions:
            world.load(saved)
            world.do(action)
            seen = world.judge.take()
            after = world.save()
            if action[0] == "poll" and after == saved and not seen:
                continue
            key = _digest(after)
            if key not in numbers:
                numbers[key] = len(result.edges)
                result.edges.append([])
                result.parents.append((point, action))
                waiting.append((numbers[key], after))
                if len(numbers) > limit:
                    raise ValueError(f"more than {limit} points")
            edges.append((action, numbers[key], seen))
        if all(action[0] in OPTIONAL for action, _, _ in edges):
            world.load(saved)
            world.finish()
            edges.append((("end",), END, world.judge.take()))
    world.close()
    return result


def tell(setup: Setup, actions: list[Action]) -> list[str]:
    """The schedule in words, one line a step, with what went wrong at it."""
    world = World(setup)
    world.judge.take()
    lines = []
    for action in actions:
        words = world.do(action) if action[0] != "end" else "nothing can happen any more"
        if action[0] == "end":
            world.finish()
        found = ", ".join(sorted(world.judge.take()))
        lines.append(words + (f"  <- {found}" if found else ""))
    world.close()
    return lines


def _digest(saved: bytes) -> bytes:
    return hashlib.blake2b(saved, digest_size=16).digest()
