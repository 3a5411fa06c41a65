"""`handoff`: parse, call, print, exit code. Exit 0 valid, 1 invalid, 2 usage, 3 unknown, 4 harness error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import zmq
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from harness import __version__
from harness.bugs.cli import bugs
from harness.cli_matrix import bisect, matrix
from harness.cli_releases import releases
from harness.doctor.command import doctor
from harness.errors import EXIT_HARNESS, EXIT_INVALID, EXIT_UNKNOWN, EXIT_USAGE, EXIT_VALID, HandoffError
from harness.options import OPTION_FIELDS, PLUGIN, changes_of, scenario_options
from harness.swarm_cli import swarm
from harness.sweep.commands import sweep, tune

EXIT_OF = {"valid": EXIT_VALID, "invalid": EXIT_INVALID, "unknown": EXIT_UNKNOWN}
EXIT_INTERRUPTED = 130
ENVIRONMENT = " Options may also come from the environment: HANDOFF_GUARDS=hardened is --guards hardened."
EXITS = "Exit 0 valid, 1 invalid, 2 usage, 3 unknown, 4 harness error."


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="pd-handoff", message="%(prog)s %(version)s")
def app() -> None:
    """Stress the prefill/decode hand-off with real processes and judge the recorded history."""


@app.command(epilog=EXITS + ENVIRONMENT, context_settings={"auto_envvar_prefix": "HANDOFF"})
@scenario_options
@click.option("--registry", metavar="ADDRESS", help="Use nodes started by hand: ZMQ address of their registry.")
@click.option("--inbox", metavar="ADDRESS", default="tcp://127.0.0.1:*", help="With --registry: ZMQ address to bind.")
@click.option("--cluster", metavar="NAME", default="handoff", help="With --registry: the nodes' --cluster.")
@click.option(
    "--leave-as", metavar="NAME", help="With --registry: nodes leave after the run only if NAME is this host."
)
@click.option("--json", "as_json", is_flag=True, help="Print results.json instead of text.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.pass_context
def stress(
    context: click.Context, /, scenario: Path | None, changes: tuple[str, ...], runs: Path, *, as_json: bool, quiet: bool,
    registry: str | None, inbox: str, cluster: str, leave_as: str | None, **options: Any,
) -> None:  # fmt: skip
    """Run a stress scenario (a TOML file; without one, the defaults) and judge it."""
    from harness import report as reports  # noqa: PLC0415  keeps `handoff --help` quick
    from harness import scenario as scenarios  # noqa: PLC0415
    from harness import stress as stresses  # noqa: PLC0415
    from harness.live import display  # noqa: PLC0415

    wanted = changes_of(changes, options)
    chosen = scenarios.load(scenario, wanted)
    command = ["handoff", *context.obj, *_from_environment(context)]
    attach = None
    if registry:
        from harness.attach import found  # noqa: PLC0415

        attach, there = found(registry, inbox, cluster, leave_as, chosen.limits.start_timeout_s)
        adopted = there.fitted(scenarios.load(scenario, wanted, there.defaults))
        command += there.differences(chosen, adopted)
        chosen = adopted
    progress = display(Console(stderr=True), quiet=quiet)

    def page(outcome: stresses.Outcome) -> None:
        reports.write(outcome.folder.path / "report.html", reports.render(outcome.folder.path, "html"))

    outcome = stresses.run(chosen, runs, command, progress, attach, page)
    _print(outcome.results, as_json=as_json)
    context.exit(EXIT_OF[outcome.report.verdict])


def _from_environment(context: click.Context) -> list[str]:
    """Options that came by environment, as they would be given: a run's command must repeat it elsewhere."""
    given: list[str] = []
    several = {"changes": "--set", "faults": "--fault", "plugins": "--plugin"}
    for name in (*OPTION_FIELDS, *several):
        if context.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
            value = context.params[name]
            option = several.get(name) or f"--{name.replace('_', '-')}"
            given += [part for one in (value if name in several else [value]) for part in (option, one)]
    return given


@app.command(epilog=EXITS)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print results.json instead of text.")
@click.pass_context
def check(context: click.Context, /, folder: Path, *, as_json: bool) -> None:
    """Judge a recorded run again, from its history alone. FOLDER is a run's, for example runs/latest."""
    from harness import stress as stresses  # noqa: PLC0415
    from harness.runfolder import RunFolder  # noqa: PLC0415

    outcome = stresses.judge(RunFolder(folder))
    _print(outcome.results, as_json=as_json)
    context.exit(EXIT_OF[outcome.report.verdict])


@app.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["html", "github", "text"]), default="html", show_default=True,
    help="html: a page that works offline; github: Markdown for a job's summary; text.",
)  # fmt: skip
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Where it goes (html: into FOLDER)."
)
def report(folder: Path, form: str, output: Path | None) -> None:
    """Show a run's results. FOLDER is a run's, for example runs/latest."""
    from harness import report as reports  # noqa: PLC0415

    text = reports.render(folder, form)
    if form == "html":
        output = output or folder / "report.html"
    if output is None:
        print(text, end="")
        return
    reports.write(output, text)
    print(f"report: {output}")


@app.command()
@click.argument("transports", nargs=-1, metavar="[NAME[==VERSION]]...")
@click.option("--ack", is_flag=True, help="Ask the transport to wait for the target, where it can.")
@click.option("--writes", type=click.IntRange(1, 100_000), default=200, show_default=True, help="Writes of 1 MiB.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def probe(*, transports: tuple[str, ...], ack: bool, writes: int, as_json: bool) -> None:
    """Measure what "done" means: bytes left, or visible at the target. Fetches releases that are not there."""
    from harness.probes import run  # noqa: PLC0415  keeps `handoff --help` quick

    run(transports, writes, Console(stderr=True), ack=ack, as_json=as_json)


@app.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def guards(*, as_json: bool) -> None:
    """Which guards each preset has, and what each prevents."""
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


app.add_command(matrix)
app.add_command(bisect)
app.add_command(releases)
app.add_command(swarm)
app.add_command(sweep)
app.add_command(tune)
app.add_command(bugs)
app.add_command(doctor)


@app.command()
@PLUGIN
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def faults(*, plugins: tuple[str, ...], as_json: bool) -> None:
    """What can be done to a hand-off on purpose, with parameters and where it applies."""
    from harness import extension  # noqa: PLC0415

    extension.use(map(extension.pinned, plugins))
    from harness.faults import show  # noqa: PLC0415

    print(json.dumps(show.as_json(), indent=1) if as_json else show.as_text())


def _print(results: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        from harness.summary import render  # noqa: PLC0415

        print(render(results))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `handoff` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(given: list[str]) -> int:
    try:
        return int(app.main(given or ["--help"], prog_name="handoff", standalone_mode=False, obj=given) or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; nothing more can be said to it
        return EXIT_HARNESS
    except (click.ClickException, click.Abort, HandoffError, KeyboardInterrupt, zmq.ZMQError, OSError) as error:
        message, code = _explain(error)
    print(f"handoff: {message}", file=sys.stderr)
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    """(one line, exit code) for an error that a user may cause."""
    if isinstance(error, click.ClickException):
        return error.format_message(), EXIT_USAGE
    if isinstance(error, HandoffError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted; judge what was recorded with: handoff check runs/latest", EXIT_INTERRUPTED
    if isinstance(error, zmq.ZMQError):
        return f"ZMQ address: {error}", EXIT_HARNESS
    return str(error), EXIT_HARNESS


if __name__ == "__main__":
    main()
