"""Native threads of this process, those that Python does not know of."""

from __future__ import annotations

import threading
from pathlib import Path

_TASKS = Path("/proc/self/task")
_ZMQ = "ZMQbg"


def tasks() -> set[int]:
    """Kernel ids of all threads of this process."""
    return {int(entry.name) for entry in _TASKS.iterdir()}


def native_since(before: set[int]) -> dict[int, str]:
    """Kernel id and name of each thread that is neither in `before` nor Python's nor ZMQ's."""
    python = {thread.native_id for thread in threading.enumerate()}
    found = {}
    for task in tasks() - before - python:
        try:
            name = (_TASKS / str(task) / "comm").read_text().strip()
        except OSError:
            continue  # it has ended
        if not name.startswith(_ZMQ):
            found[task] = name
    return found
