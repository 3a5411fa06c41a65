"""The machine: what a probe saw of it, judged. Each check is a pair of a probe, which looks, and a judge, which is a function of what was seen."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
from pathlib import Path

import psutil

from harness.doctor.finding import MIB, Finding, Seen, size

PYTHON_MIN = (3, 11)
SHM = Path("/dev/shm")  # noqa: S108  the place itself is what is looked at
SHM_MIN_BYTES = 64 * MIB
MEMORY_MIN_BYTES, MEMORY_GOOD_BYTES = 1024 * MIB, 2048 * MIB
"""Two nodes and a driver take 0.7 GiB (most of it is torch); a hosted release another 0.1 GiB a node."""
FILES_MIN, FILES_GOOD = 128, 1024
CGROUP = Path("/sys/fs/cgroup")


def see_python() -> Seen:
    """Version and implementation."""
    return {"version": list(sys.version_info[:3]), "implementation": sys.implementation.name, "path": sys.executable}


def judge_python(seen: Seen) -> Finding:
    """CPython 3.11 or newer."""
    version = ".".join(str(part) for part in seen["version"])
    text = f"{seen['implementation']} {version}, {seen['path']}"
    if tuple(seen["version"][:2]) < PYTHON_MIN:
        return Finding(
            "python", "missing", text, "3.11 or newer is needed", "install Python 3.11, then: make stress", needed=True
        )
    return Finding("python", "ok", text, needed=True)


def see_cores() -> Seen:
    """Cores that this process may use, and the quota of its control group in cores (0: none)."""
    return {"cores": len(os.sched_getaffinity(0)), "quota": _quota(CGROUP / "cpu.max")}


def _quota(path: Path) -> float:
    """Cores of a cgroup v2 quota, 0 where there is none."""
    try:
        quota, period = path.read_text().split()
        return float(quota) / float(period)
    except (OSError, ValueError):
        return 0.0


def judge_cores(seen: Seen) -> Finding:
    """Two, so that two processes meet."""
    text = f"{seen['cores']}" + (f", of which a quota gives {seen['quota']:g}" if seen["quota"] else "")
    usable = min(seen["cores"], seen["quota"] or seen["cores"])
    if usable < 2:
        means = "processes take turns: races show less often, a hosted release may time out"
        return Finding("cores", "limited", text, means, "give this container or machine two cores or more")
    return Finding("cores", "ok", text)


def see_memory() -> Seen:
    """What is free, in bytes, with the limit of the control group (0: none)."""
    return {"available_bytes": psutil.virtual_memory().available, "limit_bytes": _limit(CGROUP / "memory.max")}


def _limit(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def judge_memory(seen: Seen) -> Finding:
    """Enough for two nodes and a driver."""
    free = min(seen["available_bytes"], seen["limit_bytes"] or seen["available_bytes"])
    text = f"{size(free)} free"
    if free < MEMORY_MIN_BYTES:
        return Finding(
            "memory",
            "missing",
            text,
            "two nodes and a driver take 0.7 GiB",
            "end what uses it: ps aux --sort=-rss",
            needed=True,
        )
    if free < MEMORY_GOOD_BYTES:
        return Finding(
            "memory",
            "limited",
            text,
            "enough for one node on each side, not for many ranks",
            "end what uses it: ps aux --sort=-rss",
            needed=True,
        )
    return Finding("memory", "ok", text, needed=True)


def see_shm() -> Seen:
    """Size and free space in bytes, and whether it can be written."""
    if not SHM.is_dir():
        return {"error": f"{SHM} is not there"}
    usage = shutil.disk_usage(SHM)
    return {"size_bytes": usage.total, "free_bytes": usage.free, "writable": os.access(SHM, os.W_OK)}


def judge_shm(seen: Seen) -> Finding:
    """Nodes of one host share anonymous memory instead; only containers and NIXL over shm need the place."""
    means = "not needed by nodes of one host; needed by nodes in containers that share memory, and by nixl-shm"
    command = "mount -t tmpfs -o size=1g tmpfs /dev/shm; with Docker: --shm-size 1g"
    if "error" in seen:
        return Finding(str(SHM), "missing", seen["error"], means, command)
    text = f"{size(seen['free_bytes'])} free of {size(seen['size_bytes'])}"
    if not seen["writable"]:
        return Finding(str(SHM), "missing", text + ", not writable", means, "chmod 1777 /dev/shm")
    if seen["free_bytes"] < SHM_MIN_BYTES:
        return Finding(str(SHM), "limited", text, means, command)
    return Finding(str(SHM), "ok", text)


def judge_real_time(seen: Seen) -> Finding:
    """Only the tcp transport asks for it."""
    if seen.get("permitted"):
        return Finding("SCHED_RR", "ok", "permitted")
    means = "the receive threads of tcp compete with other work: its race window depends on the machine's load, verdicts do not"
    return Finding(
        "SCHED_RR",
        "limited",
        seen.get("error", "not permitted"),
        means,
        "run as root, or with Docker: --cap-add SYS_NICE --ulimit rtprio=1",
    )


def see_files() -> Seen:
    """Soft and hard limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"soft": soft, "hard": hard}


def judge_files(seen: Seen) -> Finding:
    """A node has some 30 open, one that hosts a release up to 130 (both seen)."""
    soft, hard = seen["soft"], seen["hard"]
    text = "unlimited" if soft < 0 else f"{soft}"
    if 0 <= soft < FILES_GOOD:
        state = "missing" if soft < FILES_MIN else "limited"
        help_ = f"ulimit -n {FILES_GOOD if hard < 0 or hard >= FILES_GOOD else hard}"
        means = (
            "a node could not open its sockets"
            if state == "missing"
            else "enough for a few nodes, not for many ranks or hosted releases"
        )
        return Finding("open files", "missing" if soft < FILES_MIN else "limited", text, means, help_, needed=True)
    return Finding("open files", "ok", text, needed=True)


def see_loopback() -> Seen:
    """Whether a connection to 127.0.0.1 can be made."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5)
            with socket.create_connection(server.getsockname(), timeout=5), server.accept()[0]:
                return {}
    except OSError as error:
        return {"error": str(error)}


def judge_loopback(seen: Seen) -> Finding:
    """Every node talks over it."""
    if "error" in seen:
        means = "nodes cannot talk to each other"
        return Finding("loopback", "missing", seen["error"], means, "ip link set lo up", needed=True)
    return Finding("loopback", "ok", "127.0.0.1 answers", needed=True)
