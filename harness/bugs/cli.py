"""`handoff bugs`: list the catalogue, run it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from harness import extension
from harness.bugs.catalogue import BUGS, choose
from harness.bugs.record import KINDS
from harness.bugs.run import Result, run_all
from harness.errors import EXIT_INVALID, EXIT_VALID, FieldError
from harness.options import PLUGIN

SEEDS_MAX = 1000


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object whose `bugs` are the records.")
@click.pass_context
def bugs(context: click.Context, /, *, as_json: bool) -> None:
    """Known public bugs: what each is, and the mutant that models it."""
    if context.invoked_subcommand is None:
        print(json.dumps({"bugs": _records()}, indent=1)) if as_json else _table()


def _records() -> list[dict[str, object]]:
    names = ("id", "kind", "url", "seen", "mechanism", "mutant", "faults", "anomaly", "note")
    return [{name: getattr(bug, name) for name in names} | {"changes": dict(bug.changes)} for bug in BUGS]


def _table() -> None:
    table = Table(title="Known bugs; run one with: handoff bugs run ID", title_justify="left")
    for heading in ("id", "kind", "seen as", "mutant of the reference", "expected anomaly"):
        table.add_column(heading, overflow="fold", no_wrap=heading in {"id", "kind"})
    for bug in BUGS:
        table.add_row(bug.id, bug.kind, bug.seen, bug.mutant, bug.anomaly)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print("\n".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items()))


@bugs.command()
@click.argument("ids", nargs=-1, metavar="[ID]... | all")
@click.option("--kind", "kinds", multiple=True, metavar="K2", help="All records of a kind; repeatable.")
@click.option("--seeds", default="1", metavar="N", help="Run each record with seeds 1 to N (default 1).")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), envvar="HANDOFF_RUNS", show_default=True,
    metavar="DIR", help="Where run folders go.",
)  # fmt: skip
@PLUGIN
@click.option("--json", "as_json", is_flag=True, help="One JSON object whose `bugs` are the results.")
@click.pass_context
def run(
    context: click.Context, /, ids: tuple[str, ...], kinds: tuple[str, ...], seeds: str, runs: Path, plugins: tuple[str, ...], *,
    as_json: bool,
) -> None:  # fmt: skip
    """Run records: exit 1 when a mutant survives or the reference is not clean."""
    if not seeds.isdecimal() or not 1 <= int(seeds) <= SEEDS_MAX:
        raise FieldError("--seeds", seeds, f"a whole number from 1 to {SEEDS_MAX}")
    pinned = [extension.pinned(plugin) for plugin in plugins]
    extension.use(pinned)
    chosen = choose(ids, kinds)
    results = run_all(
        chosen,
        range(1, int(seeds) + 1),
        runs,
        ["handoff", *context.obj],
        lambda one: _tell(one, as_json=as_json),
        pinned,
    )
    good = all(result.caught and result.reference_clean for result in results)
    if as_json:
        print(json.dumps({"bugs": [result.to_dict() for result in results]}, indent=1))
    else:
        total = sum(result.seconds for result in results)
        survived = [result.id for result in results if not result.caught]
        dirty = [result.id for result in results if not result.reference_clean]
        print(
            f"{len(results)} records in {total:.0f} s: {len(survived)} mutants survived, the reference was not clean on {len(dirty)}"
        )
    context.exit(EXIT_VALID if good else EXIT_INVALID)


def _tell(result: Result, *, as_json: bool) -> None:
    state = "caught" if result.caught else f"SURVIVED ({result.caught_seeds} of {result.seeds} caught)"
    found = ", ".join(f"{name} {count}" for name, count in result.found.items()) or "nothing"
    clean = (
        "reference clean"
        if result.reference_clean
        else f"REFERENCE {result.reference_verdict.upper()} {result.reference or ''}"
    )
    line = f"{result.id:18} {result.kind:4} {state}: wanted {result.anomaly}, found {found}; {clean}; {result.seconds:.1f} s"
    print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
