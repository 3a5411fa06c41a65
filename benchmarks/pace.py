"""Whether a stopped prefill slows decode down for the others: decode's slowest poll without and with SIGSTOP of one of two prefills, in turn.

    python benchmarks/pace.py [--rounds N] [--duration S] [--transport NAME] [--json]

Requests come at a fixed rate, so that those that wait for the stopped node do not hold up the others. A gap is how long something that decode
has to look at waits for its next poll; the first run of each round is the yardstick: its median. Decode has real-time priority, where that is
allowed: this is about what a stopped peer does to it, not about what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from harness.history.event import Role
from harness.live import Quiet
from harness.load import Load
from harness.scenario import load
from harness.session import Session
from harness.stress import judge, prepare

STOP = "stop:node=prefill,every_s=1,for_ms=1000"
LOAD: dict[str, Any] = {
    "topology.prefill": 2, "workload.arrival": "fixed", "workload.rate_per_s": 400.0, "workload.concurrency": 1024,
    "engine.slots": 512, "limits.min_window": 0, "limits.min_reuse": 0, "transport.late_fraction": 0.2,
}  # fmt: skip


def gaps(runs: Path, duration_s: float, transport: str, *faults: str) -> dict[str, Any]:
    """One run: decode's gaps in ms, and how it ended."""
    changes = {**LOAD, "workload.duration_s": duration_s, "transport.name": transport, "faults": list(faults)}
    scenario = load(None, changes)
    folder = prepare(scenario, runs, ["benchmarks/pace.py"])
    with Session(scenario.topology, folder.logs) as session:
        watch = _Promotes(next(m.process.pid for m in session.cluster.members if m.role is Role.DECODE))
        session.run(scenario, folder, watch)
    results = judge(folder).results
    gap = results["resources"]["decode-0"]["poll_gap_us"]
    return {name: us / 1e3 for name, us in gap.items()} | {
        "verdict": results["verdict"], "committed": results["committed"], "other_aborts": results["other_aborts"],
        "real_time": watch.done,
    }  # fmt: skip


class _Promotes(Quiet):
    """Gives a process real-time priority once it serves, if that is allowed: what else the machine does shall not count as its delay."""

    done = False

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def update(self, phase: str, load: Load, slots: tuple[int, int]) -> None:
        del load, slots
        if phase == "warm-up" and not self.done:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(self._pid, os.SCHED_FIFO, os.sched_param(1))
                self.done = True


def main() -> None:
    """Print both, round by round, and how many medians of the run without the fault the slowest polls took."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--duration", type=float, default=8.0, help="seconds of load of each run")
    options.add_argument("--transport", default="shm")
    options.add_argument("--json", action="store_true", help="one JSON object")
    given = options.parse_args()
    rounds = []
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as scratch:
            without = gaps(Path(scratch), given.duration, given.transport)
            stopped = gaps(Path(scratch), given.duration, given.transport, STOP)
        ratio = {"without": without["slowest"] / without["median"], "stopped": stopped["slowest"] / without["median"]}
        rounds.append({"without": without, "stopped": stopped, "slowest_in_medians": ratio})
        if not given.json:
            _show(rounds[-1])
    if given.json:
        print(json.dumps({"fault": STOP, "rounds": rounds}, indent=1))


def _show(one: dict[str, Any]) -> None:
    for name in ("without", "stopped"):
        gap = one[name]
        print(
            f"{name:8} polls: median {gap['median']:.2f} ms, 99.9 % {gap['p99.9']:.2f} ms, slowest {gap['slowest']:.2f} ms = "
            f"{one['slowest_in_medians'][name]:.1f} medians; {gap['verdict']}, {gap['committed']} committed{'' if gap['real_time'] else '; no real-time priority'}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
