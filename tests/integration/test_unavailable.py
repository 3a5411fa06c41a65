"""Releases that cannot be had: pip itself, wheels of our own, no network. One clear line, exit 2, nothing half-done left."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from integration.cli import until

from harness.releases import overlay

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
CLOSED = "http://127.0.0.1:9/simple"
DEADLINE_S = 120.0
SIZE_BYTES = 3 << 20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that looks nowhere but in a folder of wheels."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache"


def wheel(folder: Path, version: str = "1.0") -> Path:
    """A wheel called sglang with one large file."""
    path = folder / f"sglang-{version}-py3-none-any.whl"
    info = f"sglang-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sglang/__init__.py", "")
        archive.writestr("sglang/data", os.urandom(SIZE_BYTES))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"sglang/__init__.py,,\nsglang/data,,\n{info}/RECORD,,\n")
    return path


def install(version: str = "1.0", preexec: Callable[[], None] | None = None) -> str:
    """The one line that `handoff releases install` says."""
    ended = subprocess.run(
        [sys.executable, "-m", "harness.cli", "releases", "install", version], capture_output=True, text=True, timeout=DEADLINE_S,
        check=False, preexec_fn=preexec,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    return ended.stderr.strip()


def left(cache: Path) -> list[str]:
    """Whatever an installation left but for its lock."""
    return sorted(
        str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and not path.name.endswith(".lock")
    )


def test_a_release_that_does_not_exist(cache: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "0.9")
    assert install() == "handoff: version of sglang: '1.0' is not allowed; use one of 0.9"
    assert left(cache) == []


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", CLOSED)
    assert install() == "handoff: sglang==1.0: cannot be installed: no package index can be reached: no network"
    assert left(cache) == []


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed"])
def test_a_broken_wheel(cache: Path, tmp_path: Path, damage: str) -> None:
    path = wheel(tmp_path / "wheels")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if damage == "changed":
        content[middle : middle + 100] = bytes(value ^ 255 for value in content[middle : middle + 100])
    path.write_bytes(content if damage == "changed" else content[: middle if damage == "truncated" else 0])
    assert install() == "handoff: sglang==1.0: cannot be installed: its wheel is broken"
    assert left(cache) == []


def test_a_file_that_may_not_grow(cache: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    limit = SIZE_BYTES // 2
    line = install(preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert line.startswith("handoff: sglang==1.0: cannot be installed: a limit on the size of files")
    assert left(cache) == []


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root may mount")
def test_a_full_disk(cache: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels")
    cache.mkdir()
    # In a mount namespace of its own: the small disk goes with its last process, whatever ends it.
    inside = f"mount -t tmpfs -o size=1m tmpfs {cache} || exit 77; {sys.executable} -m harness.cli releases install 1.0; echo code $?; find {cache} -type f"
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", inside], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if ended.returncode in {1, 77}:
        pytest.skip(f"no mount here: {ended.stderr.strip()}")
    assert ended.stderr.startswith(f"handoff: sglang==1.0: cannot be installed: the disk is full: {cache} has ")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout.splitlines() == ["code 2", str(cache / "overlays" / "sglang" / ".1.0.lock")]


@pytest.fixture
def half(tmp_path: Path) -> Iterator[str]:
    """Address of a page that links a wheel of which only the first half comes."""
    content = wheel(tmp_path).read_bytes()
    over = threading.Event()

    class Half(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = b'<a href="/sglang-1.0-py3-none-any.whl">sglang</a>'
            whole = self.path.endswith("/")
            body = page if whole else content
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if whole else "application/zip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if whole else body[: len(body) // 2])
            self.wfile.flush()
            if not whole:
                over.wait(DEADLINE_S)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Half) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        over.set()
        server.shutdown()
        thread.join()


def test_an_installer_that_is_killed_leaves_nothing_to_the_next(
    cache: Path, tmp_path: Path, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = cache / "overlays" / "sglang"
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", "releases", "install", "1.0"], env={**os.environ, "PIP_FIND_LINKS": half}
    )
    until(
        lambda: any(path.is_file() and path.stat().st_size for path in parent.glob(".1.0.part-*/tmp/**/*")),
        "half a wheel",
    )
    process.kill()
    process.wait()
    assert [path.name for path in parent.glob("[!.]*")] == []
    assert len(list(parent.glob(".1.0.part-*"))) == 1
    wheel(tmp_path / "wheels")
    assert (overlay.install("sglang", "1.0") / "sglang" / "data").stat().st_size == SIZE_BYTES
    assert sorted(path.name for path in parent.iterdir()) == [".1.0.lock", "1.0"]
