"""Allocators of slots and pages: FIFO as SGLang's `ReqToMetadataIdxAllocator`, LIFO (shortest reuse) or random."""

from __future__ import annotations

import random
from collections import deque

from harness.errors import HarnessError

POLICIES = ("fifo", "lifo", "random")


class Pool:
    """`size` indices, each free or held. `random` draws from `seed`. Every index handed out must be freed exactly once."""

    def __init__(self, size: int, policy: str, seed: int = 0) -> None:
        """All free, in order."""
        self.size = size
        self.policy = policy
        self._free: deque[int] = deque(range(size))
        self._held = bytearray(size)
        self._random = random.Random(seed)

    @property
    def free_count(self) -> int:
        """How many indices are free."""
        return len(self._free)

    @property
    def held_count(self) -> int:
        """How many indices are handed out."""
        return self.size - len(self._free)

    def take(self) -> int:
        """Hand out one index; raises IndexError when none is free."""
        if self.policy == "random":
            self._free.rotate(self._random.randrange(len(self._free)) if self._free else 0)
        index = self._free.pop() if self.policy == "lifo" else self._free.popleft()
        self._held[index] = 1
        return index

    def take_many(self, count: int) -> list[int]:
        """Hand out `count` indices; raises IndexError and takes none when there are not that many."""
        if count > len(self._free):
            raise IndexError(f"{count} wanted, {len(self._free)} free")
        if self.policy == "fifo":  # the usual case, without a call for each
            taken = [self._free.popleft() for _ in range(count)]
            for index in taken:
                self._held[index] = 1
            return taken
        return [self.take() for _ in range(count)]

    def give(self, index: int) -> None:
        """Take one index back; raises HarnessError for one that is not held (a double free would hand it out twice)."""
        if not 0 <= index < self.size:
            raise HarnessError(f"index {index} is not one of {self.size}")
        if not self._held[index]:
            raise HarnessError(f"index {index} freed twice")
        self._held[index] = 0
        self._free.append(index)

    def give_many(self, indices: list[int]) -> None:
        """Take indices back; as `give` for each."""
        for index in indices:
            self.give(index)
