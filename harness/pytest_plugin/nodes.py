"""The nodes of a test process: one session for each topology, kept from test to test; and a cluster as a test sees it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness import scenario as scenarios
from harness.cluster import Cluster, Member
from harness.errors import HandoffError, HarnessError
from harness.live import Quiet
from harness.pytest_plugin import leftovers, names
from harness.pytest_plugin.result import Result
from harness.runfolder import RunFolder
from harness.scenario import Scenario, Topology
from harness.session import Session
from harness.stress import judge, prepare

IDLE_MAX_S = 3600.0
"""Nodes that had nothing to do for so long are replaced: their heartbeats have been queueing up, and queues are bounded."""


class LeftBehind(HarnessError):
    """Nodes ended and something of theirs is still there."""


class Nodes:
    """Running nodes of one topology. `spoiled`: no run can be driven on them any more."""

    def __init__(self, topology: Topology, logs: Path) -> None:
        """Start them; raises HarnessError when one cannot be started."""
        self.session = Session(topology, logs)
        self._ended = False
        self._used = time.monotonic()
        self.session.__enter__()

    @property
    def spoiled(self) -> bool:
        """A node was lost, a run was cut off, or they were idle for too long."""
        return self._ended or self.session.broken or time.monotonic() - self._used > IDLE_MAX_S

    @property
    def members(self) -> list[Member]:
        """The processes."""
        return list(self.session.cluster.members)

    def drive(self, scenario: Scenario, folder: RunFolder) -> None:
        """Drive one run; whatever cuts it off ends these nodes, since nobody knows what they are in the middle of."""
        if self._ended:
            raise HarnessError("an earlier run of this test was cut off: its nodes run nothing more")
        try:
            self.session.run(scenario, folder, Quiet())
        except BaseException:
            self._end(*sys.exc_info())
            raise
        finally:
            self._used = time.monotonic()
        if self.session.interrupted:
            raise KeyboardInterrupt

    def _end(self, kind: Any, error: Any, trace: Any) -> None:
        self._ended = True
        self.session.__exit__(kind, error, trace)

    def close(self) -> list[str]:
        """Have the nodes leave; returns a line for each thing that is still there, after having killed what could be killed."""
        killed = []
        if not self._ended:
            leaving = [member for member in self.members if not member.reaped]
            self._end(None, None, None)
            # SIGTERM may meet a node that is leaving already and only slow at it.
            killed = [
                f"{m.name} ended with {m.exit_code}; see {m.log}"
                for m in leaving
                if m.exit_code not in {0, -signal.SIGTERM, None}
            ]
        assert isinstance(self.session.cluster, Cluster)
        left = leftovers.left_behind(self.session.cluster)
        if left:
            leftovers.kill(self.session.cluster)
        return killed + left


class Pool:
    """The nodes of one test process. `logs`: makes a new folder for the output of nodes."""

    def __init__(self, logs: Callable[[], Path]) -> None:
        """Nothing runs yet."""
        self._logs = logs
        self._shared: dict[Topology, Nodes] = {}
        self._own: list[Nodes] = []
        self._left: list[str] = []

    def shared(self, topology: Topology) -> Nodes:
        """The nodes that every test with this topology uses; spoiled ones are replaced."""
        nodes = self._shared.get(topology)
        if nodes is not None and nodes.spoiled:
            del self._shared[topology]
            self._left += nodes.close()
            nodes = None
        if nodes is None:
            nodes = self._shared[topology] = Nodes(topology, self._logs())
        return nodes

    def own(self, topology: Topology) -> Nodes:
        """Nodes for one user alone, who gives them back with `release`."""
        nodes = Nodes(topology, self._logs())
        self._own.append(nodes)
        return nodes

    def release(self, nodes: Nodes) -> None:
        """End nodes that `own` gave; raises LeftBehind when something of theirs stays."""
        self._own.remove(nodes)
        left = nodes.close()
        if left:
            raise LeftBehind("; ".join(left))

    @property
    def members(self) -> list[Member]:
        """Every node process that may be running."""
        return [
            member for nodes in (*self._shared.values(), *self._own) for member in nodes.members if not member.reaped
        ]

    def close(self) -> list[str]:
        """End all nodes; returns a line for each thing that any of them left behind, in the whole session."""
        everything = [*self._shared.values(), *self._own]
        self._shared.clear()
        self._own.clear()
        for nodes in everything:
            self._left += nodes.close()
        left, self._left = self._left, []
        return left


class HandoffCluster:
    """Nodes for a test: `with handoff_cluster(slots=4) as cluster: cluster.stress(requests=5_000)`.

    `changes` is what the runs have in common. Runs go one after the other; one that loses a node ends the cluster.
    """

    def __init__(
        self, pool: Pool, test: TestOfRun, changes: Callable[[Mapping[str, Any]], dict[str, Any]], *, fresh: bool
    ) -> None:
        """`changes` gives the whole layer for the keywords of one run; `fresh`: nodes of its own instead of shared ones."""
        __tracebackhide__ = True
        self._pool, self._test, self._changes, self._fresh = pool, test, changes, fresh
        self._nodes: Nodes | None = None
        self.scenario = self.load({})

    def load(self, keywords: Mapping[str, Any]) -> Scenario:
        """The scenario of a run with `keywords`; raises UsageError for what is not allowed."""
        __tracebackhide__ = True
        try:
            changes = self._changes(keywords)
            path = changes.pop(names.SCENARIO, None)
            return scenarios.load(
                None if path is None else self._test.root / path, {"name": self._test.folder_name, **changes}
            )
        except HandoffError as error:
            raise error.with_traceback(None) from None

    def __enter__(self) -> Self:
        """Start the nodes, or take those that run already."""
        __tracebackhide__ = True
        try:
            take = self._pool.own if self._fresh else self._pool.shared
            self._nodes = take(self.scenario.topology)
        except HandoffError as error:
            raise error.with_traceback(None) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End nodes of its own; shared ones go on. Raises LeftBehind when something of them stays."""
        __tracebackhide__ = True
        nodes, self._nodes = self._nodes, None
        if nodes is not None and self._fresh:
            try:
                self._pool.release(nodes)
            except HandoffError as problem:
                raise problem.with_traceback(None) from error

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each node by name (`decode-0`)."""
        assert self._nodes is not None, "the nodes run inside the `with` only"
        return {member.name: int(member.process.pid) for member in self._nodes.members if not member.reaped}

    def stress(self, **keywords: Any) -> Result:
        """Drive one run and judge it; `keywords` as in the mark. Raises UsageError, HarnessError."""
        __tracebackhide__ = True
        scenario = self.load(keywords)
        try:
            return self._drive(scenario, names.command(self._changes(keywords)))
        except self._test.hidden as error:
            raise error.with_traceback(None) from None

    def _drive(self, scenario: Scenario, command: list[str]) -> Result:
        if self._nodes is None:
            raise HarnessError("the nodes run inside the `with` only")
        folder = prepare(scenario, self._test.runs, command)
        try:
            self._nodes.drive(scenario, folder)
        except BaseException:
            # What was recorded until the run was cut off is worth a verdict too, if there is anything.
            with contextlib.suppress(HandoffError):
                self._judge(folder)
            raise
        return self._judge(folder)

    def _judge(self, folder: RunFolder) -> Result:
        result = Result(judge(folder).results, self._test.command)
        self._test.record(result)
        return result


@dataclass
class TestOfRun:
    """What a run needs to know of the test that drives it, and what the test's report needs to know of its runs."""

    __test__ = False

    command: str
    """What runs this test again."""
    folder_name: str
    """Name of the folder that its run folders go into."""
    root: Path
    """What scenario files are relative to."""
    runs: Path
    """Where run folders go."""
    hidden: tuple[type[BaseException], ...]
    """Errors that are shown without the harness's frames."""
    properties: list[tuple[str, Any]]
    """Of the test's report."""
    results: list[Result] = field(default_factory=list)
    """Of its runs so far."""

    def record(self, result: Result) -> None:
        """Keep a run's result for the report of the test."""
        self.results.append(result)
        self.properties += result.properties(len(self.results))
