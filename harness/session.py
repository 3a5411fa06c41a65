"""Nodes that serve one run after the other, and the driver that leads them.

A run of its own is a session with one run. A test suite and a sweep keep their nodes: starting them costs seconds, a run need not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.cluster import Cluster, External
from harness.driver import Driver
from harness.errors import HarnessError
from harness.faults.catalogue import parse_all
from harness.history.event import FaultKind, Phase, Verb
from harness.history.reader import SUFFIX
from harness.history.recorder import NullRecorder, Observer, Recorder
from harness.link import Link, far_role
from harness.live import Display
from harness.load import Load
from harness.nemesis import Nemesis
from harness.node import heap
from harness.runfolder import RunFolder
from harness.scenario import Scenario, Topology, node_settings


@dataclass(frozen=True)
class Attach:
    """Use nodes that were started by hand: ZMQ addresses of their registry and of the driver's inbox, and their cluster's name.

    `leave`: the nodes end after the session; else they wait for the next driver.
    """

    registry: str
    inbox: str
    cluster: str
    leave: bool = True


class Interrupt:
    """Ctrl-C: the first stops the load, the second raises KeyboardInterrupt."""

    def __init__(self, load: Load) -> None:
        """Nothing pressed yet."""
        self.count = 0
        self._load = load

    def __call__(self, *_: object) -> None:
        """The signal handler."""
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        self._load.stop()

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


class Session:
    """Nodes of one topology, for as long as the context lasts. Used by one thread; a scenario says the rest, run by run.

    `logs`: where the nodes' output goes; a run's part of it is copied into the run's folder where that is another.
    A session whose node died is `broken` and runs nothing more. `first`: the run that it is made for, where that is known; if its faults kill
    nodes, all are forked from one process from the beginning.
    """

    def __init__(
        self, topology: Topology, logs: Path, attach: Attach | None = None, first: Scenario | None = None
    ) -> None:
        """Nothing is started yet."""
        self.topology = topology
        self.logs = logs
        self._attach = attach
        self.cluster: Cluster | External = Cluster(*topology.processes, logs)
        if attach is not None:
            self.cluster = External(attach.registry, attach.inbox, attach.cluster, logs)
        self._driver: Driver | None = None
        self._first = first
        self._stack = ExitStack()
        self.interrupted = False
        """The last run was ended early by a signal."""

    def __enter__(self) -> Self:
        """Start every process; raises HarnessError when one cannot be started. A run waits until they are there."""
        with ExitStack() as stack:
            if self._first is not None:
                self._prepare(self._first, stack)
            stack.enter_context(self.cluster)
            self._driver = Driver(self.cluster, NullRecorder())
            stack.callback(self._driver.close)
            if self._attach is not None:
                stack.callback(self._driver.farewell, leave=self._attach.leave)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Have the nodes leave, then end what did not; at once when leaving on an error."""
        try:
            if kind is None and self._driver is not None and self._attach is None:
                self._driver.record = NullRecorder()
                self._driver.finish(leave=True)
        finally:
            self._stack.__exit__(kind, error, trace)

    @contextmanager
    def staying(self) -> Iterator[None]:
        """For what takes long after a run: nodes that others started hear of the driver meanwhile, and stay.

        Where the first end of a process ends them all, as in `docker compose up --abort-on-container-exit`, it must be the driver's; and
        being told to stop does not keep it from saying what came of the run.
        """
        if self._driver is None or self._attach is None:
            yield
            return
        with self._driver.staying(), _not_stopped():
            yield

    @property
    def broken(self) -> bool:
        """A node was lost: this session runs nothing more."""
        return self._driver is None or bool(self._driver.lost)

    def run(self, scenario: Scenario, folder: RunFolder, display: Display, *, record: bool = True) -> Load:
        """Drive one run into `folder`; its history is complete when this returns. Returns the spent load.

        Raises HarnessError when the harness fails, KeyboardInterrupt at the second Ctrl-C.
        """
        driver = self._driver
        if driver is None or scenario.topology != self.topology:
            raise HarnessError(f"this session's nodes are {self.topology}, not {scenario.topology}")
        if driver.lost:
            raise HarnessError(f"{driver.lost[0]} ended: this session runs nothing more")
        if (far := far_role(scenario)) and (not isinstance(self.cluster, Cluster) or self.cluster.link is None):
            raise HarnessError(f"a fault of the link needs {far} nodes that were started behind one, for this run")
        self._hasten(scenario)
        load = Load(scenario)
        interrupt = Interrupt(load)
        with ExitStack() as stack:
            stack.callback(display.close)
            stack.enter_context(_batch_scheduling())
            stack.enter_context(heap.frozen())
            stack.enter_context(self._logged(folder))
            recorder = _recorder(folder, record=record, stack=stack)
            stack.enter_context(interrupt.installed())
            driver.begin(recorder)
            try:
                _phases(scenario, folder, driver, load, display, interrupt, record=record)
            finally:
                # Answers to its probes may still come, and this run's stream is closed.
                driver.record, driver.tick, driver.nemesis = NullRecorder(), lambda: None, None
                self.interrupted = interrupt.count > 0
        return load

    def _prepare(self, first: Scenario, stack: ExitStack) -> None:
        """What the faults of the first run need before anything is started."""
        if (far := far_role(first)) and isinstance(self.cluster, Cluster):
            self.cluster.link = stack.enter_context(Link(far, self.logs))
        self._hasten(first)

    def _hasten(self, scenario: Scenario) -> None:
        """Where a scenario kills nodes, have them come back quickly."""
        kills = any(fault.kind.number is FaultKind.KILL for fault in parse_all(scenario.faults))
        if kills and isinstance(self.cluster, Cluster):
            self.cluster.hasten()

    @contextmanager
    def _logged(self, folder: RunFolder) -> Iterator[None]:
        """Copy what the nodes write to their logs meanwhile."""
        sizes = {path.name: path.stat().st_size for path in self.logs.glob("*.log")}
        try:
            yield
        finally:
            if folder.logs.resolve() != self.logs.resolve():
                for path in self.logs.glob("*.log"):
                    with contextlib.suppress(OSError):
                        (folder.logs / path.name).write_bytes(path.read_bytes()[sizes.get(path.name, 0) :])


@contextmanager
def _not_stopped() -> Iterator[None]:
    """Ignore SIGTERM inside; where this is not the main thread, the caller's handling stays."""
    try:
        old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


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
    driver.ranks, driver.dp_routing = topology.ranks, scenario.workload.dp_routing
    driver.wait_for_nodes(*topology.processes, limits.start_timeout_s)
    driver.configure(node_settings(scenario, folder.history, record=record), limits.start_timeout_s)
    faults = parse_all(scenario.faults)
    if faults:
        driver.nemesis = Nemesis(faults, scenario.seed, driver, load, limits.request_timeout_s)
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
        if driver.nemesis is not None and not driver.lost:
            driver.nemesis.heal(limits.start_timeout_s)
        driver.drain(load, limits.drain_timeout_s)
        driver.census(at_rest=True, timeout_s=_rest_s(scenario) + 2.0)
    except KeyboardInterrupt:
        driver.record.event(Verb.PHASE, code=Phase.INTERRUPTED)
        driver.abandon(load)
        raise
    driver.finish(leave=False)


def _rest_s(scenario: Scenario) -> float:
    """How long the nodes may take to come to rest: prefill forgets a room whose other half a fault kept away only after the client's patience."""
    halves = (FaultKind.DROP, FaultKind.ORPHAN_ROOM, FaultKind.PARTITION, FaultKind.KILL)
    patient = any(fault.kind.number in halves for fault in parse_all(scenario.faults))
    return scenario.limits.request_timeout_s if patient else scenario.limits.transfer_timeout_s


def _ticker(driver: Driver, load: Load, display: Display, phase: str) -> Callable[[], None]:
    return lambda: display.update(phase, load, driver.slots_in_use)
