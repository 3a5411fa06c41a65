"""Asks one release whether it shows an anomaly, by driving it until it does or has been asked often enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.check.report import interval95
from harness.errors import HarnessError
from harness.releases.cells import Cell, Runner
from harness.releases.matrix import plan
from harness.report.words import percent

OF_A_WINDOW = frozenset({"false-abort", "misdelivery", "torn", "foreign-kv"})
"""Anomalies that need a status that overtakes its data: a run in which none did says nothing about them."""
TRIES_A_RUN = 2
"""Runs that may be spent for each that counts: where the race cannot show, asking on is no use."""


@dataclass
class Asked:
    """What a release showed: events of the anomaly among hand-offs, over the runs that count."""

    runs: int = 0
    silent_runs: int = 0
    """Runs in which the race could not have shown: they do not count."""
    handoffs: int = 0
    opened: int = 0
    """Hand-offs whose status came before their data."""
    shown: int = 0

    def add(self, result: dict[str, Any], shown: int, *, counts: bool) -> None:
        """A run's results, with `shown` events of the anomaly."""
        if not counts:
            self.silent_runs += 1
            return
        self.runs += 1
        self.handoffs += result["requests"]
        self.opened += result.get("window_opened", 0)
        self.shown += shown

    def to_dict(self) -> dict[str, int]:
        """Every field by name."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """One line, with what silence excludes."""
        runs = f"{self.runs} run{'s' if self.runs != 1 else ''}"
        least, most = interval95(self.shown, self.handoffs)
        if self.shown:
            rate = f"{self.shown} of {self.handoffs} (95 %: {percent(least)} to {percent(most)})"
        else:
            rate = f"none of {self.handoffs} (95 %: below {percent(most)})"
        return f"{rate} in {runs}; {self.opened} saw their status before their data"


@dataclass
class Probe:
    """`anomaly`: a name, or `any`. A release is clean when `repeats` runs that could have shown it do not."""

    runner: Runner
    transport: str
    options: Sequence[str]
    anomaly: str
    repeats: int
    say: Callable[[str], None] = lambda _: None
    asked: dict[str, Asked] = field(default_factory=dict)
    """Release to what it showed, in the order of asking."""

    def __call__(self, release: str) -> bool:
        """True at the first run that shows it; raises HarnessError when a run has no verdict, or the race does not show often enough."""
        (cell,) = plan([release], [self.transport], self.options)
        asked = self.asked[release] = Asked()
        for _ in range(TRIES_A_RUN * self.repeats):
            self.say(f"{cell.name}: run {asked.runs + 1} of at most {self.repeats}")
            self._ask(cell, asked)
            if asked.shown or asked.runs == self.repeats:
                self.say(f"{cell.name}: {asked.sentence}")
                return bool(asked.shown)
        raise HarnessError(
            f"{cell.name}: cannot be judged: in {asked.silent_runs} runs the race could not have shown; give more --requests, or a transport that reports before its data is there"
        )

    def _ask(self, cell: Cell, asked: Asked) -> None:
        result = self.runner.run(cell)
        if "anomalies" not in result:
            raise HarnessError(f"{cell.name}: {result['verdict']}: {result['error']}")
        shown = sum(found["count"] for found in result["anomalies"] if self.anomaly in {found["name"], "any"})
        silent = result["verdict"] == "unknown" or (self.anomaly in OF_A_WINDOW and not result.get("window_opened"))
        asked.add(result, shown, counts=bool(shown) or not silent)
