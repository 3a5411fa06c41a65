"""A sweep in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from harness.sweep.grid import Axis
from harness.sweep.stats import Share, Spread, Summary

STYLES = {"failed": "bold red", "invalid": "red", "unknown": "yellow", "valid": "green"}


def table(cells: Sequence[Summary], title: str) -> Table:
    """One row a cell."""
    found = Table(title=title, title_justify="left", caption=_caption(cells), caption_justify="left")
    axes = list(cells[0].values) if cells else []
    for field in axes:
        found.add_column(Axis(field, []).short, justify="right")
    for heading in ("verdict", "rate /s", "p50 ms", "p99 ms", "false aborts (95 %)", "wrong data (95 %)", "slots held", "wait p50 ms"):  # fmt: skip
        found.add_column(heading, justify="left" if heading == "verdict" else "right")
    for cell in cells:
        style = STYLES[cell.verdict]
        found.add_row(
            *(str(cell.values[field]) for field in axes), f"[{style}]{cell.verdict}[/]", number(cell.rate.middle),
            number(cell.p50.middle), number(cell.p99.middle), percent(cell.false_aborts), percent(cell.wrong_data),
            "" if math.isnan(cell.occupancy.middle) else f"{cell.occupancy.middle:.0%}", number(cell.wait_p50.middle),
        )  # fmt: skip
    return found


def _caption(cells: Sequence[Summary]) -> str:
    lines = []
    if any(cell.verdict == "unknown" for cell in cells):
        lines.append(
            "unknown: nothing was found, but the race could not have shown there (no window, or no reuse of slots)"
        )
    lines += [f"failed: {cell.errors[0]}" for cell in cells if cell.errors][:3]
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits that count; nothing for NaN."""
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def span(value: Spread) -> str:
    """`4,310 (4,100 to 4,620)`: the median and the span of the repeats."""
    if math.isnan(value.middle):
        return "none"
    if value.low == value.high:
        return number(value.middle)
    return f"{number(value.middle)} ({number(value.low)} to {number(value.high)})"


def percent(share: Share) -> str:
    """`1.2 % (0.9 to 1.6)`; `0 (< 0.03 %)` where none was seen."""
    if not share.of:
        return ""
    if not share.count:
        return f"0 (< {share.high * 100:.2g} %)"
    return f"{share.rate * 100:.2g} % ({share.low * 100:.2g} to {share.high * 100:.2g})"
