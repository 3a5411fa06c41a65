"""`handoff sweep` and `handoff tune` on real nodes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from integration.cli import handoff, node, nothing_left, start, until

pytestmark = pytest.mark.integration

GRID = (
    "--grid",
    "concurrency=2,8",
    "--grid",
    "slots=4,8",
    "--transport",
    "tcp",
    "--seconds-per-cell",
    "0.4",
    "--repeats",
    "2",
)


def _done(runs: Path) -> dict[str, int]:
    """Every finished run and when it was finished."""
    return {
        str(path): path.stat().st_mtime_ns for path in (runs / "latest-sweep").resolve().glob("cells/*/*/cell.json")
    }


def test_a_small_sweep(tmp_path: Path) -> None:
    ended = handoff(
        tmp_path, "sweep", *GRID, "--quiet", "--json", "--guards", "hardened", "--set", "limits.min_window=0"
    )
    assert ended.code == 0, ended.err
    found = ended.results
    assert [cell["axes"] for cell in found["cells"]] == [{"concurrency": c, "slots": s} for c in (2, 8) for s in (4, 8)]
    for cell in found["cells"]:
        assert (cell["verdict"], cell["runs"], cell["failed"]) == ("valid", 2, 0)
        assert cell["rate_per_s"] > 0
        assert 0 < cell["slot_occupancy"] <= 1
        assert cell["slot_wait_ms"]["p50"] > 0
    assert len(_done(tmp_path)) == 8
    assert not list((tmp_path / "latest-sweep").resolve().glob("cells/*/*/history"))
    assert (tmp_path / "latest-sweep" / "sweep.csv").is_file()


def test_a_full_pool_is_seen_in_its_occupancy_and_in_the_wait(tmp_path: Path) -> None:
    ended = handoff(
        tmp_path, "sweep", "--grid", "slots=1,64", "--concurrency", "16", "--quiet", "--json", "--seconds-per-cell", "0.6", "--repeats", "2"
    )  # fmt: skip
    assert ended.code == 0, ended.err
    small, large = ended.results["cells"]
    assert small["slot_occupancy"] > 2 * large["slot_occupancy"]
    assert small["slot_wait_ms"]["p50"] > 2 * large["slot_wait_ms"]["p50"]


def test_after_ctrl_c_only_what_is_missing_is_made(tmp_path: Path) -> None:
    with nothing_left(driver := start(tmp_path, "sweep", *GRID, "--quiet")) as watch:
        until(lambda: (tmp_path / "latest-sweep").exists() and len(_done(tmp_path)) >= 2, "two runs are made")
        watch(driver)
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=60)
    assert driver.returncode == 130, err
    before = _done(tmp_path)
    assert 2 <= len(before) < 8
    assert f"{8 - len(before)} runs are missing; go on with: handoff sweep --resume" in err
    assert (tmp_path / "latest-sweep" / "sweep.csv").is_file()
    ended = handoff(tmp_path, "sweep", "--resume", str(tmp_path / "latest-sweep"), "--quiet", "--json")
    assert ended.code == 0, ended.err
    after = _done(tmp_path)
    assert len(after) == 8
    assert {path: after[path] for path in before} == before
    assert ended.results["runs_missing"] == 0
    assert all(cell["runs"] == 2 for cell in ended.results["cells"])


def test_a_node_that_dies_is_a_result_and_the_sweep_goes_on(tmp_path: Path) -> None:
    with nothing_left(driver := start(tmp_path, "sweep", *GRID, "--quiet", "--json")) as watch:
        until(lambda: (tmp_path / "latest-sweep").exists() and _done(tmp_path), "a run is made")
        watch(driver)
        node(driver, "decode").kill()
        out, err = driver.communicate(timeout=60)
    assert driver.returncode == 0, err
    cells = json.loads(out)["cells"]
    assert sum(cell["runs"] for cell in cells) == 8
    assert any(cell["verdict"] in {"failed", "invalid"} for cell in cells)
    assert any(cell["errors"] or any(a["name"] == "crash" for a in cell["anomalies"]) for cell in cells)


def test_a_sweep_whose_driver_is_killed_leaves_nothing_and_can_be_resumed(tmp_path: Path) -> None:
    with nothing_left(driver := start(tmp_path, "sweep", *GRID, "--quiet")) as watch:
        until(lambda: (tmp_path / "latest-sweep").exists() and _done(tmp_path), "a run is made")
        watch(driver)
        driver.kill()
        driver.communicate(timeout=60)
    ended = handoff(tmp_path, "sweep", "--resume", str(tmp_path / "latest-sweep"), "--quiet", "--json")
    assert ended.code == 0, ended.err
    assert all(cell["runs"] == 2 for cell in ended.results["cells"])


def test_topologies_are_swept_too(tmp_path: Path) -> None:
    ended = handoff(
        tmp_path, "sweep", "--grid", "topology.decode=1,2", "--repeats", "1", "--seconds-per-cell", "0.3", "--quiet", "--json"
    )  # fmt: skip
    assert ended.code == 0, ended.err
    nodes = [sum(name.startswith("decode") for name in cell["resources"]) for cell in ended.results["cells"]]
    assert nodes == [1, 2]


def test_tune_recommends_what_it_measured(tmp_path: Path) -> None:
    ended = handoff(
        tmp_path, "tune", "--max-concurrency", "4", "--seconds-per-run", "0.1", "--repeats", "3", "--quiet", "--json", "--p99-ms", "10000"
    )  # fmt: skip
    assert ended.code == 0, ended.err
    advice = ended.results["advice"]
    assert 1 <= advice["slots"] <= advice["concurrency"] <= 4
    assert advice["rate"]["low"] <= advice["rate"]["value"] <= advice["rate"]["high"]
    measured = [cell["axes"] for cell in ended.results["cells"]]
    assert {"concurrency": advice["concurrency"], "slots": advice["slots"]} in measured


def test_tune_says_that_nothing_fits(tmp_path: Path) -> None:
    ended = handoff(
        tmp_path, "tune", "--max-concurrency", "2", "--seconds-per-run", "0.05", "--repeats", "3", "--quiet", "--p99-ms", "0.001"
    )  # fmt: skip
    assert ended.code == 3, ended.err
    assert "nothing to recommend: p99 is" in ended.out
