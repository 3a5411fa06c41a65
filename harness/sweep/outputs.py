"""Files of a sweep: sweep.csv always; sweep.parquet and sweep.html with the extra `report`."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.runfolder import write
from harness.sweep.cells import rows
from harness.sweep.folder import SweepFolder
from harness.sweep.stats import Summary

NEEDS = {"sweep.parquet": ("polars",), "sweep.html": ("jinja2", "matplotlib")}


def missing() -> dict[str, list[str]]:
    """Outputs that cannot be written, and the modules that they lack."""
    lacking: dict[str, list[str]] = {}
    for name, modules in NEEDS.items():
        for module in modules:
            try:
                importlib.import_module(module)
            except ImportError:
                lacking.setdefault(name, []).append(module)
    return lacking


def write_all(folder: SweepFolder, cells: Sequence[Summary], page: dict[str, Any]) -> tuple[list[Path], str]:
    """Write what can be written; returns the paths, and one line on what was left out, empty where nothing was.

    `page`: see `harness.sweep.page.render`.
    """
    table = rows(cells)
    paths = [write(folder.path / "sweep.csv", _csv(table))]
    lacking = missing()
    if "sweep.parquet" not in lacking:
        paths.append(write(folder.path / "sweep.parquet", _parquet(table)))
    if "sweep.html" not in lacking:
        from harness.sweep.page import render  # noqa: PLC0415  imports matplotlib

        paths.append(write(folder.path / "sweep.html", render(cells, **page)))
    if not lacking:
        return paths, ""
    modules = sorted({module for names in lacking.values() for module in names})
    return paths, f"left out: {' and '.join(lacking)}, for want of {', '.join(modules)}; pip install 'pd-handoff[report]' and then --resume this sweep"  # fmt: skip


def _csv(table: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _parquet(table: Sequence[dict[str, Any]]) -> bytes:
    import polars as pl  # noqa: PLC0415

    target = io.BytesIO()
    pl.DataFrame(list(table), infer_schema_length=None, strict=False).write_parquet(target)
    return target.getvalue()
