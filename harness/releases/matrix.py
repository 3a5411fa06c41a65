"""Releases by transfer engines: which cells, and one table of what came of them (terminal, Markdown, HTML, JSON)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jinja2
from rich.table import Table

from harness.check.report import interval95
from harness.releases.cells import Cell, Runner
from harness.report.words import percent

HEADS = (
    "release",
    "transfer engine",
    "hand-offs",
    "false aborts",
    "wrong data",
    "hung",
    "leaked",
    "crashes",
    "s",
    "verdict",
)


def plan(
    releases: Sequence[str], transports: Sequence[str], options: Sequence[str], engine: str = "sglang"
) -> list[Cell]:
    """A cell for each release and transport (`mooncake==0.3.10.post2`, or a name alone), release by release.

    A release is a version of `engine`, or whatever `--engine` takes: `path:DIR`, `decode=sglang==VERSION`.
    """
    cells = []
    for release in releases:
        for transport in transports:
            name, _, version = transport.partition("==")
            spec = release if ":" in release or "=" in release else f"{engine}=={release}"
            chosen = ("--engine", spec, "--transport", transport, *options)
            cells.append(Cell(release, name, version, chosen))
    return cells


def run(
    cells: Sequence[Cell], runner: Runner, progress: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Run every cell; `progress` is told before each which one it is and how long the rest may take."""
    results: list[dict[str, Any]] = []
    for number, cell in enumerate(cells):
        spent = sum(result["seconds"] for result in results)
        left = f", about {spent / number * (len(cells) - number):.0f} s left" if number else ""
        progress(f"cell {number + 1} of {len(cells)}: {cell.name}{left}")
        results.append(runner.run(cell))
    return results


def rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Text of each cell of the table, in the order of HEADS."""
    return [_row(result) for result in results]


def _row(result: dict[str, Any]) -> list[str]:
    engine = " ".join(filter(None, (result["transfer_engine"], result["transfer_engine_version"])))
    head, tail = [result["release"], engine], [f"{result['seconds']:.0f}", _verdict(result)]
    if "requests" not in result:
        return [*head, *["-"] * (len(HEADS) - 4), *tail]
    counted = [str(result["hung"]), str(result["leaked"]), str(crashes(result))]
    return [
        *head,
        str(result["requests"]),
        *(_rate(result, name) for name in ("false_aborts", "wrong_data")),
        *counted,
        *tail,
    ]


def _verdict(result: dict[str, Any]) -> str:
    word = str(result["verdict"])
    return f"{word}: {result['error']}" if result.get("error") else word


def crashes(result: dict[str, Any]) -> int:
    """How many node processes ended unasked."""
    return sum(int(anomaly["count"]) for anomaly in result["anomalies"] if anomaly["name"] == "crash")


def _rate(result: dict[str, Any], name: str) -> str:
    """`89 = 2.97 % (2.42 to 3.63 %)`; none seen: `0 (below 0.1 %)`, the rule of three."""
    count, of = int(result[name]), int(result["requests"])
    low, high = interval95(count, of)
    if not count:
        return f"0 (below {percent(high)})"
    return f"{count} = {percent(count / of)} ({low * 100:.3g} to {percent(high)})"


def table(results: Sequence[dict[str, Any]]) -> Table:
    """The table for a terminal."""
    shown = Table(title="hand-off matrix (95 % intervals)", title_justify="left")
    for head in HEADS:
        shown.add_column(
            head, justify="left" if head in {"release", "transfer engine", "verdict"} else "right", overflow="fold"
        )
    for row in rows(results):
        shown.add_row(*row)
    return shown


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table as GitHub's Markdown, with a final newline."""
    lines = [HEADS, ["---"] * len(HEADS), *rows(results)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def page(results: Sequence[dict[str, Any]], command: str) -> str:
    """The table as one HTML file that works offline."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    first: dict[str, Any] = next((result for result in results if "versions" in result), {})
    return environment.get_template("matrix.html.j2").render(
        heads=HEADS, rows=rows(results), results=results, command=command, versions=first.get("versions", {}),
        machine=first.get("machine", {}),
    )  # fmt: skip
