"""Kill and restart of nodes all the time: what became of the requests, how soon new ones succeed, and whether memory grows.

    python benchmarks/restarts.py [--duration S] [--every S] [--node prefill|decode|registry|any] [--json]

Two nodes of each role. Writes are held for up to 50 ms, so that there are requests open at every kill. Exit 1 if the verdict is not valid or
nothing succeeded after a restart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from harness.history.event import FaultEvent, FaultKind, Kind, Phase, Reason, Verb
from harness.history.reader import Stream
from harness.live import Quiet
from harness.load import Load
from harness.runfolder import RunFolder
from harness.scenario import load
from harness.session import Session
from harness.stress import judge, prepare

SAMPLE_S = 5.0
LAST_NS = 1_000_000_000
HOLD = "hold-write:ms=50"
LOAD: dict[str, Any] = {
    "topology.prefill": 2, "topology.decode": 2, "workload.arrival": "fixed", "workload.rate_per_s": 200.0,
    "workload.concurrency": 512, "engine.slots": 256, "limits.transfer_timeout_s": 10.0, "limits.min_window": 0, "limits.min_reuse": 0,
    "limits.start_timeout_s": 120.0,
}  # fmt: skip


class _Samples(Quiet):
    """Memory and descriptors of the driver now and then; nodes that are killed begin anew."""

    def __init__(self) -> None:
        self.samples: list[dict[str, float]] = []
        self._next = 0.0

    def update(self, phase: str, load: Load, slots: tuple[int, int]) -> None:
        del phase, slots
        if (now := time.monotonic()) >= self._next:
            self._next = now + SAMPLE_S
            own = psutil.Process()
            nodes = sum(child.memory_info().rss for child in own.children(recursive=True) if child.is_running())
            sample = {"driver_mib": own.memory_info().rss / 2**20, "nodes_mib": nodes / 2**20}
            self.samples.append({**sample, "descriptors": own.num_fds(), "open": len(load.open)})


def told(folder: RunFolder) -> dict[str, Any]:
    """From the driver's stream: the kills, and what ended when."""
    stream = Stream(folder.history / "driver-0.1.main.hist")
    records = stream.read(0, stream.count)
    kill = records[(records["verb"] == Verb.FAULT) & (records["flags"] >> 16 == FaultKind.KILL)]
    begins = kill["t_ns"][kill["code"] == FaultEvent.BEGIN]
    ends = kill["t_ns"][kill["code"] == FaultEvent.END]
    hand = records[records["verb"] == Verb.HANDOFF]
    good = hand["t_ns"][hand["kind"] == Kind.OK]
    bad = hand[(hand["kind"] == Kind.FAIL) | (hand["kind"] == Kind.INFO)]
    drain = records["t_ns"][(records["verb"] == Verb.PHASE) & (records["code"] == Phase.DRAIN)][0]
    invoked = hand[hand["kind"] == Kind.INVOKE]
    ended = hand[hand["kind"] != Kind.INVOKE]
    began_at = dict(zip(invoked["room"].tolist(), invoked["t_ns"].tolist(), strict=True))
    took = [t_ns - began_at[room] for room, t_ns in zip(ended["room"].tolist(), ended["t_ns"].tolist(), strict=True)]
    edges = [*begins[1:], drain]
    # What came back as the load ended had no time to succeed.
    after = [
        int(((good > end) & (good < edge)).sum())
        for end, edge in zip(ends, edges, strict=False)
        if end + np.uint64(LAST_NS) < drain
    ]
    return {
        "kills": len(begins),
        "restart_s": {"median": float(np.median(ends - begins[: len(ends)])) / 1e9, "max": float((ends - begins[: len(ends)]).max()) / 1e9},
        "every_s": {"median": float(np.median(np.diff(begins.astype(np.int64)))) / 1e9 if len(begins) > 1 else 0.0},
        "slowest_end_s": max(took, default=0) / 1e9,
        "succeeded_after_each": {"fewest": min(after, default=0), "restarts": len(after)},
        "failed": dict(Counter(Reason(code).name for code in bad["code"].tolist())),
    }  # fmt: skip


def main() -> int:
    """Run, judge, print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--duration", type=float, default=300.0, help="seconds of load")
    options.add_argument("--every", type=float, default=3.0, help="seconds from one kill to the next")
    options.add_argument("--node", choices=("prefill", "decode", "registry", "any"), default="any")
    options.add_argument("--json", action="store_true", help="one JSON object")
    given = options.parse_args()
    fault = f"kill:node={given.node},every_s={given.every:g}"
    scenario = load(None, {**LOAD, "workload.duration_s": given.duration, "faults": [fault, HOLD]})
    watch = _Samples()
    scratch = tempfile.mkdtemp()
    folder = prepare(scenario, Path(scratch), ["benchmarks/restarts.py"])
    with Session(scenario.topology, folder.logs, first=scenario) as session:
        session.run(scenario, folder, watch)
    results = judge(folder).results
    found = told(folder)
    if results["verdict"] == "valid":
        shutil.rmtree(scratch)
    else:
        print(f"kept: {folder.path}", file=sys.stderr)
    names = ("verdict", "requests", "committed", "other_aborts", "hung", "leaked", "latency_ms")
    found |= {name: results[name] for name in names} | {"fault": fault, "samples": watch.samples}
    found["anomalies"] = {anomaly["name"]: anomaly["count"] for anomaly in results["anomalies"]}
    _print(found, as_json=given.json)
    return 0 if results["verdict"] == "valid" and found["succeeded_after_each"]["fewest"] else 1


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        if name != "samples":
            print(f"{name}: {value}")
    samples = found["samples"]
    for which in ("driver_mib", "nodes_mib", "descriptors", "open"):
        values = [round(sample[which]) for sample in samples]
        third = max(len(values) // 3, 1)
        print(f"{which}: first third at most {max(values[:third])}, last third at most {max(values[-third:])}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
