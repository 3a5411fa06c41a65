"""How busy the machine was with other work during a run: the first thing to know about a figure that does not repeat."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

import psutil

_IDLE = ("idle", "iowait", "guest", "guest_nice")
"""Guests are counted as user time already."""


class Meter:
    """CPU time of this process and of `pids` against that of the cores that it may use, from its making on."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Begin now; processes that begin later are other work."""
        self._processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        self._began_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), self._own()

    def other(self) -> float:
        """Share of the cores' time that went to other work until now, 0 to 1."""
        spent = time.monotonic() - self._began_s
        foreign = (_busy_s() - self._busy_s) - (self._own() - self._own_s)
        return min(max(foreign / (spent * len(os.sched_getaffinity(0))), 0.0), 1.0) if spent > 0 else 0.0

    def _own(self) -> float:
        own = sum(os.times()[:2])
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                own += sum(process.cpu_times()[:2])
        return float(own)


def _busy_s() -> float:
    cores = psutil.cpu_times(percpu=True)
    mine = [cores[number] for number in os.sched_getaffinity(0) if number < len(cores)]
    return float(sum(sum(core) - sum(getattr(core, name, 0.0) for name in _IDLE) for core in mine))
