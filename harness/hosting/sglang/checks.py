"""Deterministic checks of one release: its real hand-off, stepped through orders that are known to go wrong.

`python -m harness.hosting.sglang.checks` is run by `handoff releases check`, one process for each release, and prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from harness.errors import HandoffError
from harness.hosting.mover import Fate, Mover, install_as_mooncake
from harness.hosting.sglang.bench import Bench, Case, Handoff, wait_for
from harness.hosting.sglang.between import aborted_before_arrival, acknowledged_in_between, cleared_between_lookups
from harness.hosting.stepped import install_sockets
from harness.hosting.watch import Watch

Verdicts = dict[str, bool]
LOOKS_MAX = 64
"""More than any release makes at one row in one step."""


def _after_reuse(bench: Bench, slot: int, **fates: Fate) -> tuple[Case, Handoff, Handoff]:
    """A commits from the slot; B gets it, and B's blocks meet `fates`; returns once decode knows of B's Success."""
    case = Case(bench, slot)
    first, second = bench.handoff(), bench.handoff()
    bench.fates()
    assert case.admit(first)
    bench.send(case, first)
    case.finish(first)
    wait_for(lambda: case.admit(second), "slot for the second request")
    bench.fates(**fates)
    bench.send(case, second)
    bench.wait_status(second)
    return case, first, second


def status_before_data(bench: Bench, slot: int) -> Verdicts:
    """B's Success overtakes B's row on a slot that A used before."""
    case, _, second = _after_reuse(bench, slot, row=Fate.LATER, room=Fate.LATER, kv=Fate.NOW)
    case.step()
    aborted = second.outcome == "aborted"
    bench.mover.land()
    if second.outcome == "waiting":
        case.finish(second)
    wrong = second.outcome == "committed" and second.request.output_ids[0] != bench.token(second)
    return {"false-abort": aborted or second.outcome == "aborted", "stale-commit": wrong}


def room_block_first(bench: Bench, slot: int) -> Verdicts:
    """Of B's row the room lands first, and decode polls before the rest."""
    case, _, second = _after_reuse(bench, slot, row=Fate.LATER)
    case.step()
    bench.mover.land()
    if second.outcome == "waiting":
        case.finish(second)
    wrong = second.outcome == "committed" and second.request.output_ids[0] != bench.token(second)
    return {"torn-row": wrong}


def landed_while_read(bench: Bench, slot: int) -> Verdicts:
    """B's whole row lands at once while decode reads it: between two of its looks at the row's fields, in turn each two."""
    case, first = Case(bench, slot), bench.handoff()
    bench.fates()
    assert case.admit(first)
    bench.send(case, first)
    case.finish(first)
    wrong = False
    for look in range(LOOKS_MAX):
        handoff = bench.handoff()
        assert case.admit(handoff)  # the one before has ended, and nobody aborted it
        bench.fates(row=Fate.LATER, room=Fate.LATER)
        bench.send(case, handoff)
        bench.wait_status(handoff)
        bench.looks.before(look, bench.mover.land)
        case.step()
        if not bench.looks.over:
            break
        case.finish(handoff)
        wrong |= handoff.outcome == "committed" and handoff.request.output_ids[0] != bench.token(handoff)
    bench.looks.forget()
    bench.mover.land()
    case.finish(handoff)
    return {"torn-read": wrong}


def late_write(bench: Bench, slot: int) -> Verdicts:
    """A is given up while its write is in progress; B, from another prefill, gets slot and page, and then A's write ends."""
    case = Case(bench, slot)
    first, second = bench.handoff(), bench.handoff(prefill=1)
    bench.fates(kv=Fate.BLOCKED)
    assert case.admit(first)
    bench.send(case, first)
    assert bench.mover.blocked.acquire(timeout=5)
    bench.fates()
    first.receiver.abort()
    case.finish(first)
    if not case.admit(second):
        bench.mover.go_on()
        wait_for(lambda: case.stepped(first) and case.admit(second), "slot for the second request")
        bench.send(case, second, prefill=1)
        case.finish(second)
        return {"late-write": _hurt(bench, case, second)}
    bench.send(case, second, prefill=1)
    bench.wait_status(second)
    bench.mover.go_on()
    assert bench.mover.ended.acquire(timeout=5)  # its sender may have been told Failed long before
    case.finish(second)
    return {"late-write": _hurt(bench, case, second)}


def _hurt(bench: Bench, case: Case, handoff: Handoff) -> bool:
    """Whether the hand-off ended otherwise than with its own token and page."""
    own = handoff.outcome == "committed" and handoff.request.output_ids[0] == bench.token(handoff)
    return not own or bench.pages_named(case) != {handoff.request.room}


def failed_then_success(bench: Bench, slot: int) -> Verdicts:
    """Decode is told Failed and then Success for one room, before it polls."""
    case = Case(bench, slot)
    handoff = bench.handoff()
    assert case.admit(handoff)
    poll, room = bench.release.poll, handoff.request.room
    _tell(bench, [(room, poll.Failed), (room, poll.Success)])
    return {"success-after-failed": bench.manager.request_status.get(room) == poll.Success}


def success_after_clear(bench: Bench, slot: int) -> Verdicts:
    """A Success arrives for a room that decode has cleared."""
    del slot
    handoff = bench.handoff()
    room = handoff.request.room
    handoff.receiver.clear()
    assert room not in bench.manager.request_status
    _tell(bench, [(room, bench.release.poll.Success)])
    return {"cleared-room-revived": room in bench.manager.request_status}


def _tell(bench: Bench, statuses: Sequence[tuple[int, Any]]) -> None:
    """Send statuses of prefill rank 0 to decode and return once it has taken them: the one sent last is a marker's.

    A status is three frames of text in every release.
    """
    manager, failed = bench.manager, bench.release.poll.Failed
    marker = bench.handoff().request.room
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(f"tcp://{manager.local_ip}:{manager.rank_port}")
        for room, status in [*statuses, (marker, failed)]:
            socket.send_multipart([str(number).encode() for number in (room, int(status), 0)])
        wait_for(lambda: manager.check_status(marker) == failed, "status of a marker at decode")


CHECKS: Sequence[Callable[[Bench, int], Verdicts]] = (
    status_before_data, room_block_first, landed_while_read, failed_then_success, success_after_clear, late_write, aborted_before_arrival,
    cleared_between_lookups, acknowledged_in_between,
)  # fmt: skip


def run(first: Sequence[str], last: Sequence[str]) -> dict[str, Any]:
    """Load the release in `first` (folders) and run every check; a check that gets stuck has the reason instead of an answer."""
    from harness.hosting.sglang.load import load  # noqa: PLC0415  after the mover is in place
    from harness.hosting.sglang.release import Release  # noqa: PLC0415

    mover = Mover()
    install_as_mooncake(mover)
    install_sockets()
    watch = Watch()
    bench = Bench(Release(load(first, last)), mover, watch)
    found: dict[str, bool] = {}
    problems: dict[str, str] = {}
    for slot, check in enumerate(CHECKS):
        try:
            found |= check(bench, slot)
        except Exception as error:  # noqa: BLE001  whatever the release raises is an answer, too
            deaths = watch.look()
            problems[check.__name__] = str(deaths[0]) if deaths else f"{type(error).__name__}: {error}"
        finally:
            mover.go_on()
            bench.looks.forget()
        if watch.look():
            break
    dead = [str(death) for death in watch.look()]
    return {"found": found, "problems": problems, "provoked": bench.provoked, "dead_threads": dead}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the JSON of `run` and end the process at once: the release's threads never end by themselves."""
    parser = argparse.ArgumentParser(prog="python -m harness.hosting.sglang.checks")
    parser.add_argument("--first", action="append", default=[], metavar="DIR", help="folder put first on sys.path")
    parser.add_argument("--last", action="append", default=[], metavar="DIR", help="folder put last on sys.path")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    out = os.dup(1)
    os.dup2(2, 1)  # a release prints what it likes; the answer has the line to itself
    logging.disable(logging.CRITICAL)
    code = 0
    try:
        answer = run(options.first, options.last)
    except HandoffError as error:
        answer, code = {"error": str(error)}, error.exit_code
    answer["seconds"] = round(time.monotonic() - started, 2)
    with contextlib.suppress(BrokenPipeError):
        os.write(out, json.dumps(answer).encode() + b"\n")
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
