"""Measures what a transport's "done" means: whether a write that it reports as done is visible at the target.

Two processes of their own, a target and a sender; a third view of the target's memory, mapped by the sender, sees what is there. First
`writes` blocks of 1 MiB, one after the other: how many were not all there when "done" was reported? Then one write to a target that is
stopped (SIGSTOP): who reports that as done, without its being there, only knows that the bytes left. A measurement can only refute that
done means visible: where nothing speaks against it, what the transport declares stands.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from multiprocess import get_context
from multiprocess.connection import Connection

from harness.children import without_main_module
from harness.errors import HandoffError, HarnessError
from harness.history.event import KV_BIT
from harness.history.recorder import NullRecorder
from harness.node.entry import die_with_parent
from harness.protocol.settings import TransportSettings
from harness.releases import engines, overlay
from harness.transport import registry
from harness.transport.base import Channel, Done, Outcome, Ownership, TransportError, Write

SIZE_BYTES = 1 << 20
STOPPED_BYTES = 1 << 16
"""So small that any socket buffer takes it."""
WRITES = 200
STOPPED_WAIT_S = 2.0
"""So long a write to a stopped target may take to be reported as done."""
START_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 30.0
_FOREIGN = {"OMP_NUM_THREADS": "1"}


def known(name: str, version: str, *, ack: bool, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The measurement, from the cache if it was made before with the same release and environment; raises HarnessError."""
    file = _file(name, version, ack=ack)
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    say(f"measuring what done means with {name}{'==' if version else ''}{version}")
    result = measure(name, version, ack=ack)
    with contextlib.suppress(OSError):  # measured again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as part:
            part.write(json.dumps(result))
        Path(part.name).replace(file)
    return result


def _file(name: str, version: str, *, ack: bool) -> Path:
    engine = registry.engine_of(name)
    steering = engines.environment(engine) if engine else {}
    key = hashlib.blake2b(json.dumps([steering, ack], sort_keys=True).encode(), digest_size=6).hexdigest()
    return overlay.cache_folder() / "done" / f"{name}-{version or '0'}-{key}.json"


def measure(name: str, version: str, *, ack: bool = False, writes: int = WRITES) -> dict[str, Any]:
    """Measure; a release must be in the cache. Raises HarnessError (one line) when an end does not start, or writes fail.

    Returns `means` (a value of `Done`), `how`, `writes`, `not_visible` of them, and `stopped`: what a write to a stopped target was:
    `reported` without being there, `visible` (one-sided memory) or `waits`.
    """
    settings = TransportSettings(name=name, version=version, ack=ack, late_fraction=0.0, jitter_us=0.0)
    registry.get(name, version)
    with _process(_target, settings) as target:
        where = _answer(target, "target")
        with _process(_sender, settings, *where, writes) as sender:
            result: dict[str, Any] = _answer(sender, "sender", START_TIMEOUT_S + 2 * WRITE_TIMEOUT_S)
            return result


@contextlib.contextmanager
def _process(function: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """A process that runs `function(connection, ...)`; it is killed at the end, also if it is stopped."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_run, args=(function, theirs, *arguments), daemon=True)
    with without_main_module():
        process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()
        ours.close()


def _run(function: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    """In the child: what goes wrong is sent as one line."""
    die_with_parent()
    os.environ.update({key: os.environ.get(key, value) for key, value in _FOREIGN.items()})
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        function(connection, *arguments)
    except (HandoffError, TransportError, OSError, RuntimeError) as error:
        connection.send(HarnessError(str(error)))


def _answer(connection: Connection, who: str, timeout_s: float = START_TIMEOUT_S) -> Any:
    try:
        answer = connection.recv() if connection.poll(timeout_s) else HarnessError(f"no answer within {timeout_s:g} s")
    except EOFError:
        answer = HarnessError("it ended without an answer")
    if isinstance(answer, HarnessError):
        raise HarnessError(f"probe: {who}: {answer}")
    return answer


def _target(connection: Connection, settings: TransportSettings) -> None:
    """Decode's end: expose a region and wait to be killed."""
    from harness.protocol.memory import Memory  # noqa: PLC0415  torch is not needed to ask the cache

    memory = Memory.create("probe", SIZE_BYTES)
    transport = registry.get(settings.name, settings.version)
    target = transport.target(settings, memory, Ownership(1, enforce=False), 1, _record_nothing)
    connection.send((target.descriptor(), memory.path, os.getpid()))
    threading.Event().wait()


def _record_nothing(thread: str) -> NullRecorder:
    del thread
    return NullRecorder()


def _sender(
    connection: Connection, settings: TransportSettings, descriptor: bytes, path: str, pid: int, writes: int
) -> None:
    """Prefill's end: write, look and answer."""
    from harness.protocol.memory import Memory  # noqa: PLC0415

    seen = Memory.attach(path, SIZE_BYTES).bytes
    channel = registry.get(settings.name, settings.version).channel(settings, descriptor, 1, _record_nothing)
    not_visible = sum(not _visible(channel, seen, number, settings) for number in range(1, writes + 1))
    stopped = _stopped(channel, seen, pid, settings)
    declared = registry.get(settings.name, settings.version).done(settings)
    means = Done.LEFT if not_visible or stopped == "reported" else declared
    connection.send(
        {"means": means.value, "how": "measured", "writes": writes, "not_visible": not_visible, "stopped": stopped}
    )  # fmt: skip


def _visible(channel: Channel, seen: Any, number: int, settings: TransportSettings) -> bool:
    """One write of SIZE_BYTES bytes; whether it was there when it was reported."""
    data = np.full(SIZE_BYTES, number % 255 + 1, np.uint8)
    if not _write(channel, data, number, WRITE_TIMEOUT_S):
        raise HarnessError(f"write {number} was not done within {WRITE_TIMEOUT_S:g} s with {settings.name}")
    there = bool(seen[-1] == data[-1]) and bool((seen == data).all())
    deadline = time.monotonic() + WRITE_TIMEOUT_S
    while not there and not (seen == data).all():  # the next one must not overtake it
        if time.monotonic() > deadline:
            raise HarnessError(f"write {number} was reported as done and did not land within {WRITE_TIMEOUT_S:g} s")
        time.sleep(0)
    return there


def _stopped(channel: Channel, seen: Any, pid: int, settings: TransportSettings) -> str:
    data = np.full(STOPPED_BYTES, 255, np.uint8)
    seen[:STOPPED_BYTES] = 0
    os.kill(pid, signal.SIGSTOP)
    _until_stopped(pid)
    del settings
    try:
        reported = _write(channel, data, 0, STOPPED_WAIT_S)
        if not reported:
            return "waits"
        return "visible" if (seen[:STOPPED_BYTES] == data).all() else "reported"
    finally:
        os.kill(pid, signal.SIGCONT)


def _until_stopped(pid: int) -> None:
    """A stop is asked for by `kill` and takes effect later, thread by thread."""
    deadline = time.monotonic() + WRITE_TIMEOUT_S
    while any(_state(task) not in {"T", ""} for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            raise HarnessError("the target could not be stopped")
        time.sleep(0.001)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _write(channel: Channel, data: Any, key: int, timeout_s: float) -> bool:
    """Write `data` to the front of the region; False if that was not reported as done in time. Raises HarnessError if it failed."""
    outcome = channel.write(Write(1, 0, 1, 0, [(0, memoryview(data), KV_BIT)], key))
    deadline = time.monotonic() + timeout_s
    while outcome in {Outcome.PENDING, Outcome.POSTED}:
        for _, ok in channel.completions():
            outcome = Outcome.DONE if ok else Outcome.FAILED
        if time.monotonic() > deadline:
            return False
        time.sleep(0)
    if outcome is Outcome.FAILED:
        raise HarnessError("a write failed")
    return True
