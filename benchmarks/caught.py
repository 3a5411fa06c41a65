"""How surely each mutant of the catalogue is caught: one run of it for each of several seeds, as `handoff bugs run` makes it.

    python benchmarks/caught.py [--seeds N] [--first N] [--kind K2] [--runs DIR] [--json]

A run is 3 s of load, so the chance to be caught within 30 s is higher still. Exit 1 if a mutant was caught in fewer than 95 of 100 runs. Only mutants run here; that the reference is clean is `handoff bugs run`'s to show.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.bugs.catalogue import BUGS, scenario
from harness.bugs.record import Bug
from harness.bugs.run import Runner
from harness.check.report import interval95

GOAL = 0.95


def measure(runner: Runner, bug: Bug, seeds: range) -> dict[str, Any]:
    """The seeds that were missed, and the seconds of the slowest run; the folders of those that were caught go."""
    missed, taken = [], []
    for seed in seeds:
        began = time.monotonic()
        outcome = runner.run(scenario(bug, mutant=True, seed=seed))
        taken.append(round(time.monotonic() - began, 2))
        if bug.anomaly in {anomaly.name for anomaly in outcome.report.anomalies}:
            shutil.rmtree(outcome.folder.path, ignore_errors=True)
        else:
            missed.append({"seed": seed, "verdict": outcome.report.verdict, "run": str(outcome.folder.path)})
    caught = len(seeds) - len(missed)
    return {
        "id": bug.id, "kind": bug.kind, "anomaly": bug.anomaly, "caught": caught, "of": len(seeds), "rate": caught / len(seeds),
        "interval": list(interval95(caught, len(seeds))), "missed": missed, "slowest_s": max(taken),
    }  # fmt: skip


def main() -> int:
    """Run it; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=20, help="runs of each mutant (default 20)")
    options.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    options.add_argument("--kind", action="append", default=[], help="only records of a kind; repeatable")
    options.add_argument("--runs", type=Path, help="where run folders go (default: a temporary folder)")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = []
        with Runner(chosen.runs or Path(temporary), sys.argv) as runner:
            for bug in BUGS:
                if chosen.kind and bug.kind not in chosen.kind:
                    continue
                found.append(measure(runner, bug, range(chosen.first, chosen.first + chosen.seeds)))
                one = found[-1]
                print(f"{one['id']:<20} {one['kind']:<4} {one['caught']} of {one['of']}, slowest run {one['slowest_s']} s", file=sys.stderr, flush=True)  # fmt: skip
    if chosen.json:
        print(json.dumps({"bugs": found}, indent=1))
    return int(any(one["rate"] < GOAL for one in found))


if __name__ == "__main__":
    sys.exit(main())
