"""Matrix and bisect, over a program that answers as `handoff stress` does: what a cell can do, and what the table says of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cli import _run
from harness.errors import FieldError, HarnessError, UsageError
from harness.releases import bisect as bisects
from harness.releases import cells as cells_
from harness.releases import fetch
from harness.releases import matrix as matrices
from harness.releases.cells import Cell, Runner
from harness.releases.probe import Probe

PROGRAM = """
import json, os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
release = options["--engine"].partition("==")[2]
if release == "0.0.1":
    print("handoff: engine.name: '0.0.1' is not allowed; use a release", file=sys.stderr); sys.exit(2)
if release == "0.0.2":
    print("something else\\nhandoff: decode-0 ended", file=sys.stderr); sys.exit(4)
if release == "0.0.3":
    os.kill(os.getpid(), signal.SIGKILL)
if release in {"0.0.4", "0.0.5"}:
    signal.signal(signal.SIGINT, signal.SIG_IGN if release == "0.0.5" else signal.default_int_handler)
    open(os.path.join(options["--runs"], "pid"), "w").write(str(os.getpid()))
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        pass
bad = release in {"0.5.9", "0.5.10", "0.5.12"}
anomalies = [{"name": "false-abort", "count": 30}, {"name": "crash", "count": 1}] if bad else []
print(json.dumps({
    "verdict": "invalid" if bad else "unknown" if release == "0.0.6" else "valid", "requests": 1000,
    "window_opened": {"0.0.6": 2, "0.0.7": 0}.get(release, 20), "false_aborts": 30 if bad else 0, "wrong_data": 0, "hung": 0, "leaked": 0,
    "anomalies": anomalies, "versions": {"python": "3"}, "machine": {"system": "L", "release": "6", "arch": "x", "cores": 2}}))
sys.exit(1 if bad else 0)
"""


def _runner(tmp_path: Path, timeout_s: float = 60.0) -> Runner:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return Runner(tmp_path, timeout_s, (str(program),))


def _cell(release: str) -> Cell:
    (cell,) = matrices.plan([release], ["mooncake==0.3.10.post2"], [])
    return cell


def test_the_plan_has_a_cell_for_each_release_and_transport() -> None:
    found = matrices.plan(["0.5.9", "path:/src"], ["mooncake==1", "nixl"], ["--requests", "7"])
    assert [cell.name for cell in found] == [
        "0.5.9, mooncake 1",
        "0.5.9, nixl",
        "path:/src, mooncake 1",
        "path:/src, nixl",
    ]
    assert found[0].options == ("--engine", "sglang==0.5.9", "--transport", "mooncake==1", "--requests", "7")
    assert found[3].options[:4] == ("--engine", "path:/src", "--transport", "nixl")


def test_a_judged_cell_has_the_keys_of_its_results_and_its_own(tmp_path: Path) -> None:
    result = _runner(tmp_path).run(_cell("0.5.10"))
    assert (result["verdict"], result["false_aborts"], result["timed_out"]) == ("invalid", 30, False)
    assert (result["release"], result["transfer_engine"], result["transfer_engine_version"]) == (
        "0.5.10",
        "mooncake",
        "0.3.10.post2",
    )
    assert result["error"] == ""


@pytest.mark.parametrize(("release", "error"), [("0.0.2", "handoff: decode-0 ended"), ("0.0.3", "exit -9")])
def test_a_cell_that_dies_is_a_result(tmp_path: Path, release: str, error: str) -> None:
    result = _runner(tmp_path).run(_cell(release))
    assert (result["verdict"], result["error"]) == ("failed", error)
    assert "requests" not in result


def test_options_that_are_none_end_the_matrix_with_their_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^engine.name: '0.0.1' is not allowed; use a release$"):
        _runner(tmp_path).run(_cell("0.0.1"))


def test_a_cell_that_hangs_is_asked_to_end_and_judged_by_what_it_says_then(tmp_path: Path) -> None:
    result = _runner(tmp_path, 1.0).run(_cell("0.0.4"))
    assert (result["verdict"], result["timed_out"]) == ("valid", True)


def test_a_cell_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_, "GRACE_S", 0.2)
    result = _runner(tmp_path, 1.0).run(_cell("0.0.5"))
    assert (result["verdict"], result["error"]) == ("hung", "no result within 1 s")
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_killed_matrix_leaves_no_cell_behind(tmp_path: Path) -> None:
    _runner(tmp_path)
    code = (
        "import sys; from pathlib import Path; from harness.releases.cells import Runner; from harness.releases import matrix as m\n"
        "p = Path(sys.argv[1]); Runner(p, 60.0, (str(p / 'program.py'),)).run(m.plan(['0.0.5'], ['x'], [])[0])"
    )
    matrix = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not pid.is_file() or not pid.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    cell = psutil.Process(int(pid.read_text()))
    os.kill(matrix.pid, signal.SIGKILL)
    matrix.wait()
    psutil.wait_procs([cell], timeout=60)
    assert not cell.is_running() or cell.status() == psutil.STATUS_ZOMBIE


def test_one_failed_cell_does_not_end_the_matrix_and_the_rest_is_estimated(tmp_path: Path) -> None:
    said: list[str] = []
    found = matrices.run([_cell("0.0.2"), _cell("0.5.9"), _cell("0.5.13")], _runner(tmp_path), said.append)
    assert [result["verdict"] for result in found] == ["failed", "invalid", "valid"]
    assert said[0] == "cell 1 of 3: 0.0.2, mooncake 0.3.10.post2"
    assert "cell 3 of 3" in said[2]
    assert "s left" in said[2]


def _results(tmp_path: Path) -> list[dict[str, Any]]:
    return matrices.run([_cell("0.5.9"), _cell("0.5.13"), _cell("0.0.2")], _runner(tmp_path))


def test_the_table_has_rates_with_intervals_and_what_none_seen_excludes(tmp_path: Path) -> None:
    first, second, third = (dict(zip(matrices.HEADS, row, strict=True)) for row in matrices.rows(_results(tmp_path)))
    assert first["false aborts"] == "30 = 3 % (2.11 to 4.25 %)"
    assert (first["crashes"], second["crashes"]) == ("1", "0")
    assert second["false aborts"] == "0 (below 0.3 %)"
    assert (third["hand-offs"], third["verdict"]) == ("-", "failed: handoff: decode-0 ended")


def test_markdown_and_page_say_the_same_as_the_table(tmp_path: Path) -> None:
    results = _results(tmp_path)
    lines = matrices.markdown(results).splitlines()
    assert len(lines) == 5
    assert len({line.count("|") for line in lines}) == 1
    text = matrices.page(results, "handoff matrix <x>")
    for row in matrices.rows(results):
        for cell in row:
            assert cell in text
    assert "handoff matrix &lt;x&gt;" in text
    assert "http" not in text


# Bisect ---------------------------------------------------------------------------------------------------------------

KNOWN = ["0.5.8", "0.5.9", "0.5.10", "0.5.12.post1", "0.5.13", "0.5.17", "0.5.20", "0.5.23"]


def test_releases_between_two_are_in_the_order_of_their_versions() -> None:
    assert bisects.between(KNOWN, "0.5.13", "0.5.9") == ["0.5.9", "0.5.10", "0.5.12.post1", "0.5.13"]
    assert bisects.between([], "0.5.9", "0.5.10") == ["0.5.9", "0.5.10"]
    for good, bad in (("0.5.9", "0.5.9"), ("x", "0.5.9"), ("0.5.9", "y")):
        with pytest.raises(FieldError):
            bisects.between(KNOWN, good, bad)


@pytest.mark.parametrize("first_good", range(1, len(KNOWN)))
def test_every_first_good_release_is_found_with_few_questions(first_good: int) -> None:
    found = bisects.bisect(KNOWN, KNOWN[-1], KNOWN[0], lambda release: KNOWN.index(release) < first_good)
    assert (found.good, found.bad, found.fixed) == (KNOWN[first_good], KNOWN[first_good - 1], True)
    assert found.sentence.startswith(f"first good release: {KNOWN[first_good]} ")
    assert len(found.tried) <= 2 + 3


@pytest.mark.parametrize("first_bad", range(1, len(KNOWN)))
def test_every_first_bad_release_is_found(first_bad: int) -> None:
    found = bisects.bisect(KNOWN, KNOWN[0], KNOWN[-1], lambda release: KNOWN.index(release) >= first_bad)
    assert (found.bad, found.good, found.fixed) == (KNOWN[first_bad], KNOWN[first_bad - 1], False)
    assert found.sentence.startswith(f"first bad release: {KNOWN[first_bad]} ")


@pytest.mark.parametrize(("answer", "says"), [(False, "0.5.9 does not show it"), (True, "0.5.13 shows it as well")])
def test_ends_that_are_not_as_was_said_are_an_error(answer: bool, says: str) -> None:
    with pytest.raises(HarnessError, match=says):
        bisects.bisect(KNOWN[1:5], "0.5.13", "0.5.9", lambda _: answer)


def test_a_probe_asks_until_it_sees_it_or_often_enough(tmp_path: Path) -> None:
    probe = Probe(_runner(tmp_path), "mooncake", [], "false-abort", 3)
    assert probe("0.5.9")
    assert len(probe.runner.results) == 1
    assert not probe("0.5.13")
    assert len(probe.runner.results) == 1 + 3
    assert not Probe(_runner(tmp_path), "mooncake", [], "torn", 2)("0.5.9")
    assert Probe(_runner(tmp_path), "mooncake", [], "any", 1)("0.5.9")
    with pytest.raises(HarnessError, match=r"0.0.2, mooncake: failed: .*decode-0 ended"):
        probe("0.0.2")
    assert probe.asked["0.5.9"].sentence.startswith("30 of 1000 (95 %: 2.11 % to 4.25 %) in 1 run; 20 saw")
    assert probe.asked["0.5.13"].sentence.startswith("none of 3000 (95 %: below 0.1 %) in 3 runs; 60 saw")


@pytest.mark.parametrize(
    ("release", "anomaly", "judged"), [("0.0.6", "any", False), ("0.0.7", "torn", False), ("0.0.7", "hang", True)]
)
def test_a_run_in_which_the_race_could_not_show_is_no_proof(
    tmp_path: Path, release: str, anomaly: str, judged: bool
) -> None:
    probe = Probe(_runner(tmp_path), "mooncake", [], anomaly, 2)
    if judged:
        assert not probe(release)
        assert len(probe.runner.results) == 2
        return
    with pytest.raises(HarnessError, match=r"cannot be judged: in 4 runs the race could not have shown"):
        probe(release)
    assert len(probe.runner.results) == 4


def test_everything_is_fetched_before_the_first_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(fetch.hosted, "fetch", lambda name, _: said.append(name))
    monkeypatch.setattr(fetch.engines, "there", lambda *release: release != ("mooncake", "0.3.9"))
    monkeypatch.setattr(fetch.engines, "ensure", lambda name, version: said.append(f"{name}=={version}"))
    cells = matrices.plan(["0.5.9", "path:/x"], ["mooncake==0.3.9", "mooncake", "nixl-tcp==1.5.1", "gloo"], [])
    fetch.fetch(cells, said.append)
    assert said == [
        "sglang==0.5.9", "path:/x", "fetching mooncake==0.3.9", "mooncake==0.3.9",
        f"mooncake=={fetch.engines.ENGINES['mooncake'].default}", "nixl==1.5.1",
    ]  # fmt: skip
    with pytest.raises(FieldError):
        fetch.fetch(matrices.plan(["0.5.9"], ["gloo==1"], []), said.append)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bisect", "--good", "0.5.13", "--bad", "0.5.13"],
        ["bisect", "--good", "0.5.13", "--bad", "0.5.9", "--anomaly", "nonsense"],
        ["bisect", "--good", "0.5.13", "--bad", "0.5.9", "--mooncake", "1,2"],
        ["matrix", "--releases", ","],
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
