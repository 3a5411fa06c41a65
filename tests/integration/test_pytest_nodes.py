"""The plugin with real nodes, in suites of its own: shared nodes, failures, workers, timeouts, and every way a test process can end."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest
from integration.cli import handoff, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
STRICT = ("-W", "error", "--strict-markers", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
WIDE = (
    "-o",
    "handoff_set=transport=tcp\ntransport.late_fraction=0.2\ntransport.delay_us=1500\nlimits.start_timeout_s=200",
)
"""A window that opens hundreds of times in a small run, on a fast machine too."""


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the outer session's settings reaches the inner ones."""
    for name in ("HANDOFF_RUNS", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)


def _run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*STRICT, *WIDE, *arguments, timeout=300)


def _said(pytester: pytest.Pytester, name: str = "pids.jsonl") -> list[dict[str, int]]:
    """What tests of the inner suite wrote down of their nodes."""
    return [json.loads(line) for line in (pytester.path / name).read_text().splitlines()]


SAY = """
    import json, os, pathlib, signal
    import pytest

    HERE = pathlib.Path(__file__).parent

    def say(pids):
        with (HERE / "pids.jsonl").open("a") as file:
            file.write(json.dumps(pids) + "\\n")
"""


def _gone(pids: dict[str, int]) -> None:
    until(lambda: not any(map(_alive, pids.values())), "the nodes end")


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_workers_share_nothing_and_their_figures_are_added_up(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        SAY
        + """
    @pytest.mark.integration
    @pytest.mark.handoff(guards="hardened", requests=3000, concurrency=64, slots=16)
    def test_slot_reuse(handoff_run):
        handoff_run().assert_valid()

    @pytest.mark.parametrize("slots", [1, 4, 32])
    def test_small_pools(handoff_cluster, slots):
        with handoff_cluster(slots=slots) as cluster:
            say({"worker": os.environ.get("PYTEST_XDIST_WORKER"), **cluster.pids})
            result = cluster.stress(requests=1000)
            assert result.false_aborts == 0
            assert result.reuse_min > 1000 // slots - 100
    """
    )
    result = _run(pytester, "--integration", "-n", "2", "--dist", "load", "--junitxml", "junit.xml")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["6800 hand-offs driven in 4 runs (4 valid); seed 1; transport tcp; anomalies: none"])
    pids: dict[str, set[int]] = {}
    for said in _said(pytester):
        pids.setdefault(str(said.pop("worker")), set()).update(said.values())
        _gone(said)
    assert all(len(each) == 3 for each in pids.values())  # one set of nodes a worker, for all of its tests
    assert len(set.union(*pids.values())) == 3 * len(pids)
    cases = ET.parse(pytester.path / "junit.xml").getroot().findall(".//testcase")
    figures = [
        {entry.get("name"): entry.get("value") for entry in case.findall("./properties/property")} for case in cases
    ]
    assert [each["handoff.verdict"] for each in figures] == ["valid"] * 4
    assert sorted(int(str(each["handoff.requests"])) for each in figures) == [1200, 1200, 1200, 3200]
    assert all(Path(str(each["handoff.folder"])).is_dir() for each in figures)


def test_a_bad_preset_fails_with_the_whole_story_and_nothing_of_the_harness(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
    import pytest

    @pytest.mark.handoff(guards="hardened", requests=3000, transport__late_fraction=0.05, transport__delay_us=2000)
    def test_story(handoff_run):
        handoff_run().assert_valid()

    def test_bare_comparison(handoff_cluster):
        with handoff_cluster(slots=4, transport__late_fraction=0.05, transport__delay_us=2000) as cluster:
            assert cluster.stress(requests=3000).false_aborts == 0

    @pytest.mark.handoff(requests=1000, planes="shared")
    def test_unknown(handoff_run):
        handoff_run().assert_valid(allow_unknown=True)
        handoff_run().assert_valid()
    """
    )
    result = _run(pytester, "--handoff-guards", "sglang-0.5.12")
    result.assert_outcomes(failed=3)
    out = result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            ">       handoff_run().assert_valid()",
            "E       handoff.NotValid: invalid: *false-abort * of 3200*",
            "E       guards sglang-0.5.12, transport tcp, planes split, seed 1: 3200 hand-offs, * false aborts*",
            "E       a case of false-abort:",
            "E         rooms: A = 0x*, B = 0x*",
            "E         +* us *decode-0*aborted: MISMATCH, found room ?",
            "E       run folder: runs/test_story/*",
            "E       repeat with: handoff stress *",
            "E       or the test: pytest *::test_story --handoff-guards sglang-0.5.12",
            "E*assert * == 0",
            "*- handoff run 1 -*",
            "invalid: *false-abort * of 3200*",
            "E       handoff.NotValid: unknown: nothing was found, *: status before data 0 (needs 10)",
        ]
    )
    frames = re.findall(r"^(\S+\.py):\d+: ", out, re.MULTILINE)
    assert set(frames) == {f"{pytester.path.name.rstrip('0123456789')}.py"}, frames
    result.stdout.fnmatch_lines(
        ["8?00 hand-offs driven in 4 runs (2 invalid, 2 unknown); *; anomalies: *false-abort *"]
    )
    command = next(line for line in result.outlines if "repeat with: " in line).partition("repeat with: ")[2]
    again = handoff(pytester.path / "again", *shlex.split(command)[1:], "--quiet")
    assert again.code == 1, again.err
    assert "false-abort" in again.out


def test_nodes_are_shared_and_a_lost_one_is_replaced_for_the_next_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        SAY
        + """
    pytestmark = pytest.mark.handoff(requests=300)

    def test_first(handoff_cluster):
        with handoff_cluster() as cluster:
            say(cluster.pids)
            cluster.stress().assert_valid()

    @pytest.mark.parametrize("again", range(2))
    def test_own(handoff_cluster, again):
        with handoff_cluster(fresh=True) as cluster:
            say(cluster.pids)
            cluster.stress(slots=4).assert_valid()

    def test_lost(handoff_cluster):
        with handoff_cluster(slots=2, transport="shm") as cluster:
            say(cluster.pids)
            os.kill(cluster.pids["decode-0"], signal.SIGKILL)
            with pytest.raises(Exception, match="decode-0.*ended|ended.*decode-0"):
                cluster.stress()
            with pytest.raises(Exception, match="nothing more"):
                cluster.stress()

    def test_next(handoff_cluster):
        with handoff_cluster() as cluster:
            say(cluster.pids)
            cluster.stress().assert_valid()
    """
    )
    result = _run(pytester)
    result.assert_outcomes(passed=5)
    first, own, other, lost, after = _said(pytester)
    assert first == lost
    assert not set(first.values()) & (set(own.values()) | set(other.values()) | set(after.values()))
    assert not set(own.values()) & set(other.values())
    for pids in (first, own, other, after):
        _gone(pids)


XDIST = ("-n", "1", "--max-worker-restart", "0")


@pytest.mark.parametrize(
    ("end", "workers"),
    [
        ("os._exit(7)", ()),
        ("os.kill(os.getpid(), signal.SIGKILL)", ()),
        ("os.kill(os.getpid(), signal.SIGKILL)", XDIST),
    ],
    ids=["exit", "killed", "killed-worker"],
)
def test_a_crash_of_the_test_process_leaves_nothing(
    pytester: pytest.Pytester, end: str, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        SAY
        + f"""
    def test_it(handoff_cluster):
        with handoff_cluster(requests=300) as cluster, handoff_cluster(fresh=True) as other:
            cluster.stress().assert_valid()
            say({{**cluster.pids, **{{"other " + name: pid for name, pid in other.pids.items()}}}})
            (HERE / "names").write_text(" ".join(each._nodes.session.cluster.name for each in (cluster, other)))
            {end}
    """
    )
    assert _run(pytester, *workers).ret != 0
    (pids,) = _said(pytester)
    assert len(pids) == 6
    _gone(pids)
    until(lambda: not _sockets_of(pytester), "the sockets go")


def _sockets_of(pytester: pytest.Pytester) -> list[str]:
    """Sockets of the clusters that `say` named."""
    names = (pytester.path / "names").read_text().split()
    assert len(names) == 2
    return [
        line
        for line in Path("/proc/net/unix").read_text().splitlines()
        if any(f"@handoff-{name}-" in line for name in names)
    ]


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_nodes_leave_behind_fails_the_session_and_is_cleared_away(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        """
    from harness.cluster import Cluster
    from harness.driver import Driver
    from harness.pytest_plugin import leftovers

    finish = Driver.finish
    Cluster.stop = lambda self, grace_s=0: None  # break it on purpose: nobody ends the nodes ...
    Driver.finish = lambda self, *, leave: leave or finish(self, leave=False)  # ... and nobody tells them to leave
    leftovers.left_behind.__defaults__ = (0.1,)
    """
    )
    pytester.makepyfile(
        SAY
        + """
    def test_it(handoff_cluster):
        with handoff_cluster() as cluster:
            say(cluster.pids)
            cluster.stress(requests=300).assert_valid()
    """
    )
    result = _run(pytester, *workers)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["LEFT BEHIND: process *: decode-0, still running", "LEFT BEHIND: socket @handoff-*"])
    (pids,) = _said(pytester)
    _gone(pids)


@pytest.mark.parametrize(
    ("method", "workers"),
    [("signal", ()), ("thread", ()), ("signal", ("-n", "1"))],
    ids=["signal", "thread", "signal-xdist"],
)
def test_a_hang_shows_the_stacks_of_the_nodes(pytester: pytest.Pytester, method: str, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(
        SAY
        + f"""
    def test_a_warm_up(handoff_cluster):
        with handoff_cluster(requests=300) as cluster:
            say(cluster.pids)
            cluster.stress().assert_valid()

    @pytest.mark.timeout(8, method="{method}")
    def test_b_hang(handoff_cluster):
        with handoff_cluster(duration=200) as cluster:
            say(cluster.pids)
            cluster.stress()

    def test_c_after(handoff_cluster):
        with handoff_cluster(requests=300) as cluster:
            say(cluster.pids)
            cluster.stress().assert_valid()
    """
    )
    result = _run(pytester, *workers)
    said = _said(pytester)
    text = result.stdout.str() + result.stderr.str()
    for name in ("registry-0", "prefill-0", "decode-0"):
        start = text.index(f"{name} (pid {said[1][name]}, ")
        assert "most recent call first" in text[start : start + 1000]
        assert "harness/node/shell.py" in text[start : start + 3000]
    if method == "signal":
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines(["E *Failed: Timeout (>8.0s) from pytest-timeout."])
        assert said[1] != said[2]  # nobody knows what the nodes of a run that was cut off are in the middle of
    else:
        assert result.ret != 0
    for pids in said:
        _gone(pids)


def test_ctrl_c_in_a_run_ends_the_session_and_the_nodes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        SAY
        + """
    def test_it(handoff_cluster):
        with handoff_cluster(duration=200) as cluster:
            say(cluster.pids)
            cluster.stress()

    def test_never():
        (HERE / "never").touch()
    """
    )
    command = [sys.executable, "-m", "pytest", *STRICT, *WIDE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=pytester.path)
    until(lambda: list(pytester.path.glob("runs/latest/history/*")), "the run begins")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=200)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    assert json.loads((pytester.path / "runs" / "latest" / "results.json").read_text())["interrupted"]
    assert not (pytester.path / "never").exists()
    (pids,) = _said(pytester)
    _gone(pids)


def test_a_suite_that_reports_as_errors_what_python_warns_of(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.makepyfile("def test_it(handoff_run): handoff_run(requests=300).assert_valid()")
    result = _run(pytester)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert result.stderr.str() == ""
