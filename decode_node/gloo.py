"""MIN over the ranks of a decode instance on a real gloo group, as SGLang's decode does it (`poll_and_all_reduce`)."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from decode_node.agreement import Vector
from harness.errors import HarnessError

FORM_S = 60.0
REDUCE_S = 300.0
"""A stopped rank holds up the others for so long before they give up; a dead one is noticed at once."""


class GlooAgreement:
    """One rank of a group. It forms in a thread of its own: that takes until the last rank has come.

    Ranks meet through a file in the run's folder, which they share anyway, and talk over `host`.
    """

    def __init__(self, meeting: Path, rank: int, ranks: int, host: str) -> None:
        """Begin to form the group; `formed` says when it is there."""
        self._meeting, self._rank, self._ranks, self._host = meeting, rank, ranks, host
        self._group: Any = None
        self._work: Any = None
        self._votes: torch.Tensor | None = None
        self._problem = ""
        self._former = threading.Thread(target=self._form, name="gloo", daemon=True)
        self._former.start()

    def _form(self) -> None:
        gloo = dist.ProcessGroupGloo
        try:
            store = dist.FileStore(str(self._meeting), self._ranks)  # type: ignore[attr-defined]
            store.set_timeout(dt.timedelta(seconds=FORM_S))
            options: Any = gloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001  torch has no public way
            options._devices = [gloo.create_device(hostname=self._host)]  # noqa: SLF001
            options._timeout = dt.timedelta(seconds=REDUCE_S)  # noqa: SLF001
            self._group = gloo(store, self._rank, self._ranks, options)
        except (RuntimeError, ValueError) as problem:
            self._problem = str(problem).splitlines()[0][:500]

    @property
    def formed(self) -> bool:
        """Every rank is in the group; raises HarnessError when it cannot be formed."""
        if self._problem:
            raise HarnessError(f"decode ranks form no gloo group: {self._problem}")
        return self._group is not None

    @property
    def busy(self) -> bool:
        """A reduction was begun and its result not taken."""
        return self._work is not None

    def begin(self, votes: Vector) -> None:
        """Take part in the next reduction."""
        self._votes = torch.from_numpy(votes)
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._work = self._group.allreduce([self._votes], options)

    def result(self) -> Vector | None:
        """MIN over all ranks, once all have taken part."""
        if self._work is None or not self._work.is_completed():
            return None
        try:
            self._work.wait()
        except RuntimeError as problem:
            raise HarnessError(f"a decode rank left its group: {str(problem).splitlines()[0][:500]}") from problem
        self._work = None
        assert self._votes is not None
        votes: Vector = self._votes.numpy()
        return votes

    def close(self) -> None:
        """Leave: in a thread, since an unfinished reduction keeps a group until its peers have left, too."""
        group, work, self._group, self._work = self._group, self._work, None, None
        if not self._rank:
            with contextlib.suppress(OSError):
                self._meeting.unlink()
        threading.Thread(target=_let_go, args=([group, work],), name="gloo-end", daemon=True).start()


def _let_go(what: list[Any]) -> None:
    what.clear()
