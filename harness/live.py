"""What a run shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from harness.load import Load

TABLE_EVERY_S = 0.25
LINE_EVERY_S = 2.0


class Display(Protocol):
    """Shows a load's state now and then."""

    def update(self, phase: str, load: Load, slots: tuple[int, int]) -> None:
        """`slots`: (in use, all) over the decode nodes, as last reported."""

    def say(self, text: str) -> None:
        """Show one line about something that takes long."""

    def close(self) -> None:
        """Leave the screen as it is."""


class Quiet:
    """Shows nothing."""

    def update(self, phase: str, load: Load, slots: tuple[int, int]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class _Pace:
    """Rates between looks."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._next = self._last = clock()
        self._ended = 0
        self.rate = 0.0

    def due(self, load: Load) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        ended = load.ended.total()
        if now > self._last:
            self.rate = (ended - self._ended) / (now - self._last)
        self._last, self._ended, self._next = now, ended, now + self._every_s
        return True


def percentiles(load: Load) -> tuple[float, float]:
    """(p50, p99) in ms of the last few thousand commits; NaN when there are none."""
    recent = sorted(load.recent_ms)
    if not recent:
        return math.nan, math.nan
    return recent[len(recent) // 2], recent[min(len(recent) * 99 // 100, len(recent) - 1)]


def aborts(load: Load) -> dict[str, int]:
    """Ends other than a commit, by reason."""
    return {reason.name.lower(): count for reason, count in load.ended.items() if reason and count}


class Lines:
    """One line every two seconds."""

    def __init__(self, console: Console) -> None:
        """Lines go to `console`."""
        self._console, self._pace = console, _Pace(LINE_EVERY_S)

    def update(self, phase: str, load: Load, slots: tuple[int, int]) -> None:
        """Print a line if one is due."""
        if not self._pace.due(load):
            return
        if not load.issued:
            self._console.print(f"{phase}: waiting for the nodes", highlight=False)
            return
        p50, p99 = percentiles(load)
        ends = " ".join(f"{name}={count}" for name, count in aborts(load).items()) or "none"
        self._console.print(
            f"{phase}: {load.ended.total()} hand-offs, {self._pace.rate:.0f}/s, {len(load.open)} in flight, "
            f"slots {slots[0]}/{slots[1]}, aborts {ends}, p50 {p50:.2f} ms, p99 {p99:.2f} ms",
            highlight=False, soft_wrap=True,
        )  # fmt: skip

    def say(self, text: str) -> None:
        """Print it."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to leave."""


class LiveTable:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        """Take over the last lines of the terminal."""
        self._pace = _Pace(TABLE_EVERY_S)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def update(self, phase: str, load: Load, slots: tuple[int, int]) -> None:
        """Redraw if due."""
        if not self._pace.due(load):
            return
        p50, p99 = percentiles(load)
        table = Table(title=f"hand-off stress: {phase}", title_justify="left")
        for heading in ("hand-offs", "rate /s", "in flight", "slots in use", "p50 ms", "p99 ms", "aborts"):
            table.add_column(heading, justify="right")
        ends = "\n".join(f"{name} {count}" for name, count in aborts(load).items()) or "none"
        table.add_row(
            str(load.ended.total()), f"{self._pace.rate:.0f}", str(len(load.open)), f"{slots[0]} of {slots[1]}",
            f"{p50:.2f}", f"{p99:.2f}", ends,
        )  # fmt: skip
        self._live.update(table, refresh=True)

    def say(self, text: str) -> None:
        """Print it above the table."""
        self._live.console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def display(console: Console, *, quiet: bool) -> Display:
    """The right one for where the output goes."""
    if quiet:
        return Quiet()
    return LiveTable(console) if console.is_terminal else Lines(console)
