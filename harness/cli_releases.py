"""`handoff releases`: fetch released engines, list them, and check them in chosen orders."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness.errors import EXIT_HARNESS, EXIT_INVALID, EXIT_VALID


@click.group()
def releases() -> None:
    """Released engines: fetch them, list them, check them one by one without load."""


@releases.command()
@click.argument("versions", nargs=-1, required=True, metavar="VERSION...")
def install(versions: tuple[str, ...]) -> None:
    """Fetch releases of SGLang into the cache, for example 0.5.12.post1 0.5.13."""
    from harness.releases import hosted  # noqa: PLC0415  keeps `handoff --help` quick

    for version in versions:
        engine = hosted.parse(f"{hosted.SGLANG}=={version}")
        (folder,) = hosted.first_folders(engine)
        hosted.base_folders(engine)
        click.echo(f"{engine.name}: {folder}")


@releases.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_(*, as_json: bool) -> None:
    """List the releases that are in the cache."""
    from harness.releases import hosted, overlay  # noqa: PLC0415

    found = {version: str(overlay.path(hosted.SGLANG, version)) for version in overlay.installed(hosted.SGLANG)}
    if as_json:
        click.echo(json.dumps({hosted.SGLANG: found}, indent=1))
        return
    for version, folder in found.items():
        click.echo(f"{hosted.SGLANG}=={version}: {folder}")
    if not found:
        click.echo("none; fetch some with: handoff releases install 0.5.12.post1 0.5.13")


@releases.command(epilog="Exit 0 when no release has any of the holes, 1 when one has, 4 when a check did not end.")
@click.argument("names", nargs=-1, required=True, metavar="RELEASE...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds for each release.")
@click.pass_context
def check(context: click.Context, /, names: tuple[str, ...], *, as_json: bool, timeout_s: float) -> None:
    """Step the real hand-off of each RELEASE through orders that are known to go wrong; no load, no transfer engine.

    RELEASE is a version such as 0.5.13, or path:DIR for a working tree. Each runs in a process of its own.
    """
    from harness.releases.check import MEANINGS, check_release  # noqa: PLC0415

    results = {name: check_release(name, timeout_s) for name in names}
    if as_json:
        click.echo(json.dumps({"meanings": MEANINGS, "releases": results}, indent=1))
    else:
        _show(results, MEANINGS)
    context.exit(_exit_code(results))


def _exit_code(results: dict[str, dict[str, Any]]) -> int:
    if any(result["error"] or result["problems"] for result in results.values()):
        return EXIT_HARNESS
    return EXIT_INVALID if any(any(result["found"].values()) for result in results.values()) else EXIT_VALID


def _show(results: dict[str, dict[str, Any]], meanings: dict[str, str]) -> None:
    console = Console(width=None if Console().is_terminal else 160)
    table = Table(title="Holes that a release has", title_justify="left")
    table.add_column("release", no_wrap=True)
    for name in meanings:
        table.add_column(name, justify="center")
    table.add_column("s", justify="right")
    for name, result in results.items():
        cells = [{True: "yes", False: "no"}.get(result["found"].get(hole), "?") for hole in meanings]
        table.add_row(name, *cells, f"{result['seconds']:.1f}")
    console.print(table)
    for name, meaning in meanings.items():
        console.print(f"{name}: {meaning}", highlight=False, soft_wrap=True)
    for name, result in results.items():
        for problem in (*result["provoked"].items(), *result["problems"].items(), ("", result["error"])):
            if problem[1]:
                console.print(f"{name}: {': '.join(filter(None, problem))}", highlight=False, soft_wrap=True)
