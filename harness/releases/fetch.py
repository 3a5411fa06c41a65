"""Fetches what cells need before the first of them runs: what cannot be had ends a matrix at once, not after an hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.releases import engines, hosted
from harness.releases.cells import Cell
from harness.transport import registry


def fetch(cells: Iterable[Cell], say: Callable[[str], None]) -> None:
    """Have every release and transfer engine in the cache; raises FieldError or UnavailableError, both exit 2."""
    cells = list(cells)
    for release in dict.fromkeys(cell.release for cell in cells):
        hosted.fetch(release if ":" in release else f"{hosted.SGLANG}=={release}", say)
    for name, version in dict.fromkeys((cell.transfer_engine, cell.transfer_engine_version) for cell in cells):
        registry.get(name, version)
        engine = registry.engine_of(name)
        if engine is not None:
            version = registry.version_of(name, version)  # noqa: PLW2901  as it is spelt in the cache
            if not engines.there(engine, version):
                say(f"fetching {engine}=={version}")
            engines.ensure(engine, version)
