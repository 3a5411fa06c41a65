"""`handoff sweep`: a grid of cells, run and shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console

from harness import scenario as scenarios
from harness.errors import FieldError, UsageError
from harness.options import OPTION_FIELDS, changes_of
from harness.sweep import grid
from harness.sweep.cells import to_json
from harness.sweep.folder import SweepFolder
from harness.sweep.outputs import write_all
from harness.sweep.plan import Plan, key, rounds
from harness.sweep.progress import progress
from harness.sweep.run import Runner
from harness.sweep.stats import Summary, summaries
from harness.sweep.table import number, table
from harness.sweep.views import busy, line_axis, lines, trends

SECONDS_PER_CELL, REPEATS = 3.0, 3
SECONDS_MAX = 86_400.0
EXIT_INTERRUPTED = 130


def main(command: list[str], options: dict[str, Any]) -> int:
    """Run what `options` (those of the command line, by name) ask for; returns the exit code."""
    folder, plan = prepare(command, options)
    cells = grid.cells(plan.axes)
    jobs = rounds(plan, cells, folder.manifest["seed"])
    done = folder.done()
    jobs = [job for job in jobs if (key(job.values), job.repeat) not in done]
    shown = progress(Console(stderr=True), quiet=options["quiet"])
    try:
        shown.phase("sweep")
        with Runner(folder, plan, options["keep"], shown) as runner:
            made = runner.run(jobs)
    finally:
        shown.close()
    left = len(jobs) - len(made)
    found = summaries(cells, folder.runs())
    _report(folder, plan, found, left, as_json=options["as_json"])
    return EXIT_INTERRUPTED if runner.stopped else 0


def prepare(command: list[str], options: dict[str, Any]) -> tuple[SweepFolder, Plan]:
    """The folder, new or to be resumed, and what is to be run in it; raises UsageError before anything is made."""
    resumed = SweepFolder(options["resume"]) if options["resume"] else None
    if resumed is not None and resumed.manifest.get("kind") != "sweep":
        raise UsageError(f"--resume {options['resume']}: made by handoff {resumed.manifest.get('kind')}, not by sweep")
    plan = _plan(options, resumed.plan if resumed else None)
    cells = grid.cells(plan.axes)
    plan.check(cells)
    if resumed is not None:
        resumed.adopt(plan)
        return resumed, plan
    seed = plan.scenario(rounds(plan, cells[:1], 0)[0]).seed
    return SweepFolder.create(options["runs"], "sweep", plan, command, seed), plan


def _plan(options: dict[str, Any], old: Plan | None) -> Plan:
    """What is not given is taken from the sweep that is resumed."""
    tree = scenarios.read(options["scenario"]) if options["scenario"] else None
    table = tree.pop("grid", {}) if tree is not None else {}
    changes = changes_of(options["changes"], options)
    given = bool(table or options["grid"])
    axes = grid.merge(grid.from_table(table), options["grid"]) if given or old is None else old.axes
    own = any(options.get(name) is not None for name in OPTION_FIELDS) or bool(options["changes"])
    repeats = options["repeats"] or (old.repeats if old else REPEATS)
    seconds = options["seconds_per_cell"]
    if seconds is not None and not 0.0 < seconds <= SECONDS_MAX:
        raise FieldError("--seconds-per-cell", seconds, f"more than 0, at most {SECONDS_MAX:g}")
    if options["repeats"] is not None and options["repeats"] < 1:
        raise FieldError("--repeats", options["repeats"], "at least 1")
    run_s = (seconds or SECONDS_PER_CELL) / repeats
    return Plan(
        tree=tree if tree is not None else old.tree if old else {},
        changes=changes if own or old is None else old.changes,
        axes=axes,
        run_s=old.run_s if old and seconds is None else run_s,
        repeats=repeats,
    )


def _report(folder: SweepFolder, plan: Plan, found: Sequence[Summary], left: int, *, as_json: bool) -> None:
    paths, note = write_all(folder, found, {"manifest": folder.manifest, "plan": plan, "left": left})
    if as_json:
        print(json.dumps(to_object(folder, plan, found, left) | {"files": [str(path) for path in paths]}, indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(table(found, headline(folder, found)))
        for text in findings(plan, found):
            console.print(text, highlight=False)
        console.print("\n" + "\n".join(f"{path.name}: {path}" for path in paths), highlight=False, soft_wrap=True)
    for text in (note, f"{left} runs are missing; go on with: handoff sweep --resume {folder.path}" if left else ""):
        if text:
            print(f"handoff: {text}", file=sys.stderr)


def headline(folder: SweepFolder, found: Sequence[Summary]) -> str:
    """One line on what was run."""
    runs = sum(cell.runs for cell in found)
    cores = folder.manifest["machine"]["cores"]
    return f"{len(found)} cells, {runs} runs; medians of the repeats; {cores} cores"


def findings(plan: Plan, found: Sequence[Summary]) -> list[str]:
    """What the cells say, in a few lines."""
    texts = [trend.text for trend in trends(found, plan.axes)]
    texts += busy(found)
    axis = line_axis(plan.axes)
    for line in lines(found, axis) if axis else []:
        where = f" ({line.label})" if line.rest else ""
        if line.knee:
            texts.append(f"knee{where}: {axis.short if axis else ''} {number(line.knee.at)} gives {number(line.knee.rate)}/s, 95 % of the highest rate")  # fmt: skip
    return texts


def to_object(folder: SweepFolder, plan: Plan, found: Sequence[Summary], left: int) -> dict[str, Any]:
    """The object of `--json`."""
    axis = line_axis(plan.axes)
    return {
        "folder": str(folder.path),
        **{name: folder.manifest[name] for name in ("kind", "command", "started", "versions", "machine")},
        "axes": {one.short: one.values for one in plan.axes},
        "repeats": plan.repeats,
        "run_s": plan.run_s,
        "runs_missing": left,
        "findings": findings(plan, found),
        "knees": [
            {"axis": axis.short if axis else "", **line.rest, **msgspec.to_builtins(line.knee)}
            for line in (lines(found, axis) if axis else []) if line.knee
        ],
        "cells": [to_json(cell) for cell in found],
    }  # fmt: skip
