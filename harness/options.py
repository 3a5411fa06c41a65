"""Options that several commands share: which scenario is run, and where its folder goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

OPTION_FIELDS = {
    "engine": "engine.name",
    "guards": "guards",
    "transport": "transport.name",
    "planes": "planes",
    "requests": "workload.requests",
    "duration": "workload.duration_s",
    "concurrency": "workload.concurrency",
    "prefill": "topology.prefill",
    "decode": "topology.decode",
    "prefill_tp": "topology.prefill_tp",
    "prefill_pp": "topology.prefill_pp",
    "decode_tp": "topology.decode_tp",
    "prefill_dp": "topology.prefill_dp",
    "decode_dp": "topology.decode_dp",
    "slots": "engine.slots",
    "abort_fraction": "workload.abort_fraction",
    "hold_ms": "workload.hold_ms",
    "seed": "seed",
}
"""Options that set a field of the scenario."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PLUGIN: Decorator = click.option(
    "--plugin", "plugins", envvar="HANDOFF_PLUGINS", metavar="FILE", multiple=True,
    help="A Python file with faults, guards, mutants, invariants or engines of your own, see docs/extending.md; repeatable.",
)  # fmt: skip
"""Of every command that runs scenarios."""

_SCENARIO: tuple[Decorator, ...] = (
    click.argument("scenario", required=False, type=click.Path(path_type=Path)),
    click.option("--engine", metavar="NAME", help="reference, sglang==VERSION or path:DIR (default reference); decode= or prefill= before it: that side alone."),
    click.option("--guards", metavar="PRESET[,+G,-G]", help="Preset, edited guard by guard; see `handoff guards`."),
    click.option("--transport", metavar="NAME", help="shm, tcp, gloo, nixl-tcp, nixl-shm, mooncake[==VERSION] (default shm)."),
    click.option("--planes", metavar="NAME", help="split, or shared: the row on the control socket (default split)."),
    click.option("--requests", metavar="N", help="Hand-offs to drive."),
    click.option("--duration", metavar="SECONDS", help="How long to drive (default 10 without --requests)."),
    click.option("--concurrency", metavar="N", help="Hand-offs in flight (default 32)."),
    click.option("--prefill", metavar="N", help="Prefill instances (default 1)."),
    click.option("--decode", metavar="N", help="Decode instances (default 1)."),
    click.option("--prefill-tp", metavar="N", help="Tensor parallel ranks of each prefill instance (default 1)."),
    click.option("--prefill-pp", metavar="N", help="Pipeline stages of each prefill instance (default 1)."),
    click.option("--decode-tp", metavar="N", help="Tensor parallel ranks of each decode instance (default 1)."),
    click.option("--prefill-dp", metavar="N", help="Data parallel ranks of each prefill instance (default 1)."),
    click.option("--decode-dp", metavar="N", help="Data parallel ranks of each decode instance (default 1)."),
    click.option("--slots", metavar="N", help="Metadata slots of each decode node (default 32)."),
    click.option("--abort-fraction", metavar="F", help="Share of requests that their client gives up in flight."),
    click.option("--hold-ms", metavar="MS", help="How long a forward pass takes at most, and how soon clients give up."),
    click.option("--seed", metavar="N", help="Fixes workload and delays, not the interleaving (default 1)."),
    PLUGIN,
    click.option("--fault", "faults", envvar="HANDOFF_FAULTS", metavar="FAULT", multiple=True, help="A fault, see `handoff faults`; repeatable."),
    click.option(
        "--set", "changes", envvar="HANDOFF_SET", metavar="FIELD=VALUE", multiple=True, help="Any field of the scenario; repeatable."
    ),
    click.option(
        "--runs", type=click.Path(path_type=Path), default=Path("runs"), envvar="HANDOFF_RUNS", show_default=True,
        metavar="DIR", help="Where run folders go.",
    ),
)  # fmt: skip


def scenario_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument SCENARIO and every option that changes it, and `--runs`."""
    for decorate in reversed(_SCENARIO):
        command = decorate(command)
    return command


def changes_of(changes: Iterable[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted field to value of `--set` and of the options by name; raises FieldError."""
    from harness.scenario import parse_set  # noqa: PLC0415  keeps `handoff --help` quick

    wanted = dict(map(parse_set, changes))
    for option, field in OPTION_FIELDS.items():
        if options.get(option) is not None:
            wanted |= [parse_set(f"{field}={options[option]}")]
    if options.get("faults"):
        wanted["faults"] = list(options["faults"])
    if options.get("plugins"):
        wanted["plugins"] = list(options["plugins"])
    return wanted
