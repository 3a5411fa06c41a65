"""What the garbage collector need not look at again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze() -> None:
    """Take everything that is alive out of the collector's sight, for good; once all that is imported has been imported.

    With torch loaded a full collection walks some hundred thousand objects and stops its process for about 90 ms. Without this every
    second run of half a second had such a stall, and its p99 was the collector's.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


@contextmanager
def frozen() -> Iterator[None]:
    """The same while inside, in a process that is not ours alone; what its owner has frozen stays as it is."""
    if gc.get_freeze_count():
        yield
        return
    freeze()
    try:
        yield
    finally:
        gc.unfreeze()
