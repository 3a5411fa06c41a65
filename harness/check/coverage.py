"""Whether the run did what its silence is to be worth something: a pass without coverage is `unknown`."""

from __future__ import annotations

from harness.check.arrays import Mask, Rows
from harness.check.report import Coverage, Expectations
from harness.history.event import Reason


class Window:
    """Counts hand-offs that were committed, and those that saw their status before their data."""

    def __init__(self) -> None:
        """Nothing counted yet."""
        self.committed = 0
        self.opened = 0

    def judge(self, rows: Rows) -> None:
        """Count `rows` of a `Table`.

        A POLL says that the status came first; so does a commit or a mismatch abort that read a room not its own.
        Other aborts do not: they need no status.
        """
        committed = rows["commits"] > 0
        self.committed += int(committed.sum())
        mismatched = (rows["aborts"] > 0) & (rows["abort_code"] == Reason.MISMATCH)
        early: Mask = (rows["polls"] > 0) | (committed & (rows["commit_word"] != rows["room"]))
        early |= mismatched & (rows["abort_word"] != rows["room"])
        self.opened += int(early.sum())


def coverage(expect: Expectations, reuse_min: int, window: Window, rate_per_s: float) -> list[Coverage]:
    """Compare what was seen with what was asked for."""
    asked = (
        ("slot reuse", reuse_min, expect.min_reuse, "tenures of the slot that had the fewest"),
        (
            "status before data",
            window.opened,
            expect.min_window,
            "hand-offs that saw their status before their data",
        ),
        ("committed", window.committed, expect.min_committed, "hand-offs whose row was committed"),
        ("rate", rate_per_s, expect.min_rate_per_s, "hand-offs that ended well a second, during the load"),
    )
    return [Coverage(name, seen, needed, seen >= needed, meaning) for name, seen, needed, meaning in asked]
