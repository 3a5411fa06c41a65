"""A run's folder: `runs/<scenario>/<time>/` with manifest.json, scenario.toml, history/, logs/ and results.json.

`runs/latest` points at the newest. `handoff check` needs nothing but this folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from harness import extension
from harness.check import Expectations
from harness.errors import HarnessError, UsageError
from harness.scenario import Scenario, load, to_toml

LATEST = "latest"
_LIBRARIES = ("pd-handoff", "torch", "pyzmq", "numpy", "msgspec", "multiprocess")


class RunFolder:
    """One folder; `create` makes a new one, `RunFolder(path)` opens one that is there."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises UsageError when it is not a run's folder."""
        self.path = path.resolve()
        if not (self.path / "manifest.json").is_file():
            raise UsageError(f"run {path}: no manifest.json there; give the folder of a run, for example runs/latest")

    @classmethod
    def create(
        cls, runs: Path, scenario: Scenario, expect: Expectations, command: list[str], known: dict[str, Any] | None = None
    ) -> RunFolder:  # fmt: skip
        """Make the folder and everything that is known before the run; raises HarnessError when it cannot be written."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        manifest = {
            "command": shlex.join(command),
            "seed": scenario.seed,
            "versions": versions(),
            "machine": machine(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "expect": expect.to_dict(),
            **(known or {}),
        }
        try:
            path = _new_folder(runs / scenario.name, stamp)
            for part in ("history", "logs"):
                (path / part).mkdir()
            scenario = _with_copies(scenario, path)
            (path / "scenario.toml").write_text(to_toml(scenario))
            (path / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
            point(runs, LATEST, path)
        except OSError as error:
            raise HarnessError(f"run folder under {runs}: {error.strerror}{_whose(runs, error)}") from error
        return cls(path)

    @property
    def history(self) -> Path:
        """Where the streams are."""
        return self.path / "history"

    @property
    def logs(self) -> Path:
        """Where the nodes' output goes."""
        return self.path / "logs"

    @property
    def manifest(self) -> dict[str, Any]:
        """What was known before the run; raises UsageError when it cannot be read."""
        try:
            content: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
        except ValueError as error:
            raise UsageError(f"{self.path}/manifest.json: not JSON: {error}") from error
        return content

    @property
    def scenario(self) -> Scenario:
        """The scenario as it was run."""
        return load(self.path / "scenario.toml", {})

    @property
    def expect(self) -> Expectations:
        """What the checker holds the run to."""
        return Expectations.from_dict(self.manifest["expect"])

    def write_results(self, results: dict[str, Any]) -> Path:
        """Write results.json in one step, so that a reader never sees half of it."""
        return write(self.path / "results.json", json.dumps(results, indent=1) + "\n")


def _with_copies(scenario: Scenario, path: Path) -> Scenario:
    """Copy the scenario's plugins into the run's folder `path`; returns the scenario that names the copies."""
    kept = extension.copies(scenario.plugins, path)
    for plugin, copy in zip(scenario.plugins, kept, strict=True):
        target = extension.path_of(copy)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(extension.path_of(plugin).read_bytes())
    relative = (extension.at(copy, extension.path_of(copy).relative_to(path)) for copy in kept)
    return msgspec.structs.replace(scenario, plugins=tuple(relative))


def write(path: Path, content: str | bytes) -> Path:
    """Write in one step, so that a reader never sees half of it; returns `path`. Text is UTF-8."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    return part.replace(path)


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that matter, without importing them."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "arch": platform.machine(),
    }


def _whose(runs: Path, error: OSError) -> str:
    """Who wanted to write and whose the folder is, where that is the trouble: in a container it mostly is."""
    if not isinstance(error, PermissionError) or not runs.exists():
        return ""
    return f"; it belongs to uid {runs.stat().st_uid}, this process is uid {os.getuid()}"


def _new_folder(parent: Path, stamp: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise HarnessError(f"{parent}: a thousand runs in one second")


def point(runs: Path, name: str, path: Path) -> None:
    """Have `runs/name` point at `path`, in one step: runs started at the same time must not trip over each other."""
    fresh = runs / f".{name}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(path.relative_to(runs))
    fresh.replace(runs / name)
