"""A sweep's folder: what is done stays done, and only what is comparable is continued."""

import json

import pytest
from click.testing import CliRunner

from harness import cli
from harness.check import Expectations
from harness.errors import UsageError
from harness.runfolder import RunFolder
from harness.scenario import Scenario
from harness.sweep import grid
from harness.sweep.folder import SweepFolder
from harness.sweep.grid import Axis
from harness.sweep.plan import Job, Plan, key, rounds
from harness.sweep.sweep import prepare

from .canned import aborted, results

EXPECT = Expectations(slots=2, hang_bound_s=1.0, clean_slot=True, drained_release=True)
AXES = [Axis("workload.concurrency", [1, 2]), Axis("engine.slots", [4])]


@pytest.fixture
def folder(tmp_path):
    plan = Plan(tree={}, changes={"transport.name": "tcp"}, axes=AXES, run_s=0.5, repeats=2)
    return SweepFolder.create(tmp_path, "sweep", plan, ["handoff", "sweep"], 1)


def finish(folder, job, content=None, error=None, keep="anomalies"):
    made = RunFolder.create(folder.cells, folder.plan.scenario(job), EXPECT, ["handoff", "stress"])
    (made.history / "driver-0.1.main.hist").write_bytes(b"x")
    if content:
        made.write_results(content)
    return made, folder.finish(made, job, content, error, keep)


def options(folder, **given):
    plain = dict.fromkeys(
        (
            "scenario",
            "guards",
            "transport",
            "planes",
            "requests",
            "duration",
            "concurrency",
            "slots",
            "seed",
            "seconds_per_cell",
            "repeats",
        )
    )
    return {**plain, "changes": (), "grid": (), "runs": folder.path.parent, "resume": folder.path, **given}


def test_only_what_is_missing_is_left(folder):
    jobs = rounds(folder.plan, grid.cells(folder.plan.axes), 1)
    for job in jobs[:3]:
        finish(folder, job, results())
    again = SweepFolder(folder.path)
    assert [job for job in jobs if (key(job.values), job.repeat) not in again.done()] == jobs[3:]
    assert {(key(run.job.values), run.job.repeat) for run in again.runs()} == {
        (key(j.values), j.repeat) for j in jobs[:3]
    }


def test_a_run_that_failed_is_a_result_and_is_not_made_again(folder):
    finish(folder, Job({"workload.concurrency": 1, "engine.slots": 4}, 1), error="decode-0 ended")
    (run,) = folder.runs()
    assert (run.error, run.results) == ("decode-0 ended", None)
    assert len(folder.done()) == 1


def test_a_run_that_was_cut_off_is_not_done(folder):
    job = Job({"workload.concurrency": 1, "engine.slots": 4}, 1)
    RunFolder.create(folder.cells, folder.plan.scenario(job), EXPECT, ["x"]).write_results(results())
    assert folder.done() == set()


@pytest.mark.parametrize(
    ("keep", "content", "stays"),
    [
        ("anomalies", results(), False), ("anomalies", aborted(3), True), ("all", results(), True), ("none", aborted(3), False),
    ],
)  # fmt: skip
def test_whose_history_stays(folder, keep, content, stays):
    made, _ = finish(folder, Job({"workload.concurrency": 1, "engine.slots": 4}, 1), content, keep=keep)
    assert made.history.exists() == stays
    assert (made.path / "results.json").exists()


def test_a_discarded_run_leaves_nothing(folder):
    job = Job({"workload.concurrency": 1, "engine.slots": 4}, 1)
    folder.discard(RunFolder.create(folder.cells, folder.plan.scenario(job), EXPECT, ["x"]))
    assert [path.name for path in folder.cells.iterdir() if not path.is_symlink()] == []


def test_resuming_takes_what_is_not_given_from_the_folder(folder):
    found, plan = prepare(["x"], options(folder))
    assert (found.path, plan) == (folder.path, folder.plan)


def test_resuming_may_add_values_and_repeats(folder):
    _, plan = prepare(["x"], options(folder, grid=("concurrency=1,2,4", "slots=4"), repeats=5))
    assert (plan.axes[0].values, plan.repeats, plan.run_s) == ([1, 2, 4], 5, 0.5)
    assert SweepFolder(folder.path).plan == plan


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"transport": "shm"}, 'made with other options ({"transport.name": "tcp"}, now {"transport.name": "shm"})'),
        ({"grid": ("slots=4,8",)}, "made with other axes"),
        ({"seconds_per_cell": 4.0}, "made with other seconds a run (0.5, now 2.0)"),
    ],
)
def test_resuming_refuses_what_could_not_be_compared(folder, given, said):
    before = (folder.path / "sweep.json").read_text()
    with pytest.raises(UsageError) as caught:
        prepare(["x"], options(folder, **given))
    assert said in str(caught.value)
    assert (folder.path / "sweep.json").read_text() == before


def test_the_newest_is_linked(folder, tmp_path):
    assert (tmp_path / "latest-sweep").resolve() == folder.path


def test_a_damaged_result_says_what_to_do(folder):
    made, _ = finish(folder, Job({"workload.concurrency": 1, "engine.slots": 4}, 1), results())
    (made.path / "results.json").write_text("{")
    with pytest.raises(UsageError, match="remove its folder"):
        list(folder.runs())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep"], "sweep: nothing to vary; give --grid FIELD=V1,V2 or a scenario file with a [grid] table"),
        (["sweep", "--grid", "slots=0"], "engine.slots: 0 is not allowed; use 1 to 65536"),
        (["sweep", "--grid", "slots=x"], "engine.slots: 'x' is not allowed; use a whole number"),
        (["sweep", "--grid", "guards=nope"], None),
        (["sweep", "--grid", "slots=4", "--repeats", "0"], "--repeats: 0 is not allowed; use at least 1"),
        (["sweep", "--grid", "slots=4", "--seconds-per-cell", "-1"], "--seconds-per-cell: -1.0 is not allowed; use more than 0, at most 86400"),
        (["sweep", "--resume", "nowhere"], "sweep nowhere: no sweep.json there; give a sweep's folder, for example runs/latest-sweep"),
        (["sweep", "nowhere.toml"], "scenario nowhere.toml: No such file or directory"),
        (["sweep", "--grid", "slots=4", "--history", "some"], None),
        (["tune", "--p99-ms", "0"], "--p99-ms: 0.0 is not allowed; use 0.001 to 1e+06"),
        (["tune", "--slots", "many"], "engine.slots: 'many' is not allowed; use a whole number"),
        (["tune", "--concurrency", "4"], "--concurrency: '4' is not allowed; use --max-concurrency: tune finds the concurrency"),
        (["tune", "--repeats", "1"], "--repeats: 1 is not allowed; use 3 to 100"),
        (["tune", "--set", "workload.arrival=poisson"], None),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.count("\n") == 1
    if message:
        assert said == f"handoff: {message}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_scenario_file_with_a_grid(tmp_path, monkeypatch):
    (tmp_path / "tuning.toml").write_text(
        'guards = "sglang-0.5.12"\n[engine]\nslots = 8\n[grid]\nconcurrency = [1, 2]\n"transport.name" = ["tcp", "shm"]\n'
    )
    given = {**options_free(tmp_path), "scenario": tmp_path / "tuning.toml"}
    _, plan = prepare(["x"], given)
    assert [axis.field for axis in plan.axes] == ["workload.concurrency", "transport.name"]
    scenario = plan.scenario(Job({"workload.concurrency": 2, "transport.name": "tcp"}, 1))
    assert (scenario.guards, scenario.engine.slots, scenario.workload.concurrency) == ("sglang-0.5.12", 8, 2)


def options_free(tmp_path):
    plain = dict.fromkeys(
        (
            "scenario",
            "guards",
            "transport",
            "planes",
            "requests",
            "duration",
            "concurrency",
            "slots",
            "seed",
            "seconds_per_cell",
            "repeats",
            "resume",
        )
    )
    return {**plain, "changes": (), "grid": (), "runs": tmp_path}


def test_help_names_every_option():
    text = CliRunner().invoke(cli.app, ["sweep", "--help"], obj=[]).output
    for option in ("--grid", "--seconds-per-cell", "--repeats", "--resume", "--history", "--json", "--guards", "--set"):
        assert option in text
    assert "--p99-ms" in CliRunner().invoke(cli.app, ["tune", "--help"], obj=[]).output


def test_a_damaged_manifest(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": 1}))
    with pytest.raises(UsageError, match="damaged"):
        SweepFolder(tmp_path)
    assert Scenario().name
