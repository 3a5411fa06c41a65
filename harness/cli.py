"""`handoff`: parse, call, print, exit code. Exit 0 valid, 1 invalid, 2 usage, 3 unknown, 4 harness error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.table import Table

from harness import __version__
from harness.errors import EXIT_HARNESS, EXIT_INVALID, EXIT_UNKNOWN, EXIT_USAGE, EXIT_VALID, HandoffError

EXIT_OF = {"valid": EXIT_VALID, "invalid": EXIT_INVALID, "unknown": EXIT_UNKNOWN}
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="handoff", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Stress the prefill/decode hand-off with real processes and judge the recorded history.",
)  # fmt: skip


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=lambda wanted: _version(wanted), help="Print the version.")
    ] = False,
) -> None:
    del version


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pd-handoff {__version__}")
        raise typer.Exit


@app.command(help="Run a stress scenario and judge it. Exit 0 valid, 1 invalid, 2 usage, 3 unknown, 4 harness error.")
def stress(
    scenario: Annotated[Path | None, typer.Argument(help="TOML file; without it the defaults.", show_default=False)] = None,
    guards: Annotated[str | None, typer.Option(help="Preset, edited: NAME,+guard,-guard; see `handoff guards`.")] = None,
    transport: Annotated[str | None, typer.Option(help="shm or tcp.")] = None,
    planes: Annotated[str | None, typer.Option(help="split, or shared: the row on the control socket.")] = None,
    requests: Annotated[int | None, typer.Option(help="Hand-offs to drive.")] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds to drive (default 10 without --requests).")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Hand-offs in flight.")] = None,
    slots: Annotated[int | None, typer.Option(help="Metadata slots of each decode node.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes workload and delays, not the interleaving.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the scenario; repeatable.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders go.", envvar="HANDOFF_RUNS")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of text.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run one scenario."""
    from harness import scenario as scenarios  # noqa: PLC0415  keeps `handoff --help` quick
    from harness import stress as stresses  # noqa: PLC0415
    from harness.live import display  # noqa: PLC0415
    from harness.runfolder import repeat_command  # noqa: PLC0415

    options = {
        "guards": guards, "transport.name": transport, "planes": planes, "workload.requests": requests,
        "workload.duration_s": duration, "workload.concurrency": concurrency, "engine.slots": slots, "seed": seed,
    }  # fmt: skip
    wanted: dict[str, Any] = dict(map(scenarios.parse_set, changes or []))
    wanted |= {field: value for field, value in options.items() if value is not None}
    chosen = scenarios.load(scenario, wanted)
    progress = display(Console(stderr=True), quiet=quiet)
    outcome = stresses.run(chosen, runs, repeat_command(_arguments()), progress)
    _print(outcome.results, as_json=as_json)
    raise typer.Exit(EXIT_OF[outcome.report.verdict])


@app.command(help="Judge a recorded run again, from its history alone. Exit codes as of stress.")
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, for example runs/latest.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of text.")] = False,
) -> None:
    """Check one run folder."""
    from harness import stress as stresses  # noqa: PLC0415
    from harness.runfolder import RunFolder  # noqa: PLC0415

    outcome = stresses.judge(RunFolder(folder))
    _print(outcome.results, as_json=as_json)
    raise typer.Exit(EXIT_OF[outcome.report.verdict])


@app.command(help="Which guards each preset has, and what each prevents.")
def guards(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print the table of guards."""
    from harness.protocol.guards import PRESETS, PREVENTS  # noqa: PLC0415

    if as_json:
        presets = {name: {guard: getattr(record, guard) for guard in PREVENTS} for name, record in PRESETS.items()}
        print(json.dumps({"presets": presets, "prevents": PREVENTS}, indent=1))
        return
    table = Table(title="Guards by preset; edit one with NAME,+guard,-guard", title_justify="left")
    table.add_column("guard", no_wrap=True)
    for name in PRESETS:
        table.add_column(name.replace("sglang-", ""), justify="center")
    table.add_column("prevents", overflow="fold", min_width=40)
    for guard, prevents in PREVENTS.items():
        table.add_row(guard, *("yes" if getattr(record, guard) else "-" for record in PRESETS.values()), prevents)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _print(results: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        from harness.summary import render  # noqa: PLC0415

        Console(highlight=False, soft_wrap=True).print(render(results), markup=False)


_given: list[str] = []


def _arguments() -> list[str]:
    return list(_given)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `handoff` command."""
    _given[:] = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=_given, standalone_mode=False)
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.ClickException as error:
        print(f"handoff: {error.format_message()}", file=sys.stderr)
        code = EXIT_USAGE
    except HandoffError as error:
        print(f"handoff: {error}", file=sys.stderr)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        print("handoff: interrupted; what was recorded can be judged with: handoff check runs/latest", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; nothing more can be said to it
        code = EXIT_HARNESS
    except OSError as error:
        print(f"handoff: {error}", file=sys.stderr)
        code = EXIT_HARNESS
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
