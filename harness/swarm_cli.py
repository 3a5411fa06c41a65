"""`handoff swarm`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from harness.errors import EXIT_INVALID, EXIT_UNKNOWN, EXIT_VALID, FieldError
from harness.options import PLUGIN, changes_of
from harness.scenario import Scenario
from harness.swarm import Swarm, run, shape

BASE: dict[str, Any] = {
    "workload.duration_s": 3.0, "limits.transfer_timeout_s": 5.0, "limits.request_timeout_s": 30.0, "limits.drain_timeout_s": 60.0,
    "limits.min_window": 0, "limits.min_reuse": 0,
}  # fmt: skip


@click.command()
@click.option("--requests", default="100000", metavar="N", help="Stop after so many hand-offs (default 100000).")
@click.option("--seed", default="1", metavar="N", help="Draws the mixtures (default 1).")
@click.option("--kill", is_flag=True, help="Mixtures may kill nodes, too: each costs the start of a process.")
@click.option(
    "--topologies",
    is_flag=True,
    help="Each ten runs draw how many nodes and ranks there are, too: that costs their start.",
)
@PLUGIN
@click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Any field of the scenario, for all runs.")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), envvar="HANDOFF_RUNS", show_default=True,
    metavar="DIR", help="Where run folders go; those of valid runs are removed.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def swarm(
    context: click.Context,
    /,
    requests: str,
    seed: str,
    changes: tuple[str, ...],
    plugins: tuple[str, ...],
    runs: Path,
    *,
    kill: bool,
    topologies: bool,
    as_json: bool,
) -> None:
    """Run after run with a random mixture of faults; exit 1 for any anomaly, 3 where a kind of fault never came by in all of them."""
    for option, value in (("--requests", requests), ("--seed", seed)):
        if not value.isdecimal():
            raise FieldError(option, value, "a whole number")
    base = BASE | changes_of(changes, {"plugins": plugins})
    command = ["handoff", *context.obj]
    result = run(base, int(seed), max(int(requests), 1), runs, command, kill=kill, topologies=topologies, tell=_tell)
    if as_json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        _print(result)
    context.exit(EXIT_INVALID if result.anomalies else EXIT_UNKNOWN if result.bad or result.never else EXIT_VALID)


def _tell(swarm_: Swarm, chosen: Scenario, results: dict[str, Any]) -> None:
    found = {anomaly["name"]: anomaly["count"] for anomaly in results["anomalies"]}
    print(
        f"{swarm_.runs}: {results['verdict']}, {swarm_.requests} hand-offs so far; {chosen.transport.name}, {shape(chosen.topology)} "
        f"{' '.join(chosen.faults)} {found or ''}", file=sys.stderr, flush=True,
    )  # fmt: skip


def _print(result: Swarm) -> None:
    print(
        f"{result.runs} runs, {result.requests} hand-offs, {result.committed} committed; by transport {dict(result.by_transport)}, by topology {dict(result.by_topology)}"
    )
    print(f"verdicts {dict(result.verdicts)}; anomalies {dict(result.anomalies) or 'none'}")
    print("injected: " + ", ".join(f"{name} {count}" for name, count in sorted(result.hits.items())))
    if result.never:
        print(f"never injected: {', '.join(result.never)}")
    for bad in result.bad:
        print(
            f"{bad['verdict']}: {bad['folder']}: {' '.join(bad['faults'])}: {bad['anomalies'] or 'missing: ' + ', '.join(bad['missing'])}"
        )
