"""One cell of a matrix: a stress run in a process of its own. A cell that hangs or dies is a result, not the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import EXIT_INVALID, EXIT_UNKNOWN, EXIT_USAGE, EXIT_VALID, UsageError
from harness.releases.overlay import DIES_WITH_US

JUDGED = (EXIT_VALID, EXIT_INVALID, EXIT_UNKNOWN)
GRACE_S = 30.0
"""From the polite end of a cell to its kill: the driver drains and judges what it has."""


@dataclass(frozen=True)
class Cell:
    """What is run: a release of an engine over a version of a transfer engine, and the options of `handoff stress` that say so."""

    release: str
    transfer_engine: str
    transfer_engine_version: str
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`0.5.13, mooncake 0.3.10.post2`."""
        version = f" {self.transfer_engine_version}" if self.transfer_engine_version else ""
        return f"{self.release}, {self.transfer_engine}{version}"

    def to_dict(self) -> dict[str, str]:
        """The keys that every result of this cell carries."""
        return {
            "release": self.release,
            "transfer_engine": self.transfer_engine,
            "transfer_engine_version": self.transfer_engine_version,
        }


@dataclass
class Runner:
    """Runs cells one after the other. `timeout_s` bounds each; `program` is what `options` are given to."""

    runs: Path
    timeout_s: float = 300.0
    program: Sequence[str] = ("-m", "harness.cli", "stress", "--quiet", "--json")
    results: list[dict[str, Any]] = field(default_factory=list)

    def run(self, cell: Cell) -> dict[str, Any]:
        """The keys of results.json where there is a verdict; else `verdict` `hung` or `failed` with `error`. Raises UsageError for options that are none."""
        started = time.monotonic()
        code, out, error, timed_out = self._process(cell)
        result: dict[str, Any] = {**cell.to_dict(), "verdict": "failed", "error": ""}
        if code in JUDGED:
            result |= json.loads(out)
        elif timed_out:
            result |= {"verdict": "hung", "error": f"no result within {self.timeout_s:g} s"}
        elif code == EXIT_USAGE:
            raise UsageError(_last_line(error).removeprefix("handoff: "))
        else:
            result["error"] = _last_line(error) or f"exit {code}"
        result["timed_out"] = timed_out
        result["seconds"] = round(time.monotonic() - started, 1)
        self.results.append(result)
        return result

    def _process(self, cell: Cell) -> tuple[int, str, str, bool]:
        """(exit code, stdout, stderr, ran out of time)."""
        arguments = [*self.program, "--runs", str(self.runs), *cell.options]
        # Files, not pipes: a node that a dying driver leaves behind for a moment must not hold the end of a pipe open.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            process = subprocess.Popen(
                [sys.executable, "-c", DIES_WITH_US, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
            with _ended(process):
                timed_out = not _ends_within(process, self.timeout_s)
                if timed_out:
                    process.send_signal(signal.SIGINT)
                    _ends_within(process, GRACE_S)
            return process.returncode, _content(out), _content(error), timed_out


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave no process behind, however the body ends: nodes die with their driver."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _ends_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _content(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
