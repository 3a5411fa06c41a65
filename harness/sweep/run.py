"""Makes the runs of a sweep, one after the other, on nodes that stay while their topology does."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from harness import scenario as scenarios
from harness.errors import HandoffError, HarnessError
from harness.live import Quiet
from harness.runfolder import RunFolder
from harness.scenario import Scenario, Topology
from harness.session import Session
from harness.stress import judge, prepare
from harness.sweep.folder import Keep, Run, SweepFolder
from harness.sweep.grid import label
from harness.sweep.meter import Meter
from harness.sweep.plan import Job, Plan
from harness.sweep.progress import Progress


class Runner:
    """Use as a context manager: leaving it ends the nodes. Ctrl-C ends the run in hand, which is forgotten, and `stopped` is set."""

    def __init__(self, folder: SweepFolder, plan: Plan, keep: Keep, progress: Progress) -> None:
        """Nothing is started yet."""
        self.stopped = False
        self._folder, self._plan, self._keep, self._progress = folder, plan, keep, progress
        self._session: Session | None = None
        self._sessions = 0
        self._other_cpu = 0.0

    def __enter__(self) -> Self:
        """Nodes start with the first run."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the nodes; at once when leaving on an error."""
        self._end(error)

    def run(self, jobs: Sequence[Job]) -> list[Run]:
        """Make the runs in order, until all are made or the user stops; a run that fails is a result."""
        made = []
        with self._stoppable():
            for number, job in enumerate(jobs):
                if self.stopped:
                    break
                self._progress.next(number, len(jobs), label(job.values))
                run = self._one(job)
                if run is not None:
                    made.append(run)
        if jobs:
            self._progress.next(len(made), len(jobs), "")
        return made

    def _one(self, job: Job) -> Run | None:
        scenario = self._plan.scenario(job)
        folder = prepare(scenario, self._folder.cells, command_of(scenario))
        try:
            results = self._drive(scenario, folder)
        except HandoffError as error:
            self._end(error)
            return self._folder.finish(folder, job, None, str(error), self._keep)
        except BaseException:
            self._folder.discard(folder)
            raise
        if results is None:
            self._folder.discard(folder)
            return None
        return self._folder.finish(folder, job, results, None, self._keep, self._other_cpu)

    def _drive(self, scenario: Scenario, folder: RunFolder) -> dict[str, Any] | None:
        """Results of one run; None when it was interrupted."""
        session = self._for(scenario.topology)
        meter = Meter(member.process.pid for member in session.cluster.members)
        session.run(scenario, folder, Quiet())
        self._other_cpu = meter.other()
        if session.interrupted:
            self.stopped = True
            return None
        results = judge(folder).results
        if session.broken:
            self._end(HarnessError("a node was lost"))
        return results

    def _for(self, topology: Topology) -> Session:
        if self._session is not None and self._session.topology != topology:
            self._end(None)
        if self._session is None:
            self._sessions += 1
            self._session = Session(topology, self._folder.path / "logs" / str(self._sessions)).__enter__()
        return self._session

    def _end(self, error: BaseException | None) -> None:
        """End the session that is there; on an error at once."""
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """The first Ctrl-C between two runs stops after the work in hand, the second raises KeyboardInterrupt."""

        def stop(*_: object) -> None:
            if self.stopped:
                raise KeyboardInterrupt
            self.stopped = True

        numbers = (signal.SIGINT, signal.SIGTERM)
        old = {}
        with contextlib.suppress(ValueError):  # not the main thread: the caller's handling stays
            old = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def command_of(scenario: Scenario) -> list[str]:
    """The `handoff stress` command that makes this run by itself."""
    plain = Scenario()
    command = ["handoff", "stress"]
    for field in scenarios.fields():
        value = scenarios.get(scenario, field)
        if field != "name" and value != scenarios.get(plain, field):
            command += ["--set", f"{field}={value}" if isinstance(value, str) else f"{field}={json.dumps(value)}"]  # fmt: skip
    return command
