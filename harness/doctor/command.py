"""`handoff doctor`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from harness.doctor.finding import Finding, can_stress
from harness.errors import EXIT_INVALID, EXIT_VALID

COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}


@click.command(epilog="Exit 0 when `handoff stress` can run, 1 when something that it needs is missing.")
@click.option("--online", is_flag=True, help="Ask a package index, too: one request.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def doctor(context: click.Context, /, *, online: bool, as_json: bool) -> None:
    """Say what of this works on this machine, what is missing, and how to get it. Changes nothing, fetches nothing."""
    from harness.doctor.examine import checks, examine  # noqa: PLC0415  keeps `handoff --help` quick

    findings = examine(checks(online=online))
    runs = can_stress(findings)
    if as_json:
        click.echo(json.dumps({"can_stress": runs, "items": [found.to_dict() for found in findings]}, indent=1))
    else:
        show(findings)
    context.exit(EXIT_VALID if runs else EXIT_INVALID)


def show(findings: Sequence[Finding]) -> None:
    """Print a line for each item, and the verdict."""
    width = max(len(found.item) for found in findings)
    for found in findings:
        click.echo(f"{click.style(f'{found.state:7}', fg=COLOURS[found.state])}  {found.item:{width}}  {_line(found)}")
    missing = [found.item for found in findings if found.needed and found.state == "missing"]
    click.echo("handoff stress can run" if not missing else f"handoff stress cannot run without: {', '.join(missing)}")


def _line(found: Finding) -> str:
    parts = [found.seen, found.means, f"help: {found.help}" if found.help else ""]
    return "; ".join(part for part in parts if part)
