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

BLOCK_TIMEOUT_S = 30.0


class Fate(enum.Enum):
    """What becomes of one block of a write."""

    NOW = "now"
    """It is there when the call returns, as with an acknowledged transport."""
    LATER = "later"
    """The call returns, and the bytes are on their way: an unacknowledged transport."""
    BLOCKED = "blocked"
    """The call does not return before the mover is told to go on: a write in progress."""


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


def install_as_mooncake(mover: Mover) -> None:
    """Be `mooncake.engine` in this process, before an engine imports it."""

    class TransferEngine:
        """The part of Mooncake's interface that SGLang calls."""

        def initialize(self, *_: object) -> int:
            return 0

        initialize_ext = initialize

        def get_rpc_port(self) -> int:
            return 1

        def get_engine(self) -> TransferEngine:
            return self

        def register_memory(self, *_: object) -> int:
            return 0

        unregister_memory = batch_register_memory = batch_unregister_memory = send_probe = register_memory

        def transfer_sync_write(self, _: str, source: int, destination: int, size_bytes: int) -> int:
            mover.write(source, destination, size_bytes)
            return 0

        def batch_transfer_sync_write(
            self, _: str, sources: Sequence[int], destinations: Sequence[int], sizes_bytes: Sequence[int]
        ) -> int:
            for block in zip(sources, destinations, sizes_bytes, strict=True):
                mover.write(*block)
            return 0

    package, module = types.ModuleType("mooncake"), types.ModuleType("mooncake.engine")
    package.__path__ = []
    package.engine = module  # type: ignore[attr-defined]
    module.TransferEngine = TransferEngine  # type: ignore[attr-defined]
    sys.modules["mooncake"], sys.modules["mooncake.engine"] = package, module
