"""Memory that a hosted engine registered with its transfer engine, as a target of our own data plane: offsets are addresses of this process."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence
from typing import Any

from harness.errors import HarnessError
from harness.hosting.mover import Piece

ADDRESSES = 1 << 48
"""Above every address of a process on x86-64 and ARM."""
ONE_SIDED = ("shm",)
"""Transports of ours whose sender maps decode's region: what it says of a place is the offset in there, not the address."""


class Regions:
    """Where bytes may go, and the way there; on a hosted receiving side, what stands in for its transfer engine: others bring the bytes."""

    def __init__(self) -> None:
        """Nothing is registered."""
        self._starts: list[int] = []
        self._views: list[memoryview] = []

    def register(self, address: int, size_bytes: int) -> None:
        """Bytes may go here from now on; the memory stays where it is as long as the process."""
        at = bisect.bisect(self._starts, address)
        self._starts.insert(at, address)
        self._views.insert(at, memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B"))

    def move(self, session: str, blocks: Sequence[Piece]) -> int:
        """The receiving side moves nothing itself; raises HarnessError."""
        raise HarnessError(f"a decode node wrote {len(blocks)} blocks to {session}")

    def __setitem__(self, where: slice, data: memoryview) -> None:
        """Put `data` at the addresses of `where`; raises IndexError for what was not registered as one piece, which no node of ours asks for."""
        at = bisect.bisect(self._starts, where.start) - 1
        start = where.start - self._starts[at] if at >= 0 else 0
        if at < 0 or start + len(data) > len(self._views[at]):
            raise IndexError(f"{len(data)} bytes at {where.start:#x} are not memory that the engine registered")
        self._views[at][start : start + len(data)] = data


class RegionsMemory:
    """`Regions` as a transport sees memory (`harness.transport.base.MemoryLike`)."""

    path = ""
    size_bytes = ADDRESSES

    def __init__(self, regions: Regions) -> None:
        """What is registered later counts, too."""
        self.view: Any = regions
