"""Several prefill ranks write one slot: what each has reported, and what follows for the hand-off. Sans-I/O.

As in SGLang: a Success counts once every expected rank has sent one (a set of ranks, so that a repeated message counts once), one Failed is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

FAILED, SUCCESS, TRANSFERRING = 0, 4, 3


class FanIn:
    """The writers of one slot in one tenure, by prefill index. `await_all` off: the first Success wins, a mutant."""

    __slots__ = ("_await_all", "silent", "undrained", "writers")

    def __init__(self, writers: Iterable[int], *, await_all: bool) -> None:
        """Nobody has reported anything."""
        self.writers = tuple(writers)
        self.silent = dict.fromkeys(self.writers)
        """Those that have not reported Success, in order: sets by key, so that equal states are saved as equal bytes."""
        self.undrained = dict.fromkeys(self.writers)
        self._await_all = await_all

    def report(self, rank: int, status: int, *, drained: bool) -> int:
        """One rank's status; returns that of the hand-off: Failed, Success, or Transferring while others are awaited."""
        if drained:
            self.undrained.pop(rank, None)
        if status != SUCCESS:
            return status
        self.silent.pop(rank, None)
        return TRANSFERRING if self.silent and self._await_all else SUCCESS

    def drain(self, rank: int) -> bool:
        """One rank has nothing outstanding any more; returns whether that holds for all."""
        self.undrained.pop(rank, None)
        return not self.undrained

    def ask_again(self, *, but: Collection[int] = ()) -> None:
        """What was said before does not count any more, `but` for ranks that are dead: all others must say again that they drained."""
        self.undrained = dict.fromkeys(rank for rank in self.writers if rank not in but)
