"""`handoff matrix` and `handoff bisect`: released engines, cell by cell."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from harness.errors import EXIT_HARNESS, FieldError

KNOWN = ("0.5.8", "0.5.9", "0.5.10", "0.5.12.post1", "0.5.13", "0.5.17", "0.5.20", "0.5.23")
"""Releases of SGLang that were hosted with success; others may be named."""


def _names(field: str, text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise FieldError(field, text, "names with commas between them")
    return found


def _transports(mooncake: str, transports: str) -> list[str]:
    found = [f"mooncake=={version}" for version in _names("--mooncake", mooncake)] if mooncake else []
    return found + (_names("--transports", transports) if transports else [])


_COMMON = [
    click.option("--mooncake", metavar="V,V", default="", help="Versions of Mooncake."),
    click.option("--transports", metavar="T,T", default="", help="Other transfer engines, for example nixl,mooncake==0.3.13.post1."),
    click.option("--requests", metavar="N", default="3000", show_default=True, help="Hand-offs in each cell."),
    click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Any field of the scenario; repeatable."),
    click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds for each cell."),
    click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), envvar="HANDOFF_RUNS", show_default=True, metavar="DIR", help="Where run folders go."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    click.option("--quiet", is_flag=True, help="No progress."),
]  # fmt: skip


def _common(command: Any) -> Any:
    for option in reversed(_COMMON):
        command = option(command)
    return command


def _options(requests: str, changes: tuple[str, ...]) -> list[str]:
    return ["--requests", requests, *(word for change in changes for word in ("--set", change))]


def _say(*, quiet: bool) -> Any:
    console = Console(stderr=True)
    return (lambda _: None) if quiet else lambda text: console.print(text, highlight=False, soft_wrap=True)


@click.command(epilog="Exit 0 when every cell has a verdict, whatever it is; 4 when one failed or hung.")
@click.option(
    "--releases", metavar="V,V", default=",".join(KNOWN), show_default=True, help="Releases of SGLang, or path:DIR."
)
@_common
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write the table as Markdown, too.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the table as a page, too.")
@click.pass_context
def matrix(
    context: click.Context, /, releases: str, mooncake: str, transports: str, requests: str, changes: tuple[str, ...],
    timeout_s: float, runs: Path, *, as_json: bool, quiet: bool, markdown: Path | None, html: Path | None,
) -> None:  # fmt: skip
    """Drive the same stress through each release over each transfer engine; one table."""
    from harness.releases import matrix as matrices  # noqa: PLC0415  keeps `handoff --help` quick
    from harness.releases.cells import Runner  # noqa: PLC0415
    from harness.releases.fetch import fetch  # noqa: PLC0415
    from harness.report import write  # noqa: PLC0415

    wanted = _transports(mooncake, transports) or ["mooncake"]
    cells = matrices.plan(_names("--releases", releases), wanted, _options(requests, changes))
    fetch(cells, _say(quiet=quiet))
    runner = Runner(runs, timeout_s)
    try:
        matrices.run(cells, runner, _say(quiet=quiet))
    finally:  # Ctrl-C keeps what is done
        results = runner.results
        if results:
            command = shlex.join(["handoff", *context.obj])
            if markdown:
                write(markdown, matrices.markdown(results))
            if html:
                write(html, matrices.page(results, command))
            if as_json:
                print(json.dumps({"cells": results, "command": command}, indent=1))
            else:
                Console(width=None if Console().is_terminal else 180).print(matrices.table(results))
    if any(result["verdict"] in {"failed", "hung"} for result in results):
        context.exit(EXIT_HARNESS)


@click.command()
@click.option("--good", metavar="V", required=True, help="A release that does not show it.")
@click.option("--bad", metavar="V", required=True, help="A release that shows it.")
@click.option("--releases", metavar="V,V", default=",".join(KNOWN), show_default=True, help="Releases to search among.")
@click.option(
    "--anomaly", metavar="NAME", default="false-abort", show_default=True, help="What to look for; `any` for any."
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="A release is clean when so many runs do not show it.",
)
@_common
@click.pass_context
def bisect(
    context: click.Context, /, good: str, bad: str, releases: str, anomaly: str, repeats: int, mooncake: str, transports: str,
    requests: str, changes: tuple[str, ...], timeout_s: float, runs: Path, *, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Find the release that stopped, or began, to show an anomaly.

    A race is chance: one run that shows it is proof, a run that does not is none. A release counts as clean after `--repeats` runs
    in which the race could have shown and did not; a run in which no status came before its data is not one of them.
    """
    from harness.check.rules import ANOMALIES  # noqa: PLC0415  keeps `handoff --help` quick
    from harness.releases import bisect as bisects  # noqa: PLC0415
    from harness.releases.cells import Runner  # noqa: PLC0415
    from harness.releases.fetch import fetch  # noqa: PLC0415
    from harness.releases.matrix import plan  # noqa: PLC0415
    from harness.releases.probe import Probe  # noqa: PLC0415

    if anomaly not in ANOMALIES and anomaly != "any":
        raise FieldError("--anomaly", anomaly, "any, or one of " + ", ".join(ANOMALIES))
    wanted = _transports(mooncake, transports) or ["mooncake"]
    if len(wanted) > 1:
        raise FieldError("--mooncake", ",".join(wanted), "one transfer engine")
    among = bisects.between(_names("--releases", releases), good, bad)
    fetch(plan(among, wanted, []), _say(quiet=quiet))
    probe = Probe(Runner(runs, timeout_s), wanted[0], _options(requests, changes), anomaly, repeats, _say(quiet=quiet))
    found = bisects.bisect(among, good, bad, probe)
    command = shlex.join(["handoff", *context.obj])
    if as_json:
        print(
            json.dumps(
                {
                    "good": found.good,
                    "bad": found.bad,
                    "fixed": found.fixed,
                    "tried": found.tried,
                    "asked": {release: asked.to_dict() for release, asked in probe.asked.items()},
                    "cells": probe.runner.results,
                    "command": command,
                },
                indent=1,
            )
        )
    else:
        for release, asked in probe.asked.items():
            print(f"{release}: {asked.sentence}")
        print(found.sentence)
