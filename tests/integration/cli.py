"""Runs `handoff` as a user does, and looks at what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.history.event import Phase, Verb
from harness.history.reader import Stream

DEADLINE_S = 60.0


@dataclass
class Ended:
    """What a finished command said."""

    code: int
    out: str
    err: str

    @property
    def results(self) -> dict[str, Any]:
        """The object of `--json`."""
        return json.loads(self.out)


def start(runs: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `handoff stress` with its run folders under `runs`."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "HANDOFF_RUNS": str(runs)},
    )  # fmt: skip


def handoff(runs: Path, *arguments: str) -> Ended:
    """Run `handoff` to its end."""
    process = start(runs, *arguments)
    out, err = process.communicate(timeout=DEADLINE_S)
    return Ended(process.returncode, out, err)


def stress(runs: Path, *arguments: str) -> dict[str, Any]:
    """The results of a stress run, whatever the verdict; fails when there are none."""
    ended = handoff(runs, "stress", "--quiet", "--json", *arguments)
    assert ended.code in {0, 1, 3}, ended.err
    return {**ended.results, "code": ended.code}


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for `condition` to give something; fails after a generous time."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return found


def under_load(runs: Path, hand_offs: int = 500) -> bool:
    """True once the newest run has begun its load and made so many records after that."""
    paths = list((runs / "latest" / "history").glob("driver-0.1.main.hist")) if (runs / "latest").exists() else []
    if not paths:
        return False
    stream = Stream(paths[0])
    records = stream.read(0, stream.count)
    begun = records["t_ns"][(records["verb"] == Verb.PHASE) & (records["code"] == Phase.LOAD)]
    return bool(begun.size) and int((records["t_ns"] > begun[0]).sum()) > 2 * hand_offs


def node(driver: subprocess.Popen[str], role: str) -> psutil.Process:
    """The child of `driver` whose title names `role`."""
    for child in psutil.Process(driver.pid).children(recursive=True):
        if f"handoff {role}" in " ".join(child.cmdline()):
            return child
    raise AssertionError(f"no {role} under {driver.pid}")


def _shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def _abstract_sockets() -> set[str]:
    return {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@handoff-" in line}


@contextmanager
def nothing_left(*drivers: subprocess.Popen[str]) -> Iterator[Callable[[subprocess.Popen[str]], None]]:
    """Check that a driver's processes, shared-memory files and sockets are gone afterwards. Call the yielded with each driver."""
    shared, sockets = _shared_files(), _abstract_sockets()
    family: list[psutil.Process] = []

    def watch(driver: subprocess.Popen[str]) -> None:
        family.extend(psutil.Process(driver.pid).children(recursive=True))

    yield watch
    assert family, "no process was watched: this check would pass whatever happens"

    def gone() -> bool:
        return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)

    until(gone, "the nodes end")
    assert _shared_files() <= shared
    until(lambda: _abstract_sockets() <= sockets, "the sockets go")
