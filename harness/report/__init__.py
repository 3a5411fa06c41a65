"""A run in one page: HTML that works offline, Markdown for a job's summary, text. All from results.json; charts from the history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import HistoryError, UsageError
from harness.runfolder import RunFolder, write

__all__ = ["FORMATS", "render", "write"]

FORMATS = ("html", "github", "text")


def render(path: Path, form: str) -> str:
    """The report of the run in folder `path` as one of FORMATS; raises UsageError when there is no judged run."""
    from harness import summary  # noqa: PLC0415
    from harness.report import markdown, page  # noqa: PLC0415  jinja2 and matplotlib are slow to import

    folder = RunFolder(path)
    results = _results(folder)
    if form == "html":
        return page.render(results, folder.history)
    return markdown.render(results) if form == "github" else summary.render(results) + "\n"


def _results(folder: RunFolder) -> dict[str, Any]:
    path = folder.path / "results.json"
    try:
        results: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UsageError(f"run {folder.path}: not judged yet; run: handoff check {folder.path}") from error
    except ValueError as error:
        raise HistoryError(f"{path}: not JSON: {error}") from error
    return results
