"""How far a sweep is, and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

LINE_EVERY_S = 5.0


class Progress(Protocol):
    """Shows a sweep's state."""

    def phase(self, title: str) -> None:
        """Another stretch of runs begins."""

    def next(self, done: int, total: int, what: str) -> None:
        """`done` of the stretch's `total` runs are made, the next one is `what`."""

    def close(self) -> None:
        """Leave the screen as it is."""


class Silent:
    """Shows nothing."""

    def phase(self, title: str) -> None:
        """Nothing."""

    def next(self, done: int, total: int, what: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class _Clock:
    """Time left, from the time that the runs took so far."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.began = now()

    def left(self, done: int, total: int) -> str:
        if not done:
            return "time left unknown"
        return f"{duration((self.now() - self.began) / done * (total - done))} left"


class Lines:
    """A line now and then."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        """Lines go to `console`."""
        self._console, self._clock = console, _Clock(now)
        self._next = now()
        self._title = ""

    def phase(self, title: str) -> None:
        """Another stretch of runs begins."""
        self._title, self._clock.began, self._next = title, self._clock.now(), self._clock.now()

    def next(self, done: int, total: int, what: str) -> None:
        """Print a line if one is due."""
        if self._clock.now() < self._next and done < total:
            return
        self._next = self._clock.now() + LINE_EVERY_S
        text = f"{self._title}: {done} of {total} runs, {self._clock.left(done, total)}" + (f"; {what}" if what else "")
        self._console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to leave."""


class Bar:
    """A bar that is redrawn in place, once a run: between runs nothing here takes time from the nodes."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        """Take over the last line of the terminal."""
        self._clock = _Clock(now)
        self._title = ""
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def phase(self, title: str) -> None:
        """Another stretch of runs begins."""
        self._title, self._clock.began = title, self._clock.now()

    def next(self, done: int, total: int, what: str) -> None:
        """Redraw."""
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=total, completed=done, width=30)
        row.add_row(self._title, bar, f"{done}/{total}", self._clock.left(done, total), what)
        self._live.update(row, refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def duration(seconds: float) -> str:
    """`2 min 5 s`, `40 s`."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def progress(console: Console, *, quiet: bool) -> Progress:
    """The right one for where the output goes."""
    if quiet:
        return Silent()
    return Bar(console) if console.is_terminal else Lines(console)
