"""The suite of the documentation in a project of its own: here beside this installation, and from a wheel in a fresh environment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_the_suite_passes_on_two_workers(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANDOFF_RUNS", raising=False)
    shutil.copy(HERE / "suite.py", pytester.path / "test_handoff.py")
    result = pytester.runpytest_subprocess("-W", "error", "--integration", "-n", "2", timeout=300)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        ["35800 hand-offs driven in 4 runs (4 valid); seed 1; transport shm, tcp; anomalies: none"]
    )


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_the_wheel_in_a_fresh_environment(tmp_path: Path) -> None:
    ended = subprocess.run([HERE / "wheel.sh", tmp_path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "foreign: all steps passed"
