"""Nodes that are forked: signals, exit codes, and an end that leaves nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from integration.cli import until

from harness.cluster import Cluster
from harness.errors import HarnessError
from harness.history.event import Role
from harness.node.nursery import Order
from harness.nursery import Nursery

pytestmark = pytest.mark.integration
SLEEPER = "sleeper_for_a_test"


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    """One that forks sleepers."""
    (tmp_path / f"{SLEEPER}.py").write_text("import sys, time\nif len(sys.argv) > 1: sys.exit(7)\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = Nursery(tmp_path / "nursery.log", ["json"])
    try:
        assert made.usable()
        yield made
    finally:
        made.close()


def _order(folder: Path, *arguments: str) -> Order:
    return Order("sleeper", SLEEPER, list(arguments), str(folder / "sleeper.log"))


def test_exit_codes_are_those_of_a_process(tmp_path: Path, nursery: Nursery) -> None:
    ends = nursery.start(_order(tmp_path, "end"))
    ends.join()
    killed, told = nursery.start(_order(tmp_path)), nursery.start(_order(tmp_path))
    assert killed.is_alive()
    killed.kill()
    killed.join()
    told.terminate()
    told.join()
    assert [node.exitcode for node in (ends, killed, told)] == [7, -signal.SIGKILL, -signal.SIGTERM]
    assert not any(node.is_alive() for node in (ends, killed, told))


def test_a_wait_for_one_that_goes_on_ends(tmp_path: Path, nursery: Nursery) -> None:
    node = nursery.start(_order(tmp_path))
    node.join(0.0)
    assert (node.exitcode, node.is_alive()) == (None, True)


def test_nodes_end_with_it_stopped_ones_too(tmp_path: Path, nursery: Nursery) -> None:
    nodes = [nursery.start(_order(tmp_path)) for _ in range(2)]
    watched = [psutil.Process(node.pid) for node in nodes]
    watched[0].suspend()
    nursery.close()
    until(lambda: not any(process.is_running() for process in watched), "the nodes end")
    for node in nodes:
        node.join()
    assert [node.exitcode for node in nodes] == [-signal.SIGKILL] * 2
    with pytest.raises(HarnessError, match="nursery: "):
        nursery.start(_order(tmp_path))


@pytest.mark.parametrize(("modules", "usable"), [(["threading"], True), ([SLEEPER], False)])
def test_where_an_import_starts_a_thread_nothing_is_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: list[str], usable: bool
) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / f"{SLEEPER}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("harness.cluster.MODULES", modules)
    cluster = Cluster(0, 0, tmp_path / "logs")
    cluster.hasten()
    try:
        assert (cluster.nursery is not None) is usable
        member = cluster.start(Role.REGISTRY, 0)
        assert member.process.is_alive()
    finally:
        cluster.stop(0.0)


def test_what_a_node_imports_starts_no_thread(tmp_path: Path) -> None:
    cluster = Cluster(0, 0, tmp_path / "logs")
    cluster.hasten()
    try:
        assert cluster.nursery is not None
    finally:
        cluster.stop(0.0)
