"""Overlays: one folder for each distribution and version, put on `sys.path` of the process that hosts it.

`pip install --no-deps --target` into `overlays/NAME/VERSION` of the cache (`HANDOFF_CACHE`, else `$XDG_CACHE_HOME/pd-handoff`, else
`~/.cache/pd-handoff`). An overlay appears by one rename, so that it is whole or not there, whatever dies meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

from filelock import FileLock, Timeout
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.errors import FieldError, HandoffError, UnavailableError

INSTALL_TIMEOUT_S = 900.0
"""Bound of one installation, the download included; also of the wait for another process that installs the same one."""
VERSIONS_SHOWN = 12
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
_INSTALL = ("install", "--quiet", "--no-deps", "--only-binary", ":all:", "--retries", "2", "--timeout", "30")
DIES_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""What a Python child runs first: the kernel ends it when its starting thread ends, SIGKILL included: PR_SET_PDEATHSIG outlives an exec."""
FULL = "the disk is full"
_CAUSES = (
    ("No space left on device", FULL),
    ("Disk quota exceeded", FULL),
    ("File too large", "a limit on the size of files (ulimit -f) is lower than it needs"),
    ("No module named pip", "this Python has no pip; get it with: python -m ensurepip"),
    ("Temporary failure in name resolution", "no package index can be reached: no network"),
    ("Failed to establish a new connection", "no package index can be reached: no network"),
    ("Max retries exceeded", "no package index can be reached: no network"),
    ("BadZipFile", "its wheel is broken"),
    ("is invalid", "its wheel is broken"),
    ("not a valid wheel", "its wheel is broken"),
    ("Bad CRC-32", "its wheel is broken"),
    ("while decompressing data", "its wheel is broken"),
    ("DO NOT MATCH THE HASHES", "its wheel is broken"),
)
"""What pip says, and what that means; the first that is found counts."""


def cache_folder() -> Path:
    """Where everything is kept that was fetched; not made by this call."""
    given = os.environ.get("HANDOFF_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "pd-handoff"


def path(distribution: str, version: str) -> Path | None:
    """Folder of an installed overlay, or None; raises FieldError for a version that is none."""
    folder = _folder(distribution, version)
    return folder if folder.is_dir() else None


def installed(distribution: str) -> list[str]:
    """Versions of `distribution` that are installed, oldest first."""
    parent = _parent(distribution)
    found = [entry.name for entry in parent.iterdir() if entry.is_dir()] if parent.is_dir() else []
    return sorted((name for name in found if _is_version(name)), key=Version)


def install(distribution: str, version: str, *, extra: Sequence[str] = ()) -> Path:
    """Install `distribution==version` unless it is there; returns its folder. `extra`: further arguments for pip.

    Raises FieldError for a version that does not exist, UnavailableError (one line) when it cannot be fetched or written.
    """
    folder = _folder(distribution, version)
    if folder.is_dir():
        return folder
    wanted = f"{canonicalize_name(distribution)}=={folder.name}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock", timeout=INSTALL_TIMEOUT_S):
            if not folder.is_dir():
                _install(folder, wanted, extra)
    except Timeout as error:
        raise UnavailableError(
            f"{wanted}: another process has been installing it for {INSTALL_TIMEOUT_S:g} s"
        ) from error
    except OSError as error:
        raise UnavailableError(f"{wanted}: cannot be written to {folder.parent}: {error.strerror or error}") from error
    return folder


def _install(folder: Path, wanted: str, extra: Sequence[str]) -> None:
    """Install into a folder beside and rename it; the caller holds the lock, so what lies there is a dead installer's."""
    prefix = f".{folder.name}.part-"
    for left in folder.parent.glob(prefix + "*"):
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        target, temporary = part / "target", part / "tmp"
        target.mkdir()
        temporary.mkdir()
        _run_pip(wanted, [*PIP, *_INSTALL, "--target", str(target), *extra, wanted], temporary)
        _verify(target, wanted)
        target.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _run_pip(wanted: str, arguments: list[str], temporary: Path) -> None:
    """Run pip with a bound; raises the one line that says why it failed.

    What pip unpacks goes to `temporary`: a pip that is killed leaves it, and there the next installation sweeps it away.
    """
    command = [sys.executable, "-c", DIES_WITH_US, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True, env={**os.environ, "TMPDIR": str(temporary)},
    ) as process, _ended(process):  # fmt: skip
        try:
            said, _ = process.communicate(timeout=INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"{wanted}: not installed within {INSTALL_TIMEOUT_S:g} s") from error
    if process.returncode:
        raise _explain(wanted, said, temporary)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no pip behind, however the body ends."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _explain(wanted: str, said: str, folder: Path) -> HandoffError:
    """One line for pip's output; it wrote below `folder`."""
    for text, cause in _CAUSES:
        if text in said:
            return UnavailableError(f"{wanted}: cannot be installed: {cause}{_room(folder) if cause == FULL else ''}")
    distribution, _, version = wanted.partition("==")
    _, listed, rest = said.partition("(from versions: ")
    versions = [name for name in rest.partition(")")[0].split(", ") if _is_version(name)]
    if versions:
        versions = versions[-VERSIONS_SHOWN:]
        return FieldError(f"version of {distribution}", version, "one of " + ", ".join(versions))
    if listed:
        return UnavailableError(f"{wanted}: cannot be installed: no package index has it, or none can be reached")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors[-1:] == ["Exception:"]:  # a traceback of pip's own: its last line says what it was
        errors = lines
    return UnavailableError(f"{wanted}: cannot be installed: {(errors or lines or ['pip gave no reason'])[-1][:300]}")


def _room(folder: Path) -> str:
    free = shutil.disk_usage(folder).free >> 20
    return f": {cache_folder()} has {free} MiB free, which is not enough; HANDOFF_CACHE names another folder"


def _verify(part: Path, wanted: str) -> None:
    """Raise UnavailableError unless `part` holds what was wanted."""
    name, _, version = wanted.partition("==")
    for found in distributions(path=[str(part)]):
        known = found.metadata["Name"]
        if known and canonicalize_name(known) == name and _same(found.version, version):
            return
    raise UnavailableError(f"{wanted}: cannot be installed: pip reported success, but it is not there")


def _same(one: str, other: str) -> bool:
    return _is_version(one) and Version(one) == Version(other)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _parent(distribution: str) -> Path:
    name = canonicalize_name(distribution)
    if not name.replace("-", "").isalnum() or not name.isascii():
        raise FieldError("distribution", distribution, "a name of letters, digits, '-', '_' and '.'")
    return cache_folder() / "overlays" / name


def _folder(distribution: str, version: str) -> Path:
    """Where an overlay belongs; two spellings of one version share it."""
    return _parent(distribution) / normal(f"version of {distribution}", version)


def normal(field: str, version: str) -> str:
    """The one spelling of a version that folders use; raises FieldError, naming `field`, for a version that is none."""
    if not _is_version(version):
        raise FieldError(field, version, "a version such as 1.2.3 or 1.2.3.post1")
    return str(Version(version))
