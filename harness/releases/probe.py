"""Asks one release whether it shows an anomaly, by driving it until it does or has been asked often enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.errors import HarnessError
from harness.releases.cells import Runner
from harness.releases.matrix import plan


@dataclass
class Probe:
    """`anomaly`: a name, or `any`. A release is clean when `repeats` runs with a verdict do not show it."""

    runner: Runner
    transport: str
    options: Sequence[str]
    anomaly: str
    repeats: int
    say: Callable[[str], None] = lambda _: None

    def __call__(self, release: str) -> bool:
        """True at the first run that shows it; raises HarnessError when a run has no verdict."""
        (cell,) = plan([release], [self.transport], self.options)
        for number in range(self.repeats):
            self.say(f"{cell.name}: run {number + 1} of at most {self.repeats}")
            result = self.runner.run(cell)
            if "anomalies" not in result:
                raise HarnessError(f"{cell.name}: {result['verdict']}: {result['error']}")
            names = {found["name"] for found in result["anomalies"]}
            if self.anomaly in names or (self.anomaly == "any" and names):
                return True
        return False
