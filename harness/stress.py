"""One stress run, from start to verdict: start, warm up, load, drain, census, check."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.check import Expectations, Report, check_history
from harness.live import Display, Quiet
from harness.load import Load
from harness.protocol import guards as guard_table
from harness.runfolder import RunFolder
from harness.scenario import Scenario
from harness.session import Attach, Session
from harness.transport import registry


@dataclasses.dataclass
class Outcome:
    """What came of a run: its folder, the report, and the results as written to results.json."""

    folder: RunFolder
    report: Report
    results: dict[str, Any]


def expectations(scenario: Scenario) -> Expectations:
    """What the checker shall hold a run of `scenario` to: its limits, and what its guards promise."""
    guards = guard_table.parse(scenario.guards)
    limits = scenario.limits
    refuses = registry.get(scenario.transport.name).refuses
    drained = guards.drain_on_commit and guards.drain_on_abort
    return Expectations(
        slots=scenario.engine.slots,
        hang_bound_s=limits.request_timeout_s,
        clean_slot=guards.clear_on_free,
        drained_release=drained or (guards.tenure_on_writes and refuses),
        min_reuse=limits.min_reuse,
        min_window=limits.min_window,
        min_rate_per_s=limits.min_rate_per_s,
        faults=scenario.faults,
        prefill_tp=scenario.topology.prefill_tp,
        prefill_pp=scenario.topology.prefill_pp,
        decode_tp=scenario.topology.decode_tp,
    )


def run(
    scenario: Scenario, runs: Path, command: list[str], display: Display | None = None, attach: Attach | None = None,
    last: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:  # fmt: skip
    """Run `scenario`, leaving its folder under `runs`; raises HarnessError when the harness itself fails.

    The history is checked even when a node died or the user interrupted: what was recorded is judged. `last` is called with what came of
    it; nodes that others started stay until then.
    """
    folder = RunFolder.create(runs, scenario, expectations(scenario), command)
    if attach is None:
        drive(scenario, folder, display or Quiet())
        outcome = judge(folder)
        last(outcome)
        return outcome
    with Session(scenario.topology, folder.logs, attach) as session:
        session.run(scenario, folder, display or Quiet())
        with session.staying():
            outcome = judge(folder)
            last(outcome)
    return outcome


def drive(scenario: Scenario, folder: RunFolder, display: Display, *, record: bool = True) -> Load:
    """Start the nodes, drive the load, end the nodes; the history is complete when this returns. Returns the spent load."""
    with Session(scenario.topology, folder.logs) as session:
        return session.run(scenario, folder, display, record=record)


def judge(folder: RunFolder) -> Outcome:
    """Check the recorded history and write results.json; needs nothing but the folder."""
    started = time.perf_counter()
    report = check_history(folder.history, folder.expect)
    scenario, manifest = folder.scenario, folder.manifest
    results = {
        "verdict": report.verdict,
        "guards": scenario.guards,
        "transport": scenario.transport.name,
        "planes": scenario.planes,
        "seed": scenario.seed,
        "ranks": scenario.topology.ranks.names(scenario.topology.prefill, scenario.topology.decode),
        **{key: value for key, value in report.to_dict().items() if key != "verdict"},
        "check_s": round(time.perf_counter() - started, 3),
        "versions": manifest["versions"],
        "machine": manifest["machine"],
        "command": manifest["command"],
        "folder": str(folder.path),
    }
    folder.write_results(results)
    return Outcome(folder, report, results)
