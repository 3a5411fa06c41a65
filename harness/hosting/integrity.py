"""Proof that a hosted engine is the released one: every module that was loaded has the bytes that its wheel recorded."""

from __future__ import annotations

import base64
import csv
import hashlib
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Finding:
    """Files under the overlay that were loaded (`checked`), and those of them that differ or that the wheel does not list."""

    checked: int = 0
    differ: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    @property
    def unchanged(self) -> bool:
        """Everything loaded is as released."""
        return self.checked > 0 and not self.differ and not self.unlisted


def recorded_hashes(overlay: Path) -> dict[str, str]:
    """SHA-256 (URL-safe base64, as wheels write it) of each file, by its path in the overlay; from the RECORD files of its wheels."""
    found = {}
    for record in overlay.glob("*.dist-info/RECORD"):
        with record.open(newline="") as file:
            for name, digest, *_ in csv.reader(file):
                if digest.startswith("sha256="):
                    found[name] = digest.removeprefix("sha256=")
    return found


def loaded_files(overlay: Path) -> list[Path]:
    """Source files of the modules that this process has loaded from `overlay`."""
    root = overlay.resolve()
    files = {
        Path(str(module.__file__)).resolve()
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None)
    }
    return sorted(file for file in files if file.suffix == ".py" and file.is_relative_to(root))


def verify(overlay: Path, files: list[Path] | None = None) -> Finding:
    """Compare `files` (those loaded) with what the wheels recorded."""
    hashes, finding, root = recorded_hashes(overlay), Finding(), overlay.resolve()
    for file in loaded_files(overlay) if files is None else files:
        name = file.resolve().relative_to(root).as_posix()
        finding.checked += 1
        if name not in hashes:
            finding.unlisted.append(name)
        elif _digest(file) != hashes[name]:
            finding.differ.append(name)
    return finding


def _digest(file: Path) -> str:
    digest = hashlib.sha256(file.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
