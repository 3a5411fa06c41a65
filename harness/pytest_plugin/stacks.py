"""Stacks of nodes that hang: what each writes to its log on SIGUSR1, see `harness.node.entry.launch`.

pytest-timeout ends a hanging test by an exception out of SIGALRM's handler, or by ending the whole process from a timer's thread. Both
calls are wrapped when it has set its timer, so that the nodes are asked first. It never comes too early, and costs nothing otherwise.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from harness.cluster import Member

Tell = Callable[[FrameType | None], None]
"""Told the main thread's frame, or None where the process ends next."""
WAIT_S = 10.0
"""How long all nodes together may take to write their stacks, on a busy machine; it takes 0.1 s on one that is not."""
_POLL_S = 0.02
_QUIET_S = 0.1
"""A log that has not grown for so long is complete."""
_MINE = "Current thread"
"""faulthandler writes the thread that took the signal last."""


def of_nodes(members: Sequence[Member]) -> str:
    """The stacks of every thread of `members`, one paragraph a node; says so where a node gives none (it is stopped, or starting)."""
    asked = [(member, _size(member.log), _ask(int(member.process.pid))) for member in members]
    deadline = time.monotonic() + WAIT_S
    parts = []
    for member, start, takes in asked:
        text = _new(member.log, start, deadline, int(member.process.pid)) if takes else ""
        parts.append(
            f"{member.name} (pid {member.process.pid}, {_state(int(member.process.pid))}):\n{text or '  gave no stacks'}"
        )
    return "\n".join(parts)


def of_frame(frame: FrameType, test: Path) -> str:
    """The stack of `frame` from the innermost call of the file `test` on: what led there is pytest's."""
    stack = traceback.extract_stack(frame)
    start = max((i for i, entry in enumerate(stack) if entry.filename == str(test)), default=0)
    return "".join(traceback.format_list(stack[start:])).rstrip()


def _ask(pid: int) -> bool:
    """Send the signal if the process would take it: one that has not come so far would die of it."""
    try:
        caught = next(
            line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
        )
        if not int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
            return False
        os.kill(pid, signal.SIGUSR1)
    except (OSError, StopIteration):
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _new(log: Path, start: int, deadline: float, pid: int) -> str:
    """What process `pid` appended to `log` since that had `start` bytes, once it is complete, the process has ended, or time is up."""
    text, grown = "", time.monotonic()
    while time.monotonic() < deadline:
        with log.open("rb") as file:
            file.seek(start)
            more = file.read().decode(errors="replace")
        if more != text:
            text, grown = more, time.monotonic()
        elif (_MINE in text and time.monotonic() - grown > _QUIET_S) or _state(pid)[:1] in {"Z", "e"}:
            break
        time.sleep(_POLL_S)
    return text.rstrip()


def _state(pid: int) -> str:
    """`S (sleeping)` and the like."""
    try:
        return next(
            line.partition(":")[2].strip()
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("State")
        )
    except (OSError, StopIteration):
        return "ended"


def before_timeout(node_id: str, tell: Tell) -> None:
    """Have `tell` called before pytest-timeout ends the test `node_id`, whose timer has just been set."""
    handler: Any = signal.getsignal(signal.SIGALRM)
    if getattr(handler, "__module__", "") == "pytest_timeout":

        def alarm(number: int, frame: FrameType | None) -> None:
            __tracebackhide__ = True
            _guarded(tell, frame)
            handler(number, frame)

        signal.signal(signal.SIGALRM, alarm)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.name == f"pytest_timeout {node_id}":
            thread.function = _after(tell, thread.function)


def _after(tell: Tell, ending: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any, **keywords: Any) -> None:
        _guarded(tell, None)
        ending(*arguments, **keywords)

    return both


def _guarded(tell: Tell, frame: FrameType | None) -> None:
    """Whatever goes wrong in telling of a hang must not keep it from being ended."""
    try:
        tell(frame)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
