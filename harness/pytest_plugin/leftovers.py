"""What a set of nodes may have left behind on this machine: processes, sockets, shared-memory files."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from harness.cluster import Cluster

SETTLE_S = 5.0
"""How long the kernel may take to let go of what ended processes had."""
_POLL_S = 0.02


def left_behind(cluster: Cluster, settle_s: float = SETTLE_S) -> list[str]:
    """One line for each thing of a closed `cluster` that is still there after at most `settle_s`; empty when all is gone."""
    pids = {member.process.pid for member in cluster.members}
    looks = (
        lambda: _processes(cluster.name),
        lambda: _sockets(cluster.name),
        lambda: _shared_files(cluster.name, pids),
    )
    deadline = time.monotonic() + settle_s
    return [line for look in looks for line in _settled(look, deadline)]


def _settled(look: Callable[[], list[str]], deadline: float) -> list[str]:
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def _processes(name: str) -> list[str]:
    """Processes that carry the cluster's name: each node's title and command line has its registry's address."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if name in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
    return found


def _sockets(name: str) -> list[str]:
    """Abstract Unix sockets that carry the cluster's name."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [f"socket {line.split()[-1]}" for line in lines if f"@handoff-{name}-" in line]


def _shared_files(name: str, pids: Collection[int | None]) -> list[str]:
    """Files in shared memory with the cluster's name or the number of one of its processes in their name."""
    with contextlib.suppress(OSError):
        names = [path.name for path in Path("/dev/shm").iterdir()]  # noqa: S108  where shared memory is, not a temporary file
        return [
            f"shared memory /dev/shm/{each}"
            for each in names
            if name in each or {*map(int, re.findall(r"\d{2,18}", each))} & {*pids}
        ]
    return []


def kill(cluster: Cluster) -> None:
    """End what is left of `cluster` with SIGKILL."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if cluster.name in " ".join(process.cmdline()):
                process.kill()
