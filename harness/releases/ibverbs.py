"""libibverbs: Mooncake's wheels are linked against it and do not bring it, also where no RDMA is used.

Installed by the system, or unpacked from Debian's packages into the cache: no root needed, nothing of the system is changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

from harness.errors import UnavailableError
from harness.releases.overlay import cache_folder

LIBRARIES = ("libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1")
"""In the order in which they must be loaded: each needs those before it."""
PACKAGES = ("libnl-3-200", "libnl-route-3-200", "libibverbs1")
FETCH_TIMEOUT_S = 300.0
HELP = "libibverbs.so.1 is missing, which Mooncake needs: install the package libibverbs1 (Debian, Ubuntu) or libibverbs (Fedora)"


def load() -> None:
    """Load it into this process for libraries that come later; raises UnavailableError (one line) where it is not to be had."""
    for folder in (None, _folder()):
        with contextlib.suppress(OSError):
            for name in LIBRARIES if folder else LIBRARIES[-1:]:
                ctypes.CDLL(str(folder / name) if folder else name, mode=ctypes.RTLD_GLOBAL)
            return
    raise UnavailableError(HELP)


def ensure() -> None:
    """See that `load` will work, in this process and others; fetches Debian's packages where it would not. Raises UnavailableError."""
    try:
        load()
    except UnavailableError:
        _fetch()
        load()


def _folder() -> Path:
    return cache_folder() / "system" / "libibverbs"


def _fetch() -> None:
    folder = _folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / ".libibverbs.lock", timeout=FETCH_TIMEOUT_S):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix=".part-", dir=folder.parent) as part:
                    _unpack(Path(part))
                    (Path(part) / "lib").rename(folder)
    except FileNotFoundError as error:
        raise UnavailableError(f"{HELP}; it cannot be fetched here: {error.filename} is not there") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{HELP}; it could not be fetched: {_line(error)}") from error


def _unpack(part: Path) -> None:
    """Download and unpack into `part`/root, and bring the libraries together in `part`/lib."""
    _run(["apt-get", "download", *PACKAGES], part)
    for package in part.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), "root"], part)
    (part / "lib").mkdir()
    for name in LIBRARIES:
        found = next((part / "root").rglob(name), None)
        if found is None:
            raise OSError(f"{name} is not in {', '.join(PACKAGES)}")
        shutil.copyfile(found, part / "lib" / name)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(
        command, cwd=folder, timeout=FETCH_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )  # fmt: skip


def _line(error: Exception) -> str:
    said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return said[-1][:300] if said else type(error).__name__
