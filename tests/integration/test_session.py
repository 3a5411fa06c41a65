"""One set of nodes, several runs: each is judged by itself, and nothing of one run reaches the next."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from integration.cli import until

from harness.errors import HarnessError
from harness.history.event import Role
from harness.live import Quiet
from harness.node import shell
from harness.runfolder import RunFolder
from harness.scenario import Topology, load
from harness.session import Session
from harness.stress import expectations, judge

pytestmark = pytest.mark.integration


def _run(session: Session, runs: Path, **changes: object) -> dict:
    scenario = load(None, {"workload.requests": 3000, **{name.replace("__", "."): v for name, v in changes.items()}})
    folder = RunFolder.create(runs, scenario, expectations(scenario), ["test"])
    session.run(scenario, folder, Quiet())
    return {**judge(folder).results, "folder": folder}


def test_runs_of_one_session_are_judged_each_by_itself(tmp_path: Path) -> None:
    with Session(Topology(), tmp_path / "logs") as session:
        pids = {member.name: member.process.pid for member in session.cluster.members}
        first = _run(session, tmp_path, guards="hardened", engine__slots=8, limits__min_window=0)
        bad = _run(
            session, tmp_path, guards="sglang-0.5.12", transport__name="tcp", transport__late_fraction=0.2,
            transport__delay_us=3000,
        )  # fmt: skip
        last = _run(session, tmp_path, guards="hardened", transport__name="tcp", engine__slots=4, limits__min_window=0)
        assert {member.name: member.process.pid for member in session.cluster.members} == pids
    assert [first["verdict"], bad["verdict"], last["verdict"]] == ["valid", "invalid", "valid"]
    assert bad["false_aborts"] > 0
    assert [result["requests"] for result in (first, bad, last)] == [3200] * 3
    for result in (first, bad, last):
        assert {path.name.split(".")[0] for path in result["folder"].history.iterdir()} == {
            "driver-0", "prefill-0", "decode-0",
        }  # fmt: skip
        assert result["resources"].keys() == first["resources"].keys()
    assert all(not member.process.is_alive() for member in session.cluster.members)


def test_a_session_whose_node_died_says_so_and_runs_nothing_more(tmp_path: Path) -> None:
    with Session(Topology(), tmp_path / "logs") as session:
        _run(session, tmp_path, limits__min_window=0)
        decode = next(member for member in session.cluster.members if member.role is Role.DECODE)
        decode.process.kill()
        until(lambda: not decode.process.is_alive(), "decode ends")
        with pytest.raises(HarnessError, match="decode-0"):
            _run(session, tmp_path)
        assert session.broken
        with pytest.raises(HarnessError, match="nothing more"):
            _run(session, tmp_path)


def test_a_session_takes_only_its_own_topology(tmp_path: Path) -> None:
    with Session(Topology(), tmp_path / "logs") as session, pytest.raises(HarnessError, match="decode=2"):
        _run(session, tmp_path, topology__decode=2)


def test_nodes_outlive_a_driver_that_is_silent_between_two_runs(tmp_path: Path) -> None:
    with Session(Topology(), tmp_path / "logs") as session:
        _run(session, tmp_path, limits__min_window=0)
        silent_until = (
            time.monotonic() + shell.LOST_S + 2 * shell.BEAT_S
        )  # longer than the bound at which a peer is lost
        until(lambda: time.monotonic() > silent_until, "the silence ends")
        assert _run(session, tmp_path, limits__min_window=0)["verdict"] == "valid"


def test_a_late_answer_to_a_fault_of_an_ended_run_is_nobodys(tmp_path: Path) -> None:
    with Session(Topology(), tmp_path / "logs") as session:
        found = _run(session, tmp_path, limits__min_window=0, faults=["duplicate-room:fraction=0.05"])
        assert next(entry for entry in found["coverage"] if entry["name"].startswith("fault duplicate-room"))["met"]
        assert session._driver is not None
        assert session._driver.nemesis is None  # its stream is closed: it must not record into it
