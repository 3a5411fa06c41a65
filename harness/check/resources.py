"""What the driver says of the run as a whole: its phases, its nodes' lives, and what each still held at rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.check.aborts import Node
from harness.check.arrays import take
from harness.check.names import node_name, resource_name
from harness.check.report import Expectations
from harness.check.tally import Tally
from harness.history.event import NodeEvent, Phase, Resource, Role, Verb
from harness.history.reader import Records, Stream

SLACK = 8
"""Threads and descriptors that a node may have more of at rest than at its baseline."""

_HELD = (Resource.SLOTS, Resource.PAGES, Resource.ROOMS)
_GROWING = (Resource.THREADS, Resource.DESCRIPTORS)


class Resources:
    """Follows PHASE, NODE and RESOURCE in the driver's stream."""

    def __init__(self, expect: Expectations, tally: Tally, driver: Stream) -> None:
        """Nothing seen yet."""
        self.phases: set[int] = set()
        self.gone: set[Node] = set()
        """Nodes whose end the driver saw before the run was at rest."""
        self.lines = 0
        """Census lines at rest."""
        self.starts = 0
        self._expect, self._tally, self._driver = expect, tally, driver
        self._alive: set[Node] = set()
        self._baseline: dict[tuple[str, int], Records] = {}
        self._rest: dict[tuple[str, int], Records] = {}

    def take(self, driver: Records) -> None:
        """Look at a step's driver records."""
        verb = driver["verb"]
        for i in np.flatnonzero((verb == Verb.PHASE) | (verb == Verb.NODE) | (verb == Verb.RESOURCE)):
            record = take(driver, np.array([i]))
            if verb[i] == Verb.PHASE:
                self.phases.add(int(record["code"][0]))
            elif verb[i] == Verb.NODE:
                self._node(record)
            else:
                self._census(record)

    def _node(self, record: Records) -> None:
        code, value = int(record["code"][0]), int(record["value"][0])
        node = (value >> 32, value & 0xFFFFFFFF)
        if code == NodeEvent.STALLED:
            return  # the driver's, see `harness.check.stalls`
        if code == NodeEvent.UP:
            self.starts += 1
            self._alive.add(node)
            return
        if Phase.REST not in self.phases:
            self.gone.add(node)
            self._alive.discard(node)
        if not record["flags"][0] & 1 and not self._expect.expected_exit:
            self._tally.show("crash", node_name(value), 1, [(self._driver, record)])

    def _census(self, record: Records) -> None:
        key = (node_name(int(record["value"][0])), int(record["code"][0]))
        if record["flags"][0] & 1:
            self._rest[key] = record
        else:
            self._baseline[key] = record

    def close(self) -> None:
        """Compare each census at rest with its size and its baseline."""
        self.lines = len(self._rest)
        for (node, code), record in sorted(self._rest.items()):
            held, free, size = (int(record[name][0]) for name in ("a", "b", "c"))
            base = self._baseline.get((node, code))
            shown = [(self._driver, one) for one in (base, record) if one is not None]
            what = f"{node} {resource_name(code)}"
            if code in _HELD and held:
                self._tally.show("leak", f"{what} held", held, shown)
            elif code in _HELD and size and held + free != size:
                self._tally.show("leak", f"{what} missing", abs(size - held - free), shown)
            elif code in _GROWING and base is not None and held > int(base["a"][0]) + SLACK:
                self._tally.show("leak", f"{what} above the baseline", held - int(base["a"][0]), shown)

    @property
    def at_rest(self) -> bool:
        """Whether the run came to rest and its nodes were counted then."""
        return Phase.REST in self.phases and bool(self._rest)

    def uncounted(self) -> list[str]:
        """Nodes that lived until the run was at rest and did not report what they held then."""
        serving = [(role, index) for role, index in self._alive if role in (Role.PREFILL, Role.DECODE)]
        names = {node_name(role << 32 | index) for role, index in serving}
        return sorted(names - {node for node, _ in self._rest})

    def without_baseline(self) -> list[str]:
        """Nodes whose threads or descriptors cannot be compared."""
        keys = [key for key in self._rest if key[1] in _GROWING and key not in self._baseline]
        return sorted({node for node, _ in keys})

    def total(self, resource: Resource) -> int:
        """Sum over the nodes of one counter, at the latest census."""
        lines = self._baseline | self._rest
        return sum(int(record["a"][0]) for (_, code), record in lines.items() if code == resource)

    def final(self) -> dict[str, dict[str, Any]]:
        """Latest census of each node: a count, or held, free and size where the resource has a size."""
        result: dict[str, dict[str, Any]] = {}
        for (node, code), record in sorted((self._baseline | self._rest).items()):
            held, free, size = (int(record[name][0]) for name in ("a", "b", "c"))
            value: Any = {"held": held, "free": free, "size": size} if size else held
            if code == Resource.POLL_GAP_US:
                value = {"slowest": held, "p99.9": free, "median": size}
            result.setdefault(node, {})[resource_name(code)] = value
        return result
