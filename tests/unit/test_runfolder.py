"""A run's folder: made, opened, read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import scenario as scenarios
from harness.check import Expectations
from harness.errors import HarnessError, UsageError
from harness.runfolder import LATEST, RunFolder, machine, versions
from harness.stress import expectations

SCENARIO = scenarios.load(None, {"name": "unit", "seed": 5, "workload.requests": 9, "transport.delay_us": 3.5})
EXPECT = expectations(SCENARIO)


def _make(runs: Path) -> RunFolder:
    return RunFolder.create(runs, SCENARIO, EXPECT, ["handoff", "stress", "a b.toml", "--seed", "5"])


def test_a_new_folder_has_what_is_known_before_the_run(tmp_path: Path) -> None:
    folder = _make(tmp_path / "runs")
    assert folder.path.parent == tmp_path / "runs" / "unit"
    assert folder.history.is_dir()
    assert folder.logs.is_dir()
    assert folder.scenario == SCENARIO
    assert folder.expect == EXPECT
    manifest = folder.manifest
    assert manifest["command"] == "handoff stress 'a b.toml' --seed 5"
    assert manifest["seed"] == 5
    assert manifest["versions"] == versions()
    assert manifest["machine"] == machine()


def test_opened_again_it_says_the_same(tmp_path: Path) -> None:
    made = _make(tmp_path)
    for path in (made.path, tmp_path / LATEST):
        again = RunFolder(path)
        assert again.path == made.path
        assert again.expect == EXPECT
        assert again.scenario == SCENARIO


def test_expectations_go_through_json_unchanged() -> None:
    other = scenarios.load(
        None, {"guards": "sglang-0.5.8", "transport.name": "tcp", "limits.min_reuse": 7, "engine.slots": 3}
    )
    for expect in (EXPECT, expectations(other)):
        assert Expectations.from_dict(json.loads(json.dumps(expect.to_dict()))) == expect
    assert expectations(other) != EXPECT


def test_runs_in_the_same_second_have_folders_of_their_own_and_latest_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.runfolder.time.strftime", lambda _: "20260101-000000")
    folders = [_make(tmp_path) for _ in range(3)]
    assert [folder.path.name for folder in folders] == [
        "20260101-000000",
        "20260101-000000-2",
        "20260101-000000-3",
    ]
    assert (tmp_path / LATEST).resolve() == folders[2].path
    assert not (tmp_path / LATEST).readlink().is_absolute()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_results_are_written_in_one_step(tmp_path: Path) -> None:
    folder = _make(tmp_path)
    for number in (1, 2):
        path = folder.write_results({"verdict": "valid", "n": number})
        assert json.loads(path.read_text()) == {"verdict": "valid", "n": number}
    assert path == folder.path / "results.json"
    assert [entry.name for entry in folder.path.iterdir() if "part" in entry.name] == []


def test_what_is_no_runs_folder_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match=r"^run .*: no manifest.json there; give the folder of a run"):
            RunFolder(path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match=r"manifest.json: not JSON"):
        _ = RunFolder(tmp_path).manifest


def test_a_folder_that_cannot_be_made_is_a_harness_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(HarnessError, match=r"^run folder under .*: (Not a directory|File exists)"):
        _make(tmp_path / "runs")


def test_a_scenario_called_latest_is_refused_or_works(tmp_path: Path) -> None:
    try:
        scenario = scenarios.load(None, {"name": LATEST})
    except UsageError:
        return
    RunFolder.create(tmp_path, scenario, EXPECT, ["handoff"])


def test_versions_and_machine_name_what_matters() -> None:
    assert {"python", "torch", "pyzmq", "numpy", "msgspec"} <= set(versions())
    assert machine()["cores"] >= 1
