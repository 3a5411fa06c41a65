"""Every way a run can end: killed node, killed driver, Ctrl-C, bad input. A verdict or an error, and nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil
import pytest
from integration.cli import handoff, node, nothing_left, start, under_load, until

from harness.history.event import FaultEvent, NodeEvent, Phase, Verb
from harness.history.reader import Stream
from harness.node.shell import LOST_S
from harness.node.silence import STALL_S

pytestmark = pytest.mark.integration
LONG = ("stress", "--quiet", "--json", "--duration", "60")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("role", ["decode_node", "prefill_stub", "harness.registry"])
def test_a_killed_node_is_a_crash_and_the_rest_is_judged(tmp_path: Path, role: str, transport: str) -> None:
    with nothing_left() as watch:
        driver = start(tmp_path, *LONG, "--transport", transport)
        until(lambda: under_load(tmp_path), "load")
        watch(driver)
        node(driver, role).kill()
        _, err = driver.communicate(timeout=15)
    assert driver.returncode == 1, err
    results = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json").results
    assert [anomaly["name"] for anomaly in results["anomalies"]] == ["crash"]
    assert results["committed"] > 500
    assert results["hung"] == 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_driver_takes_everything_along_and_leaves_its_history(tmp_path: Path, transport: str) -> None:
    with nothing_left() as watch:
        driver = start(tmp_path, *LONG, "--transport", transport)
        until(lambda: under_load(tmp_path), "load")
        watch(driver)
        driver.kill()
        driver.communicate(timeout=15)
    ended = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json")
    assert ended.code == 3
    assert ended.results["anomalies"] == []
    assert ended.results["committed"] > 500
    assert not ended.results["complete"]


def test_a_stopped_node_does_not_outlive_the_driver(tmp_path: Path) -> None:
    with nothing_left() as watch:
        driver = start(tmp_path, *LONG)
        until(lambda: under_load(tmp_path), "load")
        watch(driver)
        node(driver, "decode_node").suspend()
        driver.kill()
        driver.communicate(timeout=15)


def test_forked_nodes_do_not_outlive_the_driver_stopped_or_not(tmp_path: Path) -> None:
    with nothing_left() as watch:
        driver = start(tmp_path, *LONG, "--fault", "kill:node=prefill,every_s=0.5,count=1")
        until(lambda: _recorded(tmp_path, Verb.FAULT, FaultEvent.END), "a node was started again")
        assert node(driver, "nursery").parent() == psutil.Process(driver.pid)
        watch(driver)
        node(driver, "decode_node").suspend()
        driver.kill()
        driver.communicate(timeout=15)


def test_ctrl_c_stops_drains_and_judges(tmp_path: Path) -> None:
    with nothing_left() as watch:
        driver = start(tmp_path, "stress", "--quiet", "--duration", "60")
        until(lambda: under_load(tmp_path), "load")
        watch(driver)
        driver.send_signal(signal.SIGINT)
        out, _ = driver.communicate(timeout=15)
    assert "\ninterrupted: " in out
    results = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json").results
    assert driver.returncode in {0, 3}  # valid if what was driven until then covers enough
    assert results["interrupted"]
    assert results["requests"] == results["committed"]


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    with nothing_left() as watch:
        driver = start(tmp_path, *LONG, "--set", "limits.drain_timeout_s=60", "--set", "limits.request_timeout_s=60")
        until(lambda: under_load(tmp_path), "load")
        watch(driver)
        # A decode node that does not answer makes the first Ctrl-C wait in the drain.
        node(driver, "decode_node").suspend()
        driver.send_signal(signal.SIGINT)
        until(lambda: _drains(tmp_path), "drain")
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=15)
    assert driver.returncode == 130
    assert err.strip().splitlines()[-1].startswith("handoff: interrupted")


def test_a_driver_that_is_not_run_records_it(tmp_path: Path) -> None:
    driver = start(tmp_path, "stress", "--quiet", "--duration", "60")
    until(lambda: under_load(tmp_path), "load")
    psutil.Process(driver.pid).suspend()
    time.sleep(2 * STALL_S)  # how long it stands still is what is tried
    psutil.Process(driver.pid).resume()
    until(lambda: _recorded(tmp_path, Verb.NODE, NodeEvent.STALLED), "the stall is recorded")
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=15)
    results = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json").results
    assert results["verdict"] == "valid"  # nothing timed out by it


def test_nodes_that_stood_still_with_their_driver_are_not_lost(tmp_path: Path) -> None:
    driver = start(tmp_path, "stress", "--quiet", "--duration", "60")
    until(lambda: under_load(tmp_path), "load")
    everyone = [psutil.Process(driver.pid)]
    everyone += everyone[0].children(recursive=True)
    with contextlib.ExitStack() as stack:
        for process in everyone:
            process.suspend()
            stack.callback(process.resume)
        time.sleep(LOST_S + 1)  # how long they stand still is what is tried
        everyone[0].resume()  # the driver first: nobody else can have said anything when it looks
        until(lambda: _recorded(tmp_path, Verb.NODE, NodeEvent.STALLED), "the stall is recorded")
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=30)
    results = handoff(tmp_path, "check", str(tmp_path / "latest"), "--json").results
    # A time-out is another matter: the nodes stood still for longer than the driver, which is all that can be known of them.
    assert not {"crash", "abort"} & {anomaly["name"] for anomaly in results["anomalies"]}


def _drains(runs: Path) -> bool:
    return _recorded(runs, Verb.PHASE, Phase.DRAIN)


def _recorded(runs: Path, verb: Verb, code: int) -> bool:
    """Whether the driver has recorded this."""
    paths = list((runs / "latest" / "history").glob("driver-*.hist")) if (runs / "latest").exists() else []
    if not paths:
        return False
    stream = Stream(paths[0])
    records = stream.read(0, stream.count)
    return bool(((records["verb"] == verb) & (records["code"] == code)).any())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--guards", "nope"], "guards: 'nope' is not allowed; use one of sglang-0.5.8"),
        (["--guards", "hardened,-nope"], "guards: '-nope' is not allowed"),
        (
            ["--transport", "rdma"],
            "transport.name: 'rdma' is not allowed; use one of gloo, mooncake, nixl, nixl-shm, nixl-tcp, shm, tcp",
        ),
        (["--concurrency", "0"], "workload.concurrency: 0 is not allowed; use 1 to 65536"),
        (["--seed", "x"], "seed: 'x' is not allowed; use a whole number"),
        (["--set", "slots=4"], "slots: no such field (did you mean engine.slots?)"),
        (["--set", "engine.page_bytes=20"], "engine.page_bytes: 20 is not allowed; use a multiple of 8"),
        (["nowhere.toml"], "scenario nowhere.toml: No such file or directory"),
        (["--nope"], "No such option '--nope'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    ended = handoff(tmp_path, "stress", *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_runs_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = handoff(tmp_path / "file", "stress", "--requests", "10")
    assert (ended.code, len(ended.err.splitlines())) == (4, 1)


def test_check_of_something_else_is_a_usage_error(tmp_path: Path) -> None:
    ended = handoff(tmp_path, "check", str(tmp_path))
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
