"""One stress run, from start to verdict: start, warm up, load, drain, census, check."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness import probe
from harness.check import Expectations, Report, check_history
from harness.cluster import Cluster, External
from harness.driver import Driver
from harness.history.event import Phase, Verb
from harness.history.reader import SUFFIX
from harness.history.recorder import NullRecorder, Observer, Recorder
from harness.hosting import guest
from harness.live import Display, Quiet
from harness.load import Load
from harness.protocol import guards as guard_table
from harness.releases import engines, hosted
from harness.runfolder import RunFolder
from harness.scenario import Scenario, node_settings, transport_settings
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


class Interrupt:
    """Ctrl-C: the first stops the load, the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        """Nothing pressed yet."""
        self.count = 0
        self.load: Load | None = None

    def __call__(self, *_: object) -> None:
        """The signal handler."""
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        if self.load is not None:
            self.load.stop()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside; only possible on the main thread, elsewhere the caller's handling stays."""
        try:
            old = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            yield
            return
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def expectations(scenario: Scenario, done: dict[str, Any] | None = None) -> Expectations:
    """What the checker shall hold a run of `scenario` to: its limits, and what its guards and its transport (`done_of`) promise."""
    guards = guard_table.parse(scenario.guards)
    limits = scenario.limits
    transport = registry.get(scenario.transport.name, scenario.transport.version)
    real = scenario.transport.name in registry.REAL and not scenario.transport.late_fraction
    shut = real and done is not None and done["means"] == Done.VISIBLE.value
    min_window = (0 if shut else MIN_WINDOW) if limits.min_window is None else limits.min_window
    drained = guards.drain_on_commit and guards.drain_on_abort
    ours = not hosted.parse(scenario.engine.name).hosted  # guards are the reference's: nobody else promises them
    return Expectations(
        slots=scenario.engine.slots,
        hang_bound_s=limits.request_timeout_s,
        clean_slot=ours and guards.clear_on_free,
        drained_release=ours and (drained or (guards.tenure_on_writes and transport.refuses)),
        min_reuse=limits.min_reuse,
        min_window=min_window,
        min_rate_per_s=limits.min_rate_per_s,
    )


@dataclasses.dataclass(frozen=True)
class Attach:
    """Use nodes that were started by hand: ZMQ addresses of their registry and of the driver's inbox, and their cluster's name."""

    registry: str
    inbox: str
    cluster: str


def run(
    scenario: Scenario, runs: Path, command: list[str], display: Display | None = None, attach: Attach | None = None
) -> Outcome:
    """Run `scenario`, leaving its folder under `runs`; raises HarnessError when the harness itself fails.

    The history is checked even when a node died or the user interrupted: what was recorded is judged.
    """
    display = display or Quiet()
    try:
        hosted.fetch(scenario.engine.name, display.say)
        done = done_of(scenario, display, local=attach is None)
        folder = RunFolder.create(runs, scenario, expectations(scenario, done), command, {"transport_done": done})
        drive(scenario, folder, display, attach=attach)
    finally:
        display.close()
    return judge(folder)


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


def drive(
    scenario: Scenario, folder: RunFolder, display: Display, *, record: bool = True, attach: Attach | None = None
) -> Load:
    """Start the nodes, drive the load, end the nodes; the history is complete when this returns. Returns the spent load."""
    load = Load(scenario)
    interrupt = Interrupt()
    with ExitStack() as stack:
        stack.callback(display.close)
        stack.enter_context(_batch_scheduling())
        cluster: Cluster | External = Cluster(scenario.topology.prefill, scenario.topology.decode, folder.logs)
        if attach is not None:
            cluster = External(attach.registry, attach.inbox, attach.cluster, folder.logs)
        recorder = _recorder(folder, record=record, stack=stack)
        stack.enter_context(interrupt.installed())
        stack.enter_context(cluster)
        driver = Driver(cluster, recorder)
        stack.callback(driver.close)
        interrupt.load = load
        _phases(scenario, folder, driver, load, display, interrupt, record=record)
    return load


@contextmanager
def _batch_scheduling() -> Iterator[None]:
    """Run the driver as the nodes run, see `harness.node.entry.launch`, and put the caller's policy back."""
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:  # not allowed here: then only the rate suffers
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameter)


def _recorder(folder: RunFolder, *, record: bool, stack: ExitStack) -> Observer:
    if not record:
        return NullRecorder()
    return stack.enter_context(Recorder(folder.history / f"driver-0.1.main{SUFFIX}", "driver-0", "main"))


def _phases(
    scenario: Scenario, folder: RunFolder, driver: Driver, load: Load, display: Display, interrupt: Interrupt, *,
    record: bool,
) -> None:  # fmt: skip
    limits, topology = scenario.limits, scenario.topology
    driver.tick = _ticker(driver, load, display, "start")
    driver.wait_for_nodes(topology.prefill, topology.decode, limits.start_timeout_s)
    driver.configure(node_settings(scenario, folder.history, record=record), limits.start_timeout_s)
    try:
        driver.tick = _ticker(driver, load, display, "warm-up")
        if scenario.workload.warmup:
            driver.run(load, Phase.WARMUP)
        if not driver.lost:
            driver.census(at_rest=False, timeout_s=5.0)
        load.begin(time.monotonic())
        driver.tick = _ticker(driver, load, display, "load")
        if not driver.lost:
            driver.run(load, Phase.LOAD)
        driver.tick = _ticker(driver, load, display, "drain")
        if interrupt.count:
            driver.record.event(Verb.PHASE, code=Phase.INTERRUPTED)
        driver.drain(load, limits.drain_timeout_s)
        driver.census(at_rest=True, timeout_s=limits.transfer_timeout_s + 2.0)
    except KeyboardInterrupt:
        driver.record.event(Verb.PHASE, code=Phase.INTERRUPTED)
        driver.abandon(load)
        raise
    driver.finish(leave=True)


def _ticker(driver: Driver, load: Load, display: Display, phase: str) -> Callable[[], None]:
    return lambda: display.update(phase, load, driver.slots_in_use)


def judge(folder: RunFolder) -> Outcome:
    """Check the recorded history and write results.json; needs nothing but the folder."""
    started = time.perf_counter()
    report = check_history(folder.history, folder.expect)
    scenario, manifest = folder.scenario, folder.manifest
    if hosted.parse(scenario.engine.name).hosted:
        report.not_checked = hosted.not_checked(report.not_checked)
    results = {
        "verdict": report.verdict,
        "engine": scenario.engine.name,
        "guards": scenario.guards,
        "transport": scenario.transport.name,
        "transport_version": scenario.transport.version,
        "transport_done": manifest.get("transport_done"),
        "planes": scenario.planes,
        "seed": scenario.seed,
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
