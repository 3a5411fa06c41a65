"""A transfer engine under control: the interface of Mooncake's, moving bytes inside this process when it is told to.

With it a hosted hand-off runs whole, threads and frames and all, and the order of its writes is chosen instead of raced for.
"""

from __future__ import annotations

import ctypes
import enum
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Protocol

BLOCK_TIMEOUT_S = 30.0
Piece = tuple[int, int, int]
"""(source address, destination address, bytes)."""


class Fate(enum.Enum):
    """What becomes of one block of a write."""

    NOW = "now"
    """It is there when the call returns, as with an acknowledged transport."""
    LATER = "later"
    """The call returns, and the bytes are on their way: an unacknowledged transport."""
    BLOCKED = "blocked"
    """The call does not return before the mover is told to go on: a write in progress."""


class Plane(Protocol):
    """What moves the bytes behind `install_as_mooncake`."""

    def register(self, address: int, size_bytes: int) -> None:
        """The engine has memory here."""

    def move(self, session: str, blocks: Sequence[Piece]) -> int:
        """Move `blocks` to the peer called `session`; 0 when the engine may take them for done, -1 where that failed."""


class Mover:
    """Moves blocks as `fate(destination)` says, a function of the destination address."""

    def __init__(self) -> None:
        """Everything at once until `fate` is set."""
        self.fate: Callable[[int], Fate] = lambda _: Fate.NOW
        self.blocked = threading.Semaphore(0)
        """Released once for each call that has begun to block."""
        self.ended = threading.Semaphore(0)
        """Released once for each block that was held up and has landed."""
        self._on_their_way: list[tuple[int, bytes]] = []
        self._go_on = threading.Event()
        self._lock = threading.Lock()

    def register(self, address: int, size_bytes: int) -> None:
        """Every address of this process will do."""

    def move(self, session: str, blocks: Sequence[Piece]) -> int:
        """Block after block."""
        del session
        for block in blocks:
            self.write(*block)
        return 0

    def write(self, source: int, destination: int, size_bytes: int) -> None:
        """One block, both addresses in this process."""
        fate = self.fate(destination)
        if fate is Fate.BLOCKED:
            self._go_on.clear()
            self.blocked.release()
            self._go_on.wait(BLOCK_TIMEOUT_S)
        content = ctypes.string_at(source, size_bytes)
        if fate is Fate.LATER:
            with self._lock:
                self._on_their_way.append((destination, content))
        else:
            ctypes.memmove(destination, content, size_bytes)
        if fate is Fate.BLOCKED:
            self.ended.release()

    def land(self) -> None:
        """Have everything that is on its way arrive."""
        with self._lock:
            blocks, self._on_their_way = self._on_their_way, []
        for destination, content in blocks:
            ctypes.memmove(destination, content, len(content))

    def go_on(self) -> None:
        """Let the call that blocks continue, and block none any more."""
        self.fate = lambda _: Fate.NOW
        self._go_on.set()


class StandIn:
    """The part of Mooncake's engine that SGLang calls, over `plane`; every call succeeds."""

    plane: Plane

    def initialize(self, *_: object) -> int:
        """Nothing to start."""
        return 0

    initialize_ext = initialize

    def get_rpc_port(self) -> int:
        """A port that nobody asks."""
        return 1

    def get_engine(self) -> StandIn:
        """Itself."""
        return self

    def register_memory(self, address: int, size_bytes: int, *_: object) -> int:
        """One piece."""
        self.plane.register(address, size_bytes)
        return 0

    def batch_register_memory(self, addresses: Sequence[int], sizes_bytes: Sequence[int], *_: object) -> int:
        """Several."""
        for part in zip(addresses, sizes_bytes, strict=True):
            self.plane.register(*part)
        return 0

    def unregister_memory(self, *_: object) -> int:
        """It stays until the process ends."""
        return 0

    batch_unregister_memory = send_probe = unregister_memory

    def transfer_sync_write(self, session: str, source: int, destination: int, size_bytes: int) -> int:
        """One block."""
        return self.plane.move(session, [(source, destination, size_bytes)])

    def batch_transfer_sync_write(
        self, session: str, sources: Sequence[int], destinations: Sequence[int], sizes_bytes: Sequence[int]
    ) -> int:
        """Several."""
        return self.plane.move(session, list(zip(sources, destinations, sizes_bytes, strict=True)))


def install_as_mooncake(plane: Plane) -> None:
    """Be `mooncake.engine` in this process, before an engine imports it."""
    package, module = types.ModuleType("mooncake"), types.ModuleType("mooncake.engine")
    package.__path__ = []
    package.engine = module  # type: ignore[attr-defined]
    module.TransferEngine = type("TransferEngine", (StandIn,), {"plane": plane})  # type: ignore[attr-defined]
    sys.modules["mooncake"], sys.modules["mooncake.engine"] = package, module
