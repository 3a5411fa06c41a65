"""Overlays with a pip that is a script of ours: what is kept, what is left behind, and what is said."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import FieldError, UnavailableError, UsageError
from harness.releases import overlay

NAME = "mooncake-transfer-engine-non-cuda"
GOOD = """
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
name, _, version = sys.argv[-1].partition("==")
(target / "module.py").write_text("X = 1")
info = target / f"{name.replace('-', '_')}-{version}.dist-info"
info.mkdir()
(info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
with open(__file__ + ".calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
"""


class Pip:
    """Stands for `python`: runs its own text instead of pip."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = folder / "fake_pip.py"
        monkeypatch.setattr(overlay, "PIP", (str(self.script),))

    def does(self, text: str) -> None:
        self.script.write_text(text)

    @property
    def calls(self) -> list[str]:
        log = Path(f"{self.script}.calls")
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path / "cache"))
    return Pip(tmp_path, monkeypatch)


def _left(version: str = "1.0") -> list[str]:
    """Whatever is there of an installation, but for its lock."""
    parent = overlay.cache_folder() / "overlays" / NAME
    return sorted(entry.name for entry in parent.iterdir() if entry.name != f".{version}.lock")


def test_installs_once_and_finds_it_again(pip: Pip) -> None:
    pip.does(GOOD)
    assert overlay.path(NAME, "0.3.10.post2") is None
    folder = overlay.install(NAME, "0.3.10.post2", extra=["--pre"])
    assert (folder / "module.py").read_text() == "X = 1"
    assert folder == overlay.cache_folder() / "overlays" / NAME / "0.3.10.post2"
    assert folder.stat().st_mode & 0o777 == 0o755
    assert overlay.install("Mooncake_Transfer.Engine-non-cuda", "v0.3.10-post2") == folder
    assert overlay.path(NAME, "0.3.10.post2") == folder
    assert len(pip.calls) == 1
    assert pip.calls[0].endswith(f"--pre {NAME}==0.3.10.post2")
    assert "--no-deps" in pip.calls[0]


def test_versions_are_listed_in_their_order_and_half_ones_are_not(pip: Pip) -> None:
    pip.does(GOOD)
    assert overlay.installed(NAME) == []
    for version in ("0.3.13", "0.3.9", "0.3.10.post2"):
        overlay.install(NAME, version)
    (overlay.cache_folder() / "overlays" / NAME / ".0.3.8.part-x").mkdir()
    assert overlay.installed(NAME) == ["0.3.9", "0.3.10.post2", "0.3.13"]


@pytest.mark.parametrize(
    ("said", "kind", "line"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement x==1.0 (from versions: 0.1, 0.2.post1)\nERROR: No match",
            FieldError,
            f"version of {NAME}: '1.0' is not allowed; use one of 0.1, 0.2.post1",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement x==1.0 (from versions: none)",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: no package index has it, or none can be reached",
        ),
        (
            "WARNING: Retrying: Failed to establish a new connection: refused\n(from versions: none)",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: no package index can be reached: no network",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: the disk is full: CACHE has 7 MiB free, which is not enough; HANDOFF_CACHE names another folder",
        ),
        (
            "ERROR: Wheel 'x' located at /x.whl is invalid.",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: its wheel is broken",
        ),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\nzlib.error: Error -3 while decompressing data: invalid block type",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: its wheel is broken",
        ),
        (
            "OSError: [Errno 27] File too large: 'x'",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: a limit on the size of files (ulimit -f) is lower than it needs",
        ),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\nSomeError: of pip's own",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: SomeError: of pip's own",
        ),
        (
            "/usr/bin/python: No module named pip",
            UnavailableError,
            f"{NAME}==1.0: cannot be installed: this Python has no pip; get it with: python -m ensurepip",
        ),
        ("what\nERROR: something else\nhint", UnavailableError, f"{NAME}==1.0: cannot be installed: something else"),
        ("", UnavailableError, f"{NAME}==1.0: cannot be installed: pip gave no reason"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[UsageError | UnavailableError], line: str
) -> None:
    monkeypatch.setattr(overlay.shutil, "disk_usage", lambda _: SimpleNamespace(free=(7 << 20) + 1))
    pip.does(GOOD + f"\nprint({said!r}, file=sys.stderr)\nsys.exit(1)")
    with pytest.raises(kind) as raised:
        overlay.install(NAME, "1.0")
    assert str(raised.value) == line.replace("CACHE has", f"{overlay.cache_folder()} has")
    assert raised.value.exit_code == 2
    assert _left() == []
    assert overlay.path(NAME, "1.0") is None


def test_success_without_the_distribution_is_a_failure(pip: Pip) -> None:
    pip.does(GOOD.replace("Version: {version}", "Version: 9.9"))
    with pytest.raises(UnavailableError, match="pip reported success, but it is not there"):
        overlay.install(NAME, "1.0")
    assert _left() == []


def test_what_pip_unpacks_lies_where_the_next_installation_sweeps(pip: Pip) -> None:
    pip.does("import os\nopen(os.path.join(os.environ['TMPDIR'], 'unpacked'), 'w').close()\n" + GOOD + "\nsys.exit(1)")
    with pytest.raises(UnavailableError):
        overlay.install(NAME, "1.0")
    assert _left() == []
    pip.does(
        "import os, pathlib\nassert '.1.0.part-' in os.environ['TMPDIR']\nassert not os.listdir(os.environ['TMPDIR'])\n"
        + GOOD
    )
    overlay.install(NAME, "1.0")
    assert _left() == ["1.0"]


def test_what_a_killed_installer_left_is_swept(pip: Pip) -> None:
    pip.does(GOOD)
    folder = overlay.cache_folder() / "overlays" / NAME / ".1.0.part-dead"
    folder.mkdir(parents=True)
    (folder / "half").write_text("")
    overlay.install(NAME, "1.0")
    assert _left() == ["1.0"]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_installation_that_does_not_end_is_ended(pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip.does(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    monkeypatch.setattr(overlay, "INSTALL_TIMEOUT_S", 2.0)
    with pytest.raises(UnavailableError, match=r"^mooncake.*==1\.0: not installed within 2 s$"):
        overlay.install(NAME, "1.0")
    assert _left() == []
    assert not _alive(int((tmp_path / "pid").read_text()))


@pytest.mark.integration
def test_a_killed_harness_takes_its_pip_along(pip: Pip, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    part = f"{pid_file}.part"
    pip.does(
        f"import os, time\nopen({part!r}, 'w').write(str(os.getpid()))\nos.rename({part!r}, {str(pid_file)!r})\ntime.sleep(600)"
    )
    code = (
        f"from harness.releases import overlay; overlay.PIP = ({str(pip.script)!r},); overlay.install({NAME!r}, '1.0')"
    )
    child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code])
    _until(pid_file.exists)
    os.kill(child, 9)
    os.waitpid(child, 0)
    _until(lambda: not _alive(int(pid_file.read_text())))


def _until(condition: object, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_two_at_once_install_once(pip: Pip, tmp_path: Path) -> None:
    pip.does("import time\ntime.sleep(0.3)\n" + GOOD)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(overlay.install(NAME, "1.0"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pip.calls) == 1
    assert found == [overlay.path(NAME, "1.0")] * 3


def test_a_lock_that_is_never_given_up_ends_in_one_line(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    pip.does(GOOD)
    monkeypatch.setattr(overlay, "INSTALL_TIMEOUT_S", 0.05)
    parent = overlay.cache_folder() / "overlays" / NAME
    parent.mkdir(parents=True)
    with (
        overlay.FileLock(parent / ".1.0.lock"),
        pytest.raises(UnavailableError, match="another process has been installing it for"),
    ):
        overlay.install(NAME, "1.0")


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path / "file"))
    with pytest.raises(UnavailableError, match=r"^mooncake.*==1\.0: cannot be written to .*: Not a directory$"):
        overlay.install(NAME, "1.0")


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        (NAME, "latest", "version of .*: 'latest' is not allowed; use a version such as"),
        (NAME, "../1.0", "version of .* is not allowed"),
        (NAME, "", "version of .* is not allowed"),
        ("../x", "1.0", "distribution: '../x' is not allowed"),
        ("", "1.0", "distribution: '' is not allowed"),
    ],
)
def test_names_and_versions_that_are_none(pip: Pip, name: str, version: str, said: str) -> None:
    for call in (overlay.install, overlay.path):
        with pytest.raises(FieldError, match=said):
            call(name, version)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))
    assert overlay.cache_folder() == tmp_path
    monkeypatch.delenv("HANDOFF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert overlay.cache_folder() == tmp_path / "xdg" / "pd-handoff"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert overlay.cache_folder() == Path.home() / ".cache" / "pd-handoff"
