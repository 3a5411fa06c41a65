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
        lambda: _processes(cluster),
        lambda: _sockets(cluster.name),
        lambda: _shared_files(cluster.name, pids),
    )
    deadline = time.monotonic() + settle_s
    return [line for look in looks for line in _settled(look, deadline)]


def _settled(look: Callable[[], list[str]], deadline: float) -> list[str]:
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def _processes(cluster: Cluster) -> list[str]:
    """Nodes that still run, and any other process that carries the cluster's name: a node's title has its registry's address."""
    running = [
        f"process {member.process.pid}: {member.name}, still running"
        for member in cluster.members
        if member.process.is_alive()
    ]
    known = {member.process.pid for member in cluster.members}
    others = [(pid, title) for pid, title in _named(cluster.name) if pid not in known]
    return running + [f"process {pid}: {title}" for pid, title in others]


def _named(name: str) -> list[tuple[int, str]]:
    """(pid, command line) of every process that has `name` in it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            if name in title and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.pid, title))
    return found


def _sockets(name: str) -> list[str]:
    """Abstract Unix sockets that carry the cluster's name."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sorted({f"socket {line.split()[-1]}" for line in lines if f"@handoff-{name}-" in line})


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
    """End what is left of `cluster` with SIGKILL, so that the end of this process does not wait for it."""
    for member in cluster.members:
        if member.process.is_alive():
            member.process.kill()
            member.process.join()
    for pid, _ in _named(cluster.name):
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()
