"""`handoff tune`: the search of `harness.sweep.search` on real nodes, and what it recommends."""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console

from harness import scenario as scenarios
from harness.errors import EXIT_UNKNOWN, FieldError
from harness.options import changes_of
from harness.sweep import search
from harness.sweep.cells import to_json
from harness.sweep.folder import Run, SweepFolder
from harness.sweep.grid import Axis
from harness.sweep.outputs import write_all
from harness.sweep.pace import Cell, Point
from harness.sweep.plan import Job, Plan, key
from harness.sweep.progress import progress
from harness.sweep.run import Runner
from harness.sweep.search import Advice, Limits, NothingFits
from harness.sweep.stats import Summary, summaries
from harness.sweep.sweep import EXIT_INTERRUPTED, SECONDS_MAX
from harness.sweep.table import number, percent, table
from harness.sweep.views import busy

CONCURRENCY, SLOTS = "workload.concurrency", "engine.slots"


class _Stopped(Exception):
    """The user pressed Ctrl-C."""


def main(command: list[str], options: dict[str, Any]) -> int:
    """Search as `options` (those of the command line, by name) ask; returns the exit code."""
    limits, plan = prepare(options)
    folder = SweepFolder.create(options["runs"], "tune", plan, command, plan.scenario(_job((1, 1), 1)).seed)
    shown = progress(Console(stderr=True), quiet=options["quiet"])
    advice: Advice | None = None
    answer, code = "", 0
    try:
        with Runner(folder, plan, options["keep"], shown) as runner:
            bench = Bench(runner, shown, folder.manifest["seed"])
            advice = search.advise(bench.measure, limits)
    except NothingFits as nothing:
        answer, code = f"nothing to recommend: {nothing}", EXIT_UNKNOWN
    except _Stopped:
        answer, code = "interrupted: too little was measured to recommend anything", EXIT_INTERRUPTED
    finally:
        shown.close()
    _report(folder, plan, bench.runs, advice, answer, as_json=options["as_json"])
    return code


def prepare(options: dict[str, Any]) -> tuple[Limits, Plan]:
    """What is asked, checked; raises UsageError before anything is made."""
    bound, most, slots = options["p99_ms"], options["max_concurrency"], options["slots"]
    ranges = (("--p99-ms", bound, 0.001, 1e6), ("--max-concurrency", most, 2, 65536), ("--repeats", options["repeats"], 3, 100), ("--seconds-per-run", options["seconds_per_run"], 0.05, SECONDS_MAX))  # fmt: skip
    for name, value, low, high in ranges:
        if value is not None and not low <= value <= high:
            raise FieldError(name, value, f"{low:g} to {high:g}")
    if options["concurrency"] is not None:
        raise FieldError("--concurrency", options["concurrency"], "--max-concurrency: tune finds the concurrency")
    tree = scenarios.read(options["scenario"]) if options["scenario"] else {}
    auto = slots in {None, "auto"}
    changes = changes_of(options["changes"], {**options, "slots": None if auto else slots})
    if scenarios.build({}, {}).workload.arrival != _arrival(tree, changes):
        raise FieldError("workload.arrival", _arrival(tree, changes), "closed: tune varies the hand-offs in flight")
    axes = [Axis(CONCURRENCY, []), Axis(SLOTS, [])]
    plan = Plan(tree=tree, changes=changes, axes=axes, run_s=options["seconds_per_run"], repeats=options["repeats"])
    fixed = changes.get(SLOTS) if not auto else None
    plan.check([{CONCURRENCY: most, SLOTS: fixed if fixed is not None else most}])
    return Limits(bound, most, fixed, options["repeats"]), plan


def _arrival(tree: dict[str, Any], changes: dict[str, Any]) -> Any:
    workload = tree.get("workload")
    own = workload.get("arrival", "closed") if isinstance(workload, dict) else "closed"
    return changes.get("workload.arrival", own)


def _job(cell: Cell, repeat: int) -> Job:
    return Job({CONCURRENCY: cell[0], SLOTS: cell[1]}, repeat)


class Bench:
    """Measures cells on real nodes and keeps every run."""

    def __init__(self, runner: Runner, shown: Any, seed: int) -> None:
        """Nothing is measured."""
        self.runs: list[Run] = []
        self._runner, self._shown = runner, shown
        self._draws = random.Random(seed)
        self._made: Counter[Cell] = Counter()

    def measure(self, title: str, cells: Sequence[Cell], rounds: int) -> list[dict[Cell, Point]]:
        """As `harness.sweep.search.Measure`; raises _Stopped at Ctrl-C."""
        self._shown.phase(title)
        jobs: list[tuple[int, Cell, Job]] = []
        for one in range(rounds):
            order = list(cells)
            self._draws.shuffle(order)
            for cell in order:
                self._made[cell] += 1
                jobs.append((one, cell, _job(cell, self._made[cell])))
        made = self._runner.run([job for _, _, job in jobs])
        self.runs += made
        if self._runner.stopped:
            raise _Stopped
        found: list[dict[Cell, Point]] = [{} for _ in range(rounds)]
        for (one, cell, _), run in zip(jobs, made, strict=True):
            found[one][cell] = point(run)
        return found


def point(run: Run) -> Point:
    """What the search looks at of a run; empty for one that failed or committed nothing."""
    results = run.results
    if results is None or not results["latency_ms"] or results["interrupted"]:
        return {}
    held = results["slot_occupancy"] * run.job.values[SLOTS]
    return {
        "rate": results["rate_per_s"],
        "p99": results["latency_ms"]["p99"],
        "held": held,
        "other": run.other_cpu,
        "at_s": run.at_s,
    }


def _report(
    folder: SweepFolder, plan: Plan, runs: Sequence[Run], advice: Advice | None, answer: str, *, as_json: bool
) -> None:
    values = {key(run.job.values): run.job.values for run in runs}
    order = sorted(values.values(), key=lambda v: (v[SLOTS], v[CONCURRENCY]))
    plan = msgspec.structs.replace(plan, axes=[Axis(field, sorted({v[field] for v in order})) for field in (CONCURRENCY, SLOTS)])  # fmt: skip
    cells = summaries(order, runs)
    lead = words(advice, cells) if advice else [answer, *(f"Note: {note}." for note in busy(cells))]
    if runs:
        page = {"manifest": folder.manifest, "plan": plan, "left": 0, "lead": lead, "title": "Hand-off tuning", "search": True}  # fmt: skip
        paths, note = write_all(folder, cells, page)
    else:
        paths, note = [], ""
    if as_json:
        found = {
            "folder": str(folder.path), **{name: folder.manifest[name] for name in ("kind", "command", "started", "versions", "machine")},
            "advice": msgspec.to_builtins(advice) if advice else None, "answer": lead,
            "files": [str(path) for path in paths], "cells": [to_json(cell) for cell in cells],
        }  # fmt: skip
        print(json.dumps(found, indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(
            table(cells, f"{len(cells)} cells, {len(runs)} runs; {folder.manifest['machine']['cores']} cores")
        )
        console.print("\n" + "\n".join(lead), highlight=False, soft_wrap=True)
        console.print("\n" + "\n".join(f"{path.name}: {path}" for path in paths), highlight=False, soft_wrap=True)
    if note:
        print(f"handoff: {note}", file=sys.stderr)


def words(advice: Advice, cells: Sequence[Summary]) -> list[str]:
    """The recommendation as text."""
    low, high = advice.concurrency_range
    least, most = advice.slots_range
    found = [
        (
            f"Recommended: concurrency {advice.concurrency}, slots {advice.slots}. That gives {number(advice.rate.value)} hand-offs a second "
            f"({number(advice.rate.low)} to {number(advice.rate.high)}), p99 {number(advice.p99.value)} ms ({number(advice.p99.low)} to {number(advice.p99.high)}), "
            "at the usual pace of the machine."
        ),
        f"Decided by {advice.why}.",
        f"How sure (95 %, from drawing the rounds again): concurrency {number(low)} to {number(high)}, slots {number(least)} to {number(most)}.",
    ]
    slow, fast = advice.swing
    if fast / slow > 1 + search.SURE:
        found.append(f"The machine's own pace changed meanwhile from {slow:.0%} to {fast:.0%} of the usual; cells are compared at one pace, the table has what was measured.".replace("%", " %"))  # fmt: skip
    mine = [c for c in cells if c.values == {CONCURRENCY: advice.concurrency, SLOTS: advice.slots}]
    for cell in mine:
        if cell.verdict == "invalid":
            found.append(f"Not safe there: false aborts {percent(cell.false_aborts)}, wrong data {percent(cell.wrong_data)}.")  # fmt: skip
        elif cell.verdict != "valid":
            found.append(f"Verdict of that cell: {cell.verdict}; a rate without a verdict says nothing about safety.")
    return found + [f"Note: {note}." for note in [*advice.notes, *busy(cells)]] + ([] if math.isfinite(advice.rate.value) else ["Note: the confirming runs failed."])  # fmt: skip
