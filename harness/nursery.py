"""The driver's end of `harness.node.nursery`: nodes that are there at once, for runs that kill them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multiprocess import Pipe
from multiprocess.connection import wait

from harness.children import spawn
from harness.errors import HarnessError
from harness.node.nursery import Order, serve

MODULES = ("decode_node.hosted", "prefill_stub.hosted", "harness.node.shell")
"""What a node imports before it reads its settings."""
READY_S = 120.0
"""How long the imports may take, on a machine where others do the same."""
ANSWER_S = 10.0
"""How long a fork, or the end of a killed process, may take."""


class Forked:
    """One node: as much of `multiprocess.Process` as a cluster needs. Signals go to this very process, never to a later one of its id."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        """Of a process that the nursery has not reaped."""
        self.pid = pid
        self.sentinel = os.pidfd_open(pid)
        self.exitcode: int | None = None
        self._nursery = nursery

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.exitcode is None and not wait([self.sentinel], 0)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, and take its exit code."""
        if self.exitcode is None and wait([self.sentinel], timeout_s):
            self.exitcode = self._nursery.reap(self.pid)

    def _signal(self, number: signal.Signals) -> None:
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.sentinel, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Let go of its descriptor."""
        os.close(self.sentinel)


class Nursery:
    """See the module. Used by the thread that made it."""

    def __init__(self, log: Path, modules: Sequence[str] = MODULES) -> None:
        """Start it, and have it import `modules`; what it says goes to `log`. Raises HarnessError when it cannot be started."""
        self._line, other = Pipe()
        with contextlib.closing(other):
            self._process = spawn("handoff nursery", serve, other, modules, str(log))

    def usable(self, timeout_s: float = READY_S) -> bool:
        """Wait until it has imported everything; False where that has started threads: then a fork would not be safe."""
        return bool(self._answer(timeout_s) == 1)

    def start(self, order: Order) -> Forked:
        """Fork a node; raises HarnessError when the nursery is gone."""
        return Forked(self, int(self._ask(order)))

    def reap(self, pid: int) -> int:
        """The exit code of a node that has ended; that of SIGKILL when the nursery is gone, since its nodes end with it."""
        try:
            return int(self._ask(pid))
        except HarnessError:
            return -signal.SIGKILL

    def _ask(self, question: Order | int) -> Any:
        try:
            self._line.send(question)
        except OSError as error:
            raise HarnessError(f"nursery: {error}") from error
        return self._answer(ANSWER_S)

    def _answer(self, timeout_s: float) -> Any:
        try:
            if not self._line.poll(timeout_s):
                raise HarnessError(f"nursery: no answer within {timeout_s:g} s")
            return self._line.recv()
        except (EOFError, OSError) as error:
            raise HarnessError("nursery: it has ended") from error

    def close(self) -> None:
        """End it; nodes that are left are killed."""
        self._line.close()
        self._process.join(ANSWER_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
