"""How a hosted run is observed: subclasses of what is passed into SGLang's hand-off, each calling what it derives from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.hosting.sglang.release import room_word


def watched_buffers(kind: Any) -> type:
    """A `MetadataBuffers` that keeps, for each slot, the room words just before and just after its last read in `words_read`.

    Two, because a write may land while the row is read: the engine then saw one of them, and nobody can say which.
    """

    class WatchedBuffers(kind):  # type: ignore[misc]
        words_read: dict[int, tuple[int, int]]

        def get_buf(self, idx: int) -> Any:
            before = room_word(self, idx)
            row = super().get_buf(idx)
            self.__dict__.setdefault("words_read", {})[idx] = before, room_word(self, idx)
            return row

    return WatchedBuffers


def watched_allocator(kind: Any, on_free: Callable[[int], None]) -> type:
    """A slot allocator that tells of each slot just before it can be given out again."""

    class WatchedAllocator(kind):  # type: ignore[misc]
        def free(self, free_index: int) -> None:
            on_free(free_index)
            super().free(free_index)

    return WatchedAllocator


def watched_receiver(kind: Any, on_poll: Callable[[int, int], None]) -> type:
    """A receiver that tells (room, status) of each poll."""

    class WatchedReceiver(kind):  # type: ignore[misc]
        def poll(self) -> Any:
            status = super().poll()
            on_poll(self.bootstrap_room, int(status))
            return status

    return WatchedReceiver
