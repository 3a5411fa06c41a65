"""What a session of tests did, from the reports of its tests: the same with and without workers of pytest-xdist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

PREFIX = "handoff."


class Tally:
    """Adds up the runs of all tests."""

    def __init__(self) -> None:
        """Nothing driven yet."""
        self.verdicts: Counter[str] = Counter()
        self.anomalies: Counter[str] = Counter()
        self.requests = 0
        self.seeds: set[str] = set()
        self.transports: set[str] = set()
        self.left: list[str] = []
        """What nodes left behind, a line each."""
        self.deselected = 0

    def take(self, properties: Iterable[tuple[str, Any]]) -> None:
        """Add the runs in the `properties` of one test's report, see `harness.pytest_plugin.result.Result.properties`."""
        for name, value in properties:
            if name.startswith(PREFIX):
                self._take(name.rpartition(".")[2], value)

    def _take(self, key: str, value: Any) -> None:
        if key == "verdict":
            self.verdicts[value] += 1
        elif key == "requests":
            self.requests += value
        elif key == "seed":
            self.seeds.add(str(value))
        elif key == "transport":
            self.transports.add(value)
        elif key == "anomalies":
            for part in filter(None, value.split(", ")):
                name, _, count = part.rpartition(" ")
                self.anomalies[name] += int(count)

    def lines(self) -> list[str]:
        """The summary; empty when there is nothing to say."""
        lines = []
        if self.verdicts:
            verdicts = ", ".join(
                f"{self.verdicts[name]} {name}" for name in ("valid", "invalid", "unknown") if self.verdicts[name]
            )
            drove = f"{self.requests} hand-offs driven in {self.verdicts.total()} runs ({verdicts})"
            found = ", ".join(f"{name} {count}" for name, count in self.anomalies.most_common()) or "none"
            lines.append(f"{drove}; seed {_some(self.seeds)}; transport {_some(self.transports)}; anomalies: {found}")
        if self.deselected:
            lines.append(
                f"{self.deselected} integration tests that drive hand-offs were deselected; run them with --integration"
            )
        return lines + [f"LEFT BEHIND: {line}" for line in self.left]


def _some(values: set[str], most: int = 5) -> str:
    """The values, at most `most` of them."""
    shown = sorted(values, key=lambda value: (len(value), value))
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
