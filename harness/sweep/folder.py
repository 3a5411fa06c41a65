"""A sweep's folder: `runs/sweep-<time>/` with sweep.json, a run folder for every run under cells/, and the outputs.

`runs/latest-sweep` points at the newest. What is there is enough to go on after an interruption.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from harness.errors import HarnessError, UsageError
from harness.runfolder import RunFolder, machine, point, versions, write
from harness.sweep.plan import Job, Plan, key

SCHEMA = 1
LATEST = {"sweep": "latest-sweep", "tune": "latest-tune"}
Keep = Literal["anomalies", "all", "none"]
"""Whose history stays: of runs with anomalies, of all, of none."""


class Run(msgspec.Struct, frozen=True):
    """What came of one run: the content of its results.json, or why there is none."""

    job: Job
    results: dict[str, Any] | None
    error: str | None
    folder: str
    """Relative to the sweep's folder."""
    other_cpu: float = 0.0
    """Share of the cores' time that went to other work meanwhile, 0 to 1."""
    at_s: float = 0.0
    """When it came to its end, seconds since the epoch."""


class SweepFolder:
    """One folder; `create` makes a new one, `SweepFolder(path)` opens one that is there."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises UsageError when it is not a sweep's folder."""
        self.path = path.resolve()
        try:
            self.manifest: dict[str, Any] = json.loads((self.path / "sweep.json").read_text())
            self.plan = msgspec.convert(self.manifest["plan"], Plan)
            schema = self.manifest["schema"]
        except OSError as error:
            raise UsageError(f"sweep {path}: no sweep.json there; give a sweep's folder, for example runs/latest-sweep") from error  # fmt: skip
        except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
            raise UsageError(f"sweep {path}: damaged sweep.json: {error}") from error
        if schema != SCHEMA:
            raise UsageError(f"sweep {path}: schema {schema}, this version reads {SCHEMA}")

    @classmethod
    def create(cls, runs: Path, kind: Literal["sweep", "tune"], plan: Plan, command: list[str], seed: int) -> Self:
        """Make the folder; raises HarnessError when it cannot be written. `seed` decides the order of the runs."""
        manifest = {
            "schema": SCHEMA, "kind": kind, "command": shlex.join(command), "seed": seed,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "versions": versions(), "machine": machine(),
            "plan": msgspec.to_builtins(plan),
        }  # fmt: skip
        try:
            path = _new_folder(runs, f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}")
            (path / "cells").mkdir()
            write(path / "sweep.json", json.dumps(manifest, indent=1) + "\n")
            point(runs.resolve(), LATEST[kind], path)
        except OSError as error:
            raise HarnessError(f"sweep folder under {runs}: {error.strerror}") from error
        return cls(path)

    def adopt(self, plan: Plan) -> None:
        """Go on with `plan` in this folder; raises UsageError when its cells could not be compared with those that are there."""
        old, new = self.plan.fingerprint(), plan.fingerprint()
        for what, text in (("fields", "axes"), ("run_s", "seconds a run"), ("tree", "scenario file"), ("changes", "options")):  # fmt: skip
            if old[what] != new[what]:
                raise UsageError(f"--resume {self.path}: it was made with other {text} ({_short(old[what])}, now {_short(new[what])}); leave them out to go on with its own")  # fmt: skip
        self.plan = plan
        self.manifest["plan"] = msgspec.to_builtins(plan)
        write(self.path / "sweep.json", json.dumps(self.manifest, indent=1) + "\n")

    @property
    def cells(self) -> Path:
        """Where the runs' folders are."""
        return self.path / "cells"

    def runs(self) -> Iterator[Run]:
        """Every run that has come to an end, in no particular order; raises UsageError for a damaged one."""
        for path in sorted(self.cells.glob("*/*/cell.json")):
            try:
                saved = json.loads(path.read_text())
                job = Job(saved["values"], saved["repeat"])
                results = None if saved["error"] else json.loads((path.parent / "results.json").read_text())
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UsageError(f"{path}: damaged: {error}; remove its folder to have that run made again") from error
            own = str(path.parent.relative_to(self.path))
            yield Run(job, results, saved["error"], own, saved.get("other_cpu", 0.0), saved.get("at_s", 0.0))

    def done(self) -> set[tuple[str, int]]:
        """(cell, repeat) of every run that has come to an end."""
        return {(key(run.job.values), run.job.repeat) for run in self.runs()}

    def finish(
        self, run: RunFolder, job: Job, results: dict[str, Any] | None, error: str | None, keep: Keep, other_cpu: float = 0.0
    ) -> Run:  # fmt: skip
        """Mark a run as done, and drop its history unless it is to stay."""
        stays = results is not None and (keep == "all" or (keep == "anomalies" and bool(results["anomalies"])))
        if not stays and error is None:
            shutil.rmtree(run.history, ignore_errors=True)
        at_s = round(time.time(), 3)
        saved = {"values": job.values, "repeat": job.repeat, "error": error, "history": stays or error is not None, "other_cpu": round(other_cpu, 3), "at_s": at_s}  # fmt: skip
        write(run.path / "cell.json", json.dumps(saved, indent=1) + "\n")
        return Run(job, results, error, str(run.path.relative_to(self.path)), other_cpu, at_s)

    def discard(self, run: RunFolder) -> None:
        """Forget a run that was interrupted: it will be made again."""
        shutil.rmtree(run.path, ignore_errors=True)
        if not any(run.path.parent.iterdir()):
            run.path.parent.rmdir()


def _new_folder(parent: Path, stamp: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100):
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path.resolve()
    raise HarnessError(f"{parent}: a hundred sweeps in one second")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
