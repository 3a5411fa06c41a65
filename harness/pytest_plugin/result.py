"""What a run gave, for a test to look at, and how its failure reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

SHOWN = (
    "verdict", "guards", "transport", "planes", "seed", "requests", "committed", "false_aborts", "other_aborts", "wrong_data", "hung",
    "leaked", "rate_per_s", "duration_s",
)  # fmt: skip
"""Keys of `results.json` that become properties of the test, in JUnit too."""


class NotValid(AssertionError):
    """A run that should have been valid was not. `result` is the run's."""

    __module__ = "handoff"  # short where a report's line is cut; it is imported from harness.pytest_plugin

    def __init__(self, result: Result) -> None:
        """The message is the whole story: names, witness, folder, command."""
        super().__init__(describe(result))
        self.result = result


class Result(Mapping[str, Any]):
    """One judged run: every key of its `results.json` as an item and as an attribute (`result.false_aborts`)."""

    def __init__(self, results: Mapping[str, Any], test: str) -> None:
        """`results` is the content of results.json, `test` the command that runs the test again."""
        self._results = results
        self.test = test

    def __getitem__(self, key: str) -> Any:
        """The value of a key of results.json."""
        return self._results[key]

    def __iter__(self) -> Iterator[str]:
        """Keys of results.json."""
        return iter(self._results)

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._results)

    def __getattr__(self, name: str) -> Any:
        """A key of results.json as an attribute."""
        if not name.startswith("_") and name in self._results:
            return self._results[name]
        raise AttributeError(
            f"{name}: a result has no such figure; it has {', '.join(self.__dict__.get('_results', ()))}"
        )

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self._results["folder"])

    @property
    def names(self) -> set[str]:
        """Names of the anomalies that were found."""
        return {anomaly["name"] for anomaly in self._results["anomalies"]}

    def assert_valid(self, *, allow_unknown: bool = False) -> Self:
        """Fail unless the verdict is valid; `allow_unknown` also takes a run that found nothing and could not have shown the race."""
        __tracebackhide__ = True
        if self._results["verdict"] not in ({"valid", "unknown"} if allow_unknown else {"valid"}):
            raise NotValid(self)
        return self

    def properties(self, number: int) -> list[tuple[str, Any]]:
        """Figures of this run, the `number`th of its test (from 1), by a name that is unique in the test."""
        prefix = "handoff." if number == 1 else f"handoff.{number}."
        figures = {key: self._results[key] for key in SHOWN}
        latency_ms = {f"latency_{name}_ms": round(value, 3) for name, value in self._results["latency_ms"].items()}
        rest = {"anomalies": counts(self), "folder": str(self.folder), "command": self._results["command"]}
        return [(prefix + key, value) for key, value in {**figures, **latency_ms, **rest}.items()]

    def __repr__(self) -> str:
        """The run in a line: a failed comparison shows it."""
        return f"<{headline(self)}; {shown_path(self.folder)}>"


def counts(result: Result) -> str:
    """`false-abort 622, late-write 587`; empty where nothing was found."""
    return ", ".join(f"{anomaly['name']} {anomaly['count']}" for anomaly in result["anomalies"])


def headline(result: Result) -> str:
    """The verdict in a line, with what it rests on."""
    if result["verdict"] == "invalid":
        found = ", ".join(f"{anomaly['name']} {anomaly['count']} of {anomaly['of']}" for anomaly in result["anomalies"])
        return f"invalid: {found}"
    if result["verdict"] == "unknown":
        return f"unknown: nothing was found, and this run could not have shown it: {'; '.join(missing(result))}"
    return f"valid: {result['requests']} hand-offs"


def missing(result: Result) -> list[str]:
    """What kept the run from proving anything."""
    lacking = [
        f"{item['name']} {item['seen']:g} (needs {item['needed']:g})" for item in result["coverage"] if not item["met"]
    ]
    if result["interrupted"]:
        lacking.append("it was interrupted")
    return lacking + list(result["notes"]) + [f"not checked: {what}" for what in result["not_checked"]] or [
        "see results.json"
    ]


def describe(result: Result) -> str:
    """The whole story of a run, its first line the headline: figures, each anomaly, a witness, the folder, how to repeat it."""
    figures = (
        f"guards {result['guards']}, transport {result['transport']}, planes {result['planes']}, seed {result['seed']}: "
        f"{result['requests']} hand-offs, {result['false_aborts']} false aborts, {result['wrong_data']} wrong data, "
        f"{result['hung']} hung, {result['leaked']} leaked"
    )
    folder = shown_path(result.folder)
    lines = [headline(result), figures, *map(_anomaly, result["anomalies"]), *_witness(result), ""]
    lines += [f"run folder: {folder} (handoff report {folder})", f"repeat with: {result['command']}"]
    return "\n".join([*lines, f"or the test: {result.test}"])


def _anomaly(anomaly: Mapping[str, Any]) -> str:
    low, high = anomaly["interval"]
    share = f"{anomaly['rate']:.3%} (95 %: {low:.3%} to {high:.3%})"
    return f"{anomaly['name']}: {anomaly['count']} of {anomaly['of']} = {share}: {anomaly['meaning']}"


def _witness(result: Result) -> list[str]:
    """One case of the first anomaly that has one; results.json has more."""
    from harness.timeline import render  # noqa: PLC0415  only a failure needs it

    for anomaly in result["anomalies"]:
        if anomaly["witnesses"]:
            return [
                "",
                f"a case of {anomaly['name']}:",
                *("  " + line for line in render(anomaly["witnesses"][0]).splitlines()),
            ]
    return []


def shown_path(path: Path) -> str:
    """`path` relative to where we are, if it is below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
