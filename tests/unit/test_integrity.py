"""What was loaded is compared with what the wheel recorded."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from harness.hosting.integrity import verify


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    lines = []
    for name, content in (("engine/a.py", "a = 1\n"), ("engine/b.py", "b = 2\n")):
        (tmp_path / name).write_text(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    info = tmp_path / "engine-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("\n".join([*lines, "engine-1.0.dist-info/RECORD,,"]) + "\n")
    return tmp_path


def files(overlay: Path) -> list[Path]:
    return sorted((overlay / "engine").glob("*.py"))


def test_a_release_as_its_wheel_has_it(overlay: Path) -> None:
    finding = verify(overlay, files(overlay))
    assert finding.unchanged
    assert finding.checked == 2


def test_a_changed_file_is_named(overlay: Path) -> None:
    (overlay / "engine" / "b.py").write_text("b = 3\n")
    finding = verify(overlay, files(overlay))
    assert finding.differ == ["engine/b.py"]
    assert not finding.unchanged


def test_a_file_that_no_wheel_brought_is_named(overlay: Path) -> None:
    (overlay / "engine" / "c.py").write_text("")
    assert verify(overlay, files(overlay)).unlisted == ["engine/c.py"]


def test_nothing_loaded_proves_nothing(overlay: Path) -> None:
    assert not verify(overlay, []).unchanged


def test_modules_of_this_process_are_found(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(overlay))
    (overlay / "engine" / "__init__.py").write_text("")
    import engine.a  # noqa: F401, PLC0415

    finding = verify(overlay)
    assert finding.checked == 2
    assert finding.unlisted == ["engine/__init__.py"]
