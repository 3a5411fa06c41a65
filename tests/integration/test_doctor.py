"""The real `handoff doctor` on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.cli import handoff

ITEMS = [
    "python", "torch", "pyzmq", "loopback", "cores", "memory", "open files", "/dev/shm", "SCHED_RR", "gloo", "docker", "cache",
    "releases of SGLang", "what SGLang needs", "releases of mooncake", "releases of nixl", "libibverbs", "Mooncake",
    "NIXL and its UCX",
]  # fmt: skip


@pytest.mark.integration
def test_what_runs_this_test_can_run_a_stress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path / "cache"))
    ended = handoff(tmp_path, "doctor", "--json")
    assert (ended.code, ended.err) == (0, "")
    items = {item["item"]: item for item in ended.results["items"]}
    assert list(items) == ITEMS
    assert ended.results["can_stress"]
    for name in ("python", "torch", "pyzmq", "loopback", "gloo"):
        assert items[name]["state"] != "missing", items[name]
    for name in ("releases of SGLang", "Mooncake", "NIXL and its UCX"):
        assert items[name]["state"] == "missing"
        assert items[name]["help"]
    assert not (tmp_path / "cache").exists()
