"""Runs the deterministic checks of one release in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from harness.errors import HandoffError
from harness.releases import hosted

PROGRAM = "harness.hosting.sglang.checks"
MEANINGS = {
    "false-abort": "status before data on a reused slot: the healthy request is aborted",
    "stale-commit": "status before data on a reused slot: the previous owner's token is committed",
    "torn-row": "the room's block lands first: the previous owner's token is committed",
    "torn-read": "a row lands whole while decode reads it: what was read before, the previous owner's, is committed with what was read after",
    "late-write": "a write that outlives its aborted request reaches the next owner of slot or page",
    "success-after-failed": "Success after Failed: the failed room counts as transferred",
    "cleared-room-revived": "Success for a cleared room: the room is in the table again, for good",
    "abort-forgotten": "an abort that reaches prefill before the request is forgotten: prefill waits for nothing, until a time-out",
    "lookup-race": "prefill clears a room between two look-ups of its transfer thread: the thread dies, and so does all that it would have sent",
    "mixed-frames": "an abort is acknowledged while a status is sent: their frames mix on one socket, and decode's receive thread dies",
}
"""What `yes` means for each hole."""


def check_release(name: str, timeout_s: float) -> dict[str, Any]:
    """Check one release: a version of SGLang or `path:DIR`; raises FieldError for a name that is neither.

    Keys: `found` (hole to bool), `problems` (check to reason), `provoked` (hole to the thread that died of it), `dead_threads` (other ones), `error` (why nothing could be checked), `seconds`.
    """
    engine = hosted.parse(name if ":" in name or "==" in name else f"{hosted.SGLANG}=={name}")
    command = [sys.executable, "-m", PROGRAM]
    for option, folders in (("--first", hosted.first_folders(engine)), ("--last", hosted.base_folders(engine))):
        for folder in folders:
            command += [option, folder]
    empty: dict[str, Any] = {
        "found": {},
        "problems": {},
        "provoked": {},
        "dead_threads": [],
        "error": "",
        "seconds": 0.0,
    }
    try:
        return empty | _run(command, timeout_s)
    except HandoffError as error:
        return empty | {"error": str(error), "seconds": timeout_s}


def _run(command: list[str], timeout_s: float) -> dict[str, Any]:
    """The program's answer; it is ended with all it started when it takes too long."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, complaints = process.communicate(timeout=timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return {"error": f"not checked within {timeout_s:g} s", "seconds": timeout_s}
            raise
    try:
        answer = json.loads(said)
    except ValueError:
        lines = complaints.strip().splitlines() or ["it said nothing"]
        return {"error": f"the process ended with {process.returncode}: {lines[-1][:300]}"}
    return dict(answer)
