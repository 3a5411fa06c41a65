"""One stress run, from start to verdict: start, warm up, load, drain, census, check."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import invariants, link, probe
from harness.check import Expectations, Report, check_history
from harness.hosting import guest
from harness.live import Display, Quiet
from harness.load import Load
from harness.protocol import guards as guard_table
from harness.releases import engines, hosted
from harness.runfolder import RunFolder
from harness.scenario import Scenario, transport_settings
from harness.session import Attach, Session
from harness.transport import registry
from harness.transport.base import Done

MIN_WINDOW = 10
"""Hand-offs that must have seen their status before their data, where that can happen."""


@dataclasses.dataclass
class Outcome:
    """What came of a run: its folder, the report, and the results as written to results.json."""

    folder: RunFolder
    report: Report
    results: dict[str, Any]


def expectations(scenario: Scenario, done: dict[str, Any] | None = None) -> Expectations:
    """What the checker shall hold a run of `scenario` to: its limits, and what its guards and its transport (`done_of`) promise."""
    guards = guard_table.parse(scenario.guards)
    limits = scenario.limits
    transport = registry.get(scenario.transport.name, scenario.transport.version)
    real = scenario.transport.name in registry.REAL and not scenario.transport.late_fraction
    shut = real and done is not None and done["means"] == Done.VISIBLE.value
    min_window = (0 if shut else MIN_WINDOW) if limits.min_window is None else limits.min_window
    drained = guards.drain_on_commit and guards.drain_on_abort
    engine = hosted.parse(scenario.engine.name)
    ours = not engine.hosted  # guards are the reference's: nobody else promises them
    return Expectations(
        slots=scenario.engine.slots,
        hang_bound_s=limits.request_timeout_s,
        clean_slot=(ours or engine.side == "prefill") and guards.clear_on_free,
        drained_release=ours and (drained or (guards.tenure_on_writes and transport.refuses)),
        min_reuse=limits.min_reuse,
        min_window=min_window,
        min_rate_per_s=limits.min_rate_per_s,
        faults=scenario.faults,
        aborts_allowed=scenario.workload.abort_fraction > 0,
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
    display = display or Quiet()
    try:
        folder = prepare(scenario, runs, command, display, local=attach is None)
        if attach is None:
            drive(scenario, folder, display)
            outcome = judge(folder)
            last(outcome)
            return outcome
        with Session(scenario.topology, folder.logs, attach) as session:
            session.run(scenario, folder, display)
            with session.staying():
                outcome = judge(folder)
                last(outcome)
        return outcome
    finally:
        display.close()


def prepare(
    scenario: Scenario, runs: Path, command: list[str], display: Display | None = None, *, local: bool = True
) -> RunFolder:
    """Fetch what the run needs, find out what its transport promises, and make its folder; raises HarnessError."""
    display = display or Quiet()
    link.require(scenario)
    hosted.fetch(scenario.engine.name, display.say)
    done = done_of(scenario, display, local=local)
    return RunFolder.create(runs, scenario, expectations(scenario, done), command, {"transport_done": done})


def done_of(scenario: Scenario, display: Display, *, local: bool) -> dict[str, Any]:
    """What the transport's "done" means: measured where it is a real engine on this machine, which is fetched first; else as declared."""
    name, version = scenario.transport.name, scenario.transport.version
    if name in registry.REAL and local:
        engine = registry.engine_of(name)
        if engine is not None:
            if not engines.there(engine, version):
                display.say(f"fetching {engine}=={version}")
            engines.ensure(engine, version)
        return probe.known(name, version, ack=scenario.transport.ack, say=display.say)
    done = registry.get(name, version).done(transport_settings(scenario.transport))
    return {"means": done.value, "how": "declared"}


def drive(scenario: Scenario, folder: RunFolder, display: Display, *, record: bool = True) -> Load:
    """Start the nodes, drive the load, end the nodes; the history is complete when this returns. Returns the spent load."""
    with Session(scenario.topology, folder.logs, first=scenario) as session:
        return session.run(scenario, folder, display, record=record)


def judge(folder: RunFolder) -> Outcome:
    """Check the recorded history and write results.json; needs nothing but the folder."""
    started = time.perf_counter()
    report = check_history(folder.history, folder.expect)
    scenario, manifest = folder.scenario, folder.manifest
    invariants.judge(folder.history, report)
    engine = hosted.parse(scenario.engine.name)
    if engine.hosted:
        report.not_checked = hosted.not_checked(report.not_checked, engine.side)
    results = {
        "verdict": report.verdict,
        "engine": scenario.engine.name,
        "guards": scenario.guards,
        "transport": scenario.transport.name,
        "transport_version": scenario.transport.version,
        "transport_done": manifest.get("transport_done"),
        "planes": scenario.planes,
        "seed": scenario.seed,
        "ranks": scenario.topology.ranks.names(scenario.topology.prefill, scenario.topology.decode),
        **{key: value for key, value in report.to_dict().items() if key != "verdict"},
        "check_s": round(time.perf_counter() - started, 3),
        "crashes": guest.crashes(folder.history),
        "hosted": guest.descriptions(folder.history),
        "versions": manifest["versions"],
        "machine": manifest["machine"],
        "command": manifest["command"],
        "folder": str(folder.path),
    }
    folder.write_results(results)
    return Outcome(folder, report, results)
