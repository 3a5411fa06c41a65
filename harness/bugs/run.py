"""Runs records of the catalogue: the mutant must show its anomaly, the hardened reference must be valid in the same scenario."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from harness.bugs.catalogue import on_engine, scenario
from harness.bugs.record import Bug
from harness.live import Quiet
from harness.scenario import Scenario, Topology
from harness.session import Session
from harness.stress import Outcome, judge, prepare
from harness.stress import run as stress


@dataclass
class Result:
    """What came of one record. `caught` and `reference_clean` hold over all seeds; `caught_seeds` of `seeds` were caught."""

    id: str
    kind: str
    anomaly: str
    caught: bool
    reference_clean: bool
    seconds: float
    seeds: int = 1
    caught_seeds: int = 0
    found: dict[str, int] = field(default_factory=dict)
    """All anomalies of the mutant's last run."""
    reference: dict[str, int] = field(default_factory=dict)
    reference_verdict: str = "valid"
    runs: list[str] = field(default_factory=list)
    """Folders of the last mutant's and the last reference's run."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Runner:
    """Keeps the nodes of a topology from run to run; starts new ones when they were lost, as some mutants do."""

    def __init__(self, runs: Path, command: list[str]) -> None:
        """Nothing started."""
        self._runs, self._command = runs, command
        self._stack = ExitStack()
        self._session: Session | None = None
        self._clean: dict[bytes, Outcome] = {}

    def __enter__(self) -> Self:
        """Return the runner."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the nodes."""
        self._stack.close()

    def _nodes(self, topology: Topology) -> Session:
        session = self._session
        if session is None or session.broken or session.topology != topology:
            self._stack.close()
            self._stack = ExitStack()
            session = self._session = self._stack.enter_context(Session(topology, self._runs / "bugs-logs"))
        return session

    def run(self, chosen: Scenario) -> Outcome:
        """One run, judged; raises KeyboardInterrupt when the user ended it."""
        folder = prepare(chosen, self._runs, self._command)
        session = self._nodes(chosen.topology)
        session.run(chosen, folder, Quiet())
        if session.interrupted:
            raise KeyboardInterrupt
        return judge(folder)

    def reference(self, chosen: Scenario) -> Outcome:
        """The reference's run; records that share a scenario share it."""
        key = msgspec.json.encode(msgspec.structs.replace(chosen, name="reference"))
        if key not in self._clean:
            self._clean[key] = self.run(chosen)
        return self._clean[key]


def run_one(runner: Runner, bug: Bug, seeds: Sequence[int], plugins: Sequence[str] = ()) -> Result:
    """Run one record over `seeds`, with `plugins`."""
    began = time.monotonic()
    result = Result(bug.id, bug.kind, bug.anomaly, caught=True, reference_clean=True, seconds=0.0, seeds=len(seeds))
    for seed in seeds:
        mutant = runner.run(scenario(bug, mutant=True, seed=seed, plugins=plugins))
        result.found = found(mutant)
        result.caught_seeds += bug.anomaly in result.found
        clean = runner.reference(scenario(bug, mutant=False, seed=seed, plugins=plugins))
        if clean.report.verdict != "valid":
            result.reference_clean = False
            result.reference_verdict, result.reference = clean.report.verdict, found(clean)
        result.runs = [str(mutant.folder.path), str(clean.folder.path)]
    result.caught = result.caught_seeds == len(seeds)
    result.seconds = round(time.monotonic() - began, 2)
    return result


@dataclass
class Seen:
    """What a released engine showed of one record: `shown` if that was the record's anomaly; `found` has all."""

    id: str
    engine: str
    transport: str
    anomaly: str
    shown: bool
    verdict: str
    found: dict[str, int]
    seconds: float
    run: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def run_hosted(bug: Bug, engine: str, transport: str, runs: Path, command: list[str]) -> Seen:
    """Run a record's scenario on a released engine, which is fetched first; raises FieldError for one that it cannot show."""
    began = time.monotonic()
    outcome = stress(on_engine(bug, engine, transport), runs, command)
    seen, results = found(outcome), outcome.results
    shown = bug.anomaly in seen
    used = f"{results['transport']}=={results['transport_version']}"
    seconds = round(time.monotonic() - began, 2)
    return Seen(bug.id, engine, used, bug.anomaly, shown, results["verdict"], seen, seconds, results["folder"])


def together(bugs: Sequence[Bug]) -> list[Bug]:
    """Records of one topology together: another one costs the start of its processes."""

    def topology(bug: Bug) -> list[tuple[str, int]]:
        return sorted((field, int(value)) for field, value in bug.changes.items() if field.startswith("topology."))

    return sorted(bugs, key=topology)


def found(outcome: Outcome) -> dict[str, int]:
    """Anomalies of a run, and how many."""
    return {anomaly.name: anomaly.count for anomaly in outcome.report.anomalies}


def run_all(
    bugs: Sequence[Bug], seeds: Sequence[int], runs: Path, command: list[str], tell: Callable[[Result], None],
    plugins: Sequence[str] = (),
) -> list[Result]:  # fmt: skip
    """Run records, those of one topology together; `tell` hears of each at once."""
    results = []
    with Runner(runs, command) as runner:
        for bug in together(bugs):
            results.append(run_one(runner, bug, seeds, plugins))
            tell(results[-1])
    return results
