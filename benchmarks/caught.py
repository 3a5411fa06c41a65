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

from harness.bugs.catalogue import choose, scenario
from harness.bugs.record import Bug
from harness.bugs.run import Runner, found, together
from harness.check.report import interval95
from harness.errors import FieldError

GOAL = 0.95


def measure(runner: Runner, bug: Bug, seeds: range) -> dict[str, Any]:
    """The seeds that were missed, and the seconds of the slowest run; the folders of those that were caught go."""
    missed, taken = [], []
    for seed in seeds:
        began = time.monotonic()
        outcome = runner.run(scenario(bug, mutant=True, seed=seed))
        taken.append(round(time.monotonic() - began, 2))
        if bug.anomaly in found(outcome):
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
    try:
        bugs = together(choose((), chosen.kind))
    except FieldError as problem:
        options.error(str(problem))
    if chosen.seeds < 1:
        options.error(f"--seeds: {chosen.seeds} is not allowed; use 1 or more")
    runs = chosen.runs or Path(tempfile.mkdtemp())
    results = []
    with Runner(runs, sys.argv) as runner:
        for bug in bugs:
            one = measure(runner, bug, range(chosen.first, chosen.first + chosen.seeds))
            results.append(one)
            print(f"{one['id']:<20} {one['kind']:<4} {one['caught']} of {one['of']}, slowest run {one['slowest_s']} s", file=sys.stderr, flush=True)  # fmt: skip
    if chosen.json:
        print(json.dumps({"bugs": results}, indent=1))
    if any(one["missed"] for one in results):
        print(f"kept: {runs}", file=sys.stderr)
    elif chosen.runs is None:
        shutil.rmtree(runs)
    return int(any(one["rate"] < GOAL for one in results))


if __name__ == "__main__":
    sys.exit(main())
