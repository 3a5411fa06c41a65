"""`handoff sweep` and `handoff tune`: parse, call, print, exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.options import scenario_options

EXITS = "Exit 0 every run was made (what it found is in the table), 2 usage, 4 harness error, 130 interrupted."
TUNE_EXITS = "Exit 0 recommended, 2 usage, 3 nothing keeps the bound, 4 harness error, 130 interrupted."

_KEEP = click.option(
    "--history", "keep", type=click.Choice(["anomalies", "all", "none"]), default="anomalies", show_default=True,
    help="Whose recorded events stay: of runs with anomalies, of all, of none. Results always stay.",
)  # fmt: skip
_QUIET = click.option("--quiet", is_flag=True, help="No progress.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


@click.command(epilog=EXITS)
@scenario_options
@click.option(
    "--grid", "grid", metavar="FIELD=V1,V2", multiple=True,
    help="An axis; repeatable. Values with commas: quoted, separated by ';', or a TOML list.",
)  # fmt: skip
@click.option("--seconds-per-cell", type=float, metavar="S", help="Load of a cell, its repeats together (default 3).")
@click.option(
    "--repeats", type=int, metavar="N", help="Rounds; each has every cell once, in another order (default 3)."
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Make only what is missing there.")
@_KEEP
@_JSON
@_QUIET
@click.pass_context
def sweep(context: click.Context, /, **options: Any) -> None:
    """Run a scenario over a grid of values, and show what each costs."""
    from harness.sweep import sweep as work  # noqa: PLC0415  keeps `handoff --help` quick

    context.exit(work.main(["handoff", *context.obj], options))


@click.command(epilog=TUNE_EXITS)
@scenario_options
@click.option(
    "--p99-ms", type=float, metavar="MS", help="Bound of the latency's p99; without it, the knee alone decides."
)
@click.option("--max-concurrency", type=int, metavar="N", default=512, show_default=True, help="Look no further.")
@click.option("--seconds-per-run", type=float, metavar="S", default=0.5, show_default=True, help="Load of one run.")
@click.option("--repeats", type=int, metavar="N", default=11, show_default=True, help="Rounds of the decisive cells.")
@_KEEP
@_JSON
@_QUIET
@click.pass_context
def tune(context: click.Context, /, **options: Any) -> None:
    """Find the concurrency and the smallest slot pool (--slots auto) for the highest rate within a bound."""
    from harness.sweep import tune as work  # noqa: PLC0415

    context.exit(work.main(["handoff", *context.obj], options))
