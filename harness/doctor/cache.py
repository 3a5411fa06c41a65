"""Overlays in the cache: which are there, whether they are whole, and what they take."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.doctor.finding import Finding, Seen, size
from harness.releases import engines, hosted, overlay

FREE_GOOD_BYTES = 500 << 20
"""One release and a transfer engine take up to 0.5 GB (seen)."""


@dataclass(frozen=True)
class Overlay:
    """One folder. `fault`: why it is damaged, empty where every file that its RECORD names is there in its size."""

    version: str
    folder: Path
    size_bytes: int
    fault: str = ""


def look(distribution: str) -> list[Overlay]:
    """Every installed version of `distribution`, oldest first."""
    found = []
    for version in overlay.installed(distribution):
        folder = overlay.path(distribution, version)
        if folder is not None:
            found.append(Overlay(version, folder, _size(folder), fault(folder)))
    return found


def _size(folder: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_size for entry in _files(folder))


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                else:
                    yield entry


def fault(folder: Path) -> str:
    """The first file that is missing or has another size than its RECORD says; content is not read."""
    records = sorted(folder.glob("*.dist-info/RECORD"))
    if not records:
        return "it has no RECORD"
    for record in records:
        with record.open(newline="", encoding="utf-8") as lines:
            for name, _, length, *_ in csv.reader(lines):
                if name.startswith("..") or not length:
                    continue  # scripts go elsewhere under --target, and RECORD does not know its own size
                try:
                    found = (folder / name).stat().st_size
                except OSError:
                    return f"{name} is missing"
                if found != int(length):
                    return f"{name} has {found} bytes instead of {length}"
    return ""


def judge_overlays(found: list[Overlay], title: str, get: str, means: str) -> Finding:
    """One line for all versions of a distribution."""
    if not found:
        return Finding(title, "missing", "none in the cache", means, get)
    text = ", ".join(f"{one.version} ({size(one.size_bytes)})" for one in found)
    damaged = [one for one in found if one.fault]
    if damaged:
        faults = "; ".join(f"{one.version}: {one.fault}" for one in damaged)
        folders = " ".join(str(one.folder) for one in damaged)
        return Finding(
            title,
            "limited",
            f"{text}; damaged: {faults}",
            "a damaged release fails at import or in a run",
            f"rm -r {folders}; it is fetched again at its next use",
        )
    return Finding(title, "ok", text)


def judge_base(found: list[Overlay], missing: Sequence[str]) -> Finding:
    """What releases need of others: one overlay with everything; `missing`: pins that it has not."""
    title, means = "what SGLang needs", "no hosted runs"
    if not found:
        return Finding(
            title, "missing", "not in the cache", means, "handoff releases install 0.5.12.post1 (it comes along)"
        )
    one = found[-1]
    wrong = one.fault or (f"it has not {', '.join(missing)}" if missing else "")
    if wrong:
        return Finding(
            title, "limited", f"damaged: {wrong}", means, f"rm -r {one.folder}; it is fetched again at its next use"
        )
    return Finding(title, "ok", f"{len(hosted.BASE)} packages ({size(one.size_bytes)})")


def findings() -> list[Finding]:
    """A line for the releases, one for what they need of others, one for each transfer engine."""
    name, _, version = hosted.BASE[0].partition("==")
    base = [one for one in look(name) if one.version == version]
    found = [
        judge_overlays(
            look(hosted.SGLANG),
            "releases of SGLang",
            "handoff releases install 0.5.12.post1 0.5.13",
            "no hosted runs; the reference needs none",
        ),
        judge_base(base, hosted.missing_of(base[-1].folder, hosted.BASE) if base else []),
    ]
    for name, engine in engines.ENGINES.items():
        command = f"handoff probe {name}=={engine.default}"
        found.append(
            judge_overlays(look(engine.distribution), f"releases of {name}", command, f"no --transport {name}")
        )
    return found


def see_cache() -> Seen:
    """Where the cache is, its size, what is free, and what dead installers left."""
    folder = overlay.cache_folder()
    there = folder
    while not there.exists():
        there = there.parent
    left = [str(path) for path in sorted(folder.glob("overlays/*/.*.part-*"))]
    return {
        "folder": str(folder), "free_bytes": shutil.disk_usage(there).free, "writable": os.access(there, os.W_OK),
        "directory": there.is_dir(), "size_bytes": _size(folder) if folder.is_dir() else 0, "left": left,
    }  # fmt: skip


def judge_cache(seen: Seen) -> Finding:
    """Releases are fetched into it."""
    text = f"{seen['folder']}: {size(seen['size_bytes'])}, {size(seen['free_bytes'])} free"
    move = "HANDOFF_CACHE=DIR with another folder"
    if not seen["writable"] or not seen["directory"]:
        return Finding("cache", "missing", text + ", cannot be written", "no release can be fetched", move)
    if seen["free_bytes"] < FREE_GOOD_BYTES:
        return Finding("cache", "limited", text, "a release and a transfer engine take up to 0.5 GB", move)
    if seen["left"]:
        return Finding(
            "cache",
            "limited",
            f"{text}; left by installers that were killed: {len(seen['left'])}",
            "they only take room; the next installation of the same version removes them",
            "rm -r " + " ".join(seen["left"]),
        )
    return Finding("cache", "ok", text)
