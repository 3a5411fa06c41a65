"""`handoff bugs`: list the catalogue, run it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from harness import extension
from harness.bugs.catalogue import BUGS, choose, on_engine
from harness.bugs.record import KINDS, Bug
from harness.bugs.run import Result, run_all, run_hosted
from harness.errors import EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID, FieldError
from harness.options import PLUGIN

SEEDS_MAX = 1000
HOSTED_ON = "mooncake==0.3.10.post2"
"""The transfer engine on which the public records were seen: a write is done when its bytes have left."""


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
@click.option(
    "--engine",
    metavar="NAME",
    help="Run their scenarios on a released engine instead, sglang==VERSION or path:DIR, and say what was seen; one seed.",
)
@click.option("--transport", default=HOSTED_ON, show_default=True, metavar="NAME", help="With --engine.")
@PLUGIN
@click.option("--json", "as_json", is_flag=True, help="One JSON object whose `bugs` are the results.")
@click.pass_context
def run(
    context: click.Context, /, ids: tuple[str, ...], kinds: tuple[str, ...], seeds: str, runs: Path, engine: str | None,
    transport: str, plugins: tuple[str, ...], *,
    as_json: bool,
) -> None:  # fmt: skip
    """Run records: exit 1 when a mutant survives or the reference is not clean."""
    if not seeds.isdecimal() or not 1 <= int(seeds) <= SEEDS_MAX:
        raise FieldError("--seeds", seeds, f"a whole number from 1 to {SEEDS_MAX}")
    pinned = [extension.pinned(plugin) for plugin in plugins]
    extension.use(pinned)
    chosen = choose(ids, kinds)
    if engine is not None:
        named = chosen if ids and "all" not in ids else [bug for bug in chosen if bug.hosted is not None]
        context.exit(_on_engine(named, engine, transport, runs, ["handoff", *context.obj], as_json=as_json))
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


def _on_engine(chosen: list[Bug], engine: str, transport: str, runs: Path, command: list[str], *, as_json: bool) -> int:
    """Exit 1 if the anomaly of any record was seen, 3 if a run proves nothing, else 0."""
    for bug in chosen:
        on_engine(bug, engine, transport)  # bad input is told before anything runs
    seen = []
    for bug in chosen:
        one = run_hosted(bug, engine, transport, runs, command)
        seen.append(one)
        found = ", ".join(f"{name} {count}" for name, count in one.found.items()) or "nothing"
        line = f"{one.id:18} on {one.engine}, {one.transport}: {one.anomaly} {'SEEN' if one.shown else 'not seen'}; found {found}; {one.seconds:.1f} s"
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps({"bugs": [one.to_dict() for one in seen]}, indent=1))
    unknown = any(one.verdict == "unknown" for one in seen)
    return EXIT_INVALID if any(one.shown for one in seen) else EXIT_UNKNOWN if unknown else EXIT_VALID


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
