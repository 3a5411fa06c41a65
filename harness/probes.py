"""`handoff probe`: one line a transport."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from harness import probe
from harness.releases import engines
from harness.transport import registry

DEFAULT = ("shm", "tcp", "gloo")
"""What needs no download."""
MEANS = {"left": "bytes left", "visible": "visible"}


def run(transports: Sequence[str], writes: int, console: Console, *, ack: bool, as_json: bool) -> None:
    """Fetch, measure and print each of `transports` (none: DEFAULT); raises FieldError or HarnessError."""
    wanted = [registry.split(text) for text in transports or DEFAULT]
    for name, version in wanted:
        registry.get(name, version)
    wanted = [(name, registry.version_of(name, version)) for name, version in wanted]
    results: dict[str, Any] = {}
    for name, version in wanted:
        engine = registry.engine_of(name)
        title = f"{name}=={version}" if version else name
        console.print(f"probing {title}", highlight=False)
        if engine is not None:
            engines.ensure(engine, version)
        results[title] = probe.measure(name, version, ack=ack, writes=writes)
    print(json.dumps(results, indent=1) if as_json else _text(results))


def _text(results: dict[str, Any]) -> str:
    table = Table(title='What "done" means', title_justify="left")
    for heading in ("transport", "done means", "not visible on return", "write to a stopped target"):
        table.add_column(heading)
    for title, found in results.items():
        table.add_row(
            title, MEANS[found["means"]], f"{found['not_visible']} of {found['writes']} writes of 1 MiB", found["stopped"]
        )  # fmt: skip
    console = Console(width=110)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()
