"""Nodes on addresses of their own, as in containers: auto indices, health, named memory, environment, and who ends first."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from integration.cli import handoff, start, under_load, until

from harness.node import health

pytestmark = pytest.mark.integration
WIDE = "transport.late_fraction=0.05 transport.delay_us=600"


class Placed:
    """A registry, prefill on 127.0.0.4 and up, decode on 127.0.0.2 and up, `each` of them, none told its index."""

    def __init__(self, folder: Path, *, shared: bool, each: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.registry = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.memory = folder / "memory"
        self.memory.mkdir()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._start("registry", "harness.registry", "--inbox", self.registry)
        for host in range(2, 2 + each):
            self._start(f"decode{host}", "decode_node", *self._at(host), "--shm-dir", str(self.memory))
        for host in range(4, 4 + each):
            self._start(f"prefill{host}", "prefill_stub", *self._at(host))
        if shared:
            self._start("shared", "harness.node.shared")

    @staticmethod
    def _at(host: int) -> tuple[str, ...]:
        return "--index", "auto", "--inbox", f"tcp://127.0.0.{host}:*"

    def _start(self, name: str, program: str, *options: str) -> None:
        arguments = [sys.executable, "-m", program, "--registry", self.registry, "--cluster", "placed", *options]
        self.nodes[name] = subprocess.Popen(arguments)

    def address(self, name: str) -> str:
        """The inbox of a node: the first port that it listens on."""
        process = psutil.Process(self.nodes[name].pid)
        listening = until(
            lambda: [c.laddr for c in process.net_connections() if c.status == "LISTEN"], f"{name} listens"
        )
        return f"tcp://{listening[0].ip}:{listening[0].port}"

    def wait_registered(self) -> None:
        for name in self.nodes:
            if name != "shared":
                until(lambda n=name: self.healthy(n), f"{name} is registered")

    def healthy(self, name: str, timeout_s: float = 5.0) -> bool:
        address = self.registry if name == "registry" else self.address(name)
        return health.main(["--inbox", address, "--cluster", "placed", "--timeout", str(timeout_s)]) == 0

    def ended(self) -> bool:
        return all(node.poll() is not None for node in self.nodes.values())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Placed]]:
    """Starts `Placed`, with the environment that its driver needs; ends what is left of it."""
    with contextlib.ExitStack() as stack:

        def build(*, shared: bool = False, each: int = 1) -> Placed:
            placed = Placed(tmp_path, shared=shared, each=each)
            stack.callback(lambda: [(node.kill(), node.wait()) for node in placed.nodes.values()])
            for name, value in {
                "REGISTRY": placed.registry,
                "CLUSTER": "placed",
                "INBOX": "tcp://127.0.0.6:*",
                "SET": WIDE,
            }.items():
                monkeypatch.setenv(f"HANDOFF_{name}", value)
            placed.wait_registered()
            return placed

        yield build  # type: ignore[misc]


def test_nodes_that_share_memory_are_all_driven_and_end_after_the_driver(place: type[Placed], tmp_path: Path) -> None:
    placed = place(shared=True, each=2)
    driver = start(tmp_path / "runs", "stress", "--quiet", "--json", "--requests", "4000")
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 0, err
    assert not any(node.poll() is not None for node in placed.nodes.values()), "a node ended before the driver"
    results = handoff(tmp_path / "runs", "check", str(tmp_path / "runs" / "latest"), "--json").results
    assert (results["verdict"], results["transport"], results["committed"]) == ("valid", "shm", 4200)
    assert {name for name in results["resources"] if name.startswith(("prefill", "decode"))} == {
        "prefill-0", "prefill-1", "decode-0", "decode-1",
    }  # fmt: skip
    assert results["command"].endswith("--set topology.prefill=2 --set topology.decode=2")
    assert list(placed.memory.iterdir()) == []
    until(placed.ended, "the nodes leave")
    assert {node.returncode for node in placed.nodes.values()} == {0}


def test_data_connections_are_where_the_inbox_is(place: type[Placed], tmp_path: Path) -> None:
    placed = place()
    driver = start(tmp_path / "runs", "stress", "--quiet", "--json", "--duration", "60")
    until(lambda: under_load(tmp_path / "runs"), "load")
    found = psutil.Process(placed.nodes["decode2"].pid).net_connections()
    assert [c.laddr.ip for c in found if c.status == "LISTEN"] == ["127.0.0.2"] * 2
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=60)
    assert 'name = "tcp"' in (tmp_path / "runs" / "latest" / "scenario.toml").read_text()


def test_nodes_that_are_to_stay_serve_the_next_driver(place: type[Placed], tmp_path: Path) -> None:
    placed = place(shared=True)
    for transport in ("shm", "tcp"):
        driver = handoff(
            tmp_path / "runs", "stress", "--quiet", "--json", "--requests", "4000", "--transport", transport, "--leave-as",
            "no.such.name.invalid",
        )  # fmt: skip
        assert (driver.code, driver.results["committed"]) == (0, 4200), driver.err
    assert not placed.ended()
    last = handoff(tmp_path / "runs", "stress", "--quiet", "--json", "--requests", "4000")
    assert last.code == 0, last.err
    until(placed.ended, "the nodes leave")


def test_a_killed_decode_leaves_no_name_and_a_crash(place: type[Placed], tmp_path: Path) -> None:
    placed = place(shared=True)
    driver = start(tmp_path / "runs", "stress", "--quiet", "--json", "--duration", "60")
    until(lambda: under_load(tmp_path / "runs"), "load")
    placed.nodes["decode2"].kill()
    out, _ = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert '"crash"' in out
    assert list(placed.memory.iterdir()) == []
    until(placed.ended, "the others leave")


def test_health_finds_a_node_that_hangs_and_answers_to_its_own_cluster_alone(
    place: type[Placed], capsys: pytest.CaptureFixture[str]
) -> None:
    placed = place()
    address = placed.address("decode2")
    process = psutil.Process(placed.nodes["decode2"].pid)
    process.suspend()
    assert health.main(["--inbox", address, "--cluster", "placed", "--timeout", "1"]) == 1
    process.resume()
    assert placed.healthy("decode2", 30)
    capsys.readouterr()
    assert health.main(["--inbox", placed.registry, "--cluster", "other", "--timeout", "0.5"]) == 1
    assert capsys.readouterr().err == f"health: {placed.registry}: no answer within 0.5 s\n"
