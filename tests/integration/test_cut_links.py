"""Runs whose nodes are in two network namespaces. Needs root: elsewhere they are skipped, and say so."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from integration.cli import handoff, node, nothing_left, start, stress, until

from harness import link as links
from harness.errors import UnavailableError
from harness.history.event import FaultEvent, Verb
from harness.history.reader import Stream
from harness.scenario import load
from harness.session import Session
from harness.stress import prepare

STEADY = (
    "--transport", "tcp", "--set", "workload.arrival=fixed", "--set", "workload.rate_per_s=200", "--concurrency", "1024",
    "--slots", "512", "--set", "limits.min_window=0", "--set", "limits.min_reuse=0",
)  # fmt: skip


def _refused() -> str:
    try:
        links.require(load(None, {"faults": ["link"], "transport.name": "tcp"}))
    except UnavailableError as error:
        return str(error)
    return ""


pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(_refused()), reason=f"no link between namespaces can be made here: {_refused()}"),
]


def _names(results: dict) -> set[str]:
    return {anomaly["name"] for anomaly in results["anomalies"]}


def test_a_cut_link_fails_what_it_must_and_all_goes_on_after_it(tmp_path: Path) -> None:
    cut = ("--fault", "link:every_s=1,for_ms=1500,count=2", "--set", "limits.transfer_timeout_s=0.7")
    found = stress(tmp_path, "--duration", "8", *cut, *STEADY)
    assert (found["code"], _names(found)) == (0, set())
    assert found["other_aborts"] > 0
    assert found["committed"] > 300


@pytest.mark.parametrize("transport", ["tcp", "gloo"])
def test_a_slow_and_lossy_link_to_nodes_that_are_killed(tmp_path: Path, transport: str) -> None:
    bad = (
        "--fault",
        "link:node=decode,every_s=1,for_ms=500,loss=0.2,delay_ms=10",
        "--fault",
        "kill:node=any,every_s=1.5,count=2",
    )
    found = stress(
        tmp_path, "--duration", "6", *STEADY, "--transport", transport, *bad, "--set", "limits.transfer_timeout_s=10"
    )
    assert (found["code"], _names(found)) == (0, set())


def _network(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def test_only_the_nodes_of_one_role_are_far_and_nothing_outlives_the_driver(tmp_path: Path) -> None:
    with nothing_left() as watch:
        driver = start(tmp_path, "stress", "--quiet", "--duration", "60", "--fault", "link:every_s=0.5", *STEADY)
        until(lambda: _cut(tmp_path), "the link is cut")
        watch(driver)
        where = {
            role: _network(node(driver, role).pid)
            for role in ("decode_node", "prefill_stub", "harness.registry", "link")
        }
        node(driver, "link").suspend()
        driver.kill()
        driver.communicate(timeout=15)
    assert where["decode_node"] == where["harness.registry"] not in {where["prefill_stub"], _network(os.getpid())}
    assert where["prefill_stub"] == where["link"]


def _cut(runs: Path) -> bool:
    paths = list((runs / "latest" / "history").glob("driver-*.hist")) if (runs / "latest").exists() else []
    records = Stream(paths[0]).read(0, Stream(paths[0]).count) if paths else None
    return records is not None and bool(((records["verb"] == Verb.FAULT) & (records["code"] == FaultEvent.BEGIN)).any())


def test_a_session_ends_where_it_began(tmp_path: Path) -> None:
    home = _network(os.getpid())
    scenario = load(None, {"faults": ["link"], "transport.name": "tcp"})
    with Session(scenario.topology, prepare(scenario, tmp_path, ["test"]).logs, first=scenario) as session:
        assert _network(os.getpid()) != home
        pids = [member.process.pid for member in session.cluster.members]
    assert _network(os.getpid()) == home
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_with_a_transport_that_does_not_cross_it_is_one_line(tmp_path: Path) -> None:
    ended = handoff(tmp_path, "stress", "--fault", "link", "--transport", "shm")
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []
