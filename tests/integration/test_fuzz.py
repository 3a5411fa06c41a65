"""Ten thousand messages that are none, sent to every inbox of a running cluster: they are counted, and nothing else happens."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from harness import scenario as scenarios
from harness.check import Report, check_history
from harness.cluster import Cluster
from harness.driver import Driver
from harness.history.event import Phase, Reason, Resource, Role
from harness.history.recorder import Recorder
from harness.load import Load
from harness.node.entry import cluster_tag
from harness.node.post import FRAME_BYTES_MAX
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.rooms import room_of
from harness.stress import expectations

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
MESSAGES = 10_000
CONNECTIONS = 200
SEED = 20
SCENARIO = scenarios.load(
    None,
    {
        "transport.name": "tcp", "seed": SEED, "workload.arrival": "fixed", "workload.rate_per_s": 300.0, "workload.duration_s": 3600.0,
        "workload.warmup": 100, "workload.concurrency": 64, "engine.slots": 8, "limits.transfer_timeout_s": 30.0,
        "limits.request_timeout_s": 60.0, "limits.min_window": 0, "limits.min_reuse": 2,
    },
)  # fmt: skip
LAYOUT = scenarios.node_settings(SCENARIO, Path()).decode_layout
INBOXES = ("registry", "prefill-0", "decode-0", "driver")
ADDRESSES = {
    "registry": (int(Role.REGISTRY), 0),
    "prefill-0": (int(Role.PREFILL), 0),
    "decode-0": (int(Role.DECODE), 0),
}
STRANGER = 1 << 60
"""A room that nobody has drawn: the load's have bit 62."""

_REGISTER = wire.Register(int(Role.DECODE), 0, 9, 1, "ipc://@nowhere")
VALID: tuple[Any, ...] = (
    wire.Request(STRANGER, 0, 3, 5, 0, 0),
    wire.Session(0, 1, b'{"host": "127.0.0.1", "port": 1, "token": "00"}', 8, 32),
    wire.SessionAck(0, "no"),
    wire.RoomExchange(STRANGER, 0, 0, 1, 1, [0, 1, 2, 3]),
    wire.Status(STRANGER, 4, 0, drained=True),
    wire.Drained(STRANGER, 1),
    wire.Abort(STRANGER, 1, 0),
    wire.AuxData(STRANGER, 1, 1),
    wire.Result(STRANGER, 1, 0, 7),
    _REGISTER,
    wire.Topology([_REGISTER]),
    wire.Configure(msgspec.json.encode(scenarios.node_settings(SCENARIO, Path("/nowhere")))),
    wire.Ready(int(Role.DECODE), 0, "no"),
    wire.Beat(int(Role.DECODE), 0, 9),
    wire.Gone(int(Role.DECODE), 0, 1),
    wire.CensusRequest(3),
    wire.Census(int(Role.DECODE), 0, 3, {1: (1, 2, 3)}),
    wire.Finish(leave=True),
    wire.Finished(int(Role.DECODE), 0),
    wire.Cancel(STRANGER),
    wire.Arm(armed=True),
    wire.Ping("ipc://@nobody-listens-here"),
    wire.Pong(int(Role.DECODE), 0, 1, registered=True, peers=[(int(Role.PREFILL), 0)]),
    wire.Claim(int(Role.DECODE), 9, "ipc://@nobody-listens-here"),
    wire.Claimed(9, 0),
    wire.Rendezvous(0, "127.0.0.1:1"),
)
"""One of each type: with the envelope of this cluster most of them would do harm."""


class Forger:
    """Draws frames that no node of the cluster may take; every one is checked against the codec before it is sent."""

    def __init__(self, envelope: bytes, seed: int) -> None:
        self.envelope = envelope
        self.chance = random.Random(seed)
        self.ways: tuple[Callable[[], list[bytes]], ...] = (
            self.foreign, self.foreign, self.mutated, self.mutated, self.truncated, self.frames_amiss, self.noise, self.wrong_types,
        )  # fmt: skip

    def body(self) -> bytes:
        return wire.encode(self.chance.choice(VALID))

    def foreign(self) -> list[bytes]:
        """A valid message of any type from another cluster, or from one that cannot count."""
        others = (
            wire.envelope(1),
            self.envelope[:-1],
            self.envelope + b"\0",
            b"",
            self.envelope[::-1],
            b"PDH2" + self.envelope[4:],
        )
        return [self.chance.choice(others), self.body(), *[b"row"] * self.chance.randrange(2)]

    def mutated(self) -> list[bytes]:
        body = bytearray(self.body())
        for _ in range(self.chance.randrange(1, 4)):
            body[self.chance.randrange(len(body))] = self.chance.randrange(256)
        envelope = self.chance.choice((self.envelope, self.envelope, wire.envelope(2)))
        return [envelope, bytes(body), *[b"row"] * self.chance.randrange(2)]

    def truncated(self) -> list[bytes]:
        body = self.body()
        return [self.envelope, body[: self.chance.randrange(len(body))]]

    def frames_amiss(self) -> list[bytes]:
        """Too few frames or too many."""
        body = self.body()
        some = (
            [self.envelope],
            [body],
            [b""],
            [body, self.envelope],
            [self.envelope, body, *[b"x"] * self.chance.randrange(2, 9)],
        )
        return self.chance.choice(some)

    def noise(self) -> list[bytes]:
        frames = [self.chance.randbytes(self.chance.randrange(300)) for _ in range(self.chance.randrange(1, 5))]
        return [self.envelope, *frames] if self.chance.random() < 0.5 else frames

    def wrong_types(self) -> list[bytes]:
        """Right tag and envelope; fields missing, of other types or out of their range."""
        message = self.chance.choice(VALID)
        fields = [getattr(message, name) for name in message.__struct_fields__]
        fields[self.chance.randrange(len(fields))] = self.chance.choice(
            (None, -1, 1 << 63, "text", [[]], {"a": 1}, 0.5)
        )
        return [self.envelope, msgspec.msgpack.encode([message.__struct_config__.tag, *fields])]

    def draw(self) -> list[bytes]:
        """The next message; what the codec would take is drawn again."""
        while True:
            frames = self.chance.choice(self.ways)()
            if len(frames) < 2 or frames[0] != self.envelope:
                return frames  # not a matter of the codec's opinion
            try:
                wire.decode(frames, self.envelope)
            except wire.BadMessage:
                return frames


def _large(envelope: bytes) -> Iterator[list[bytes]]:
    """A body beyond its bound, and a frame far beyond it."""
    yield [envelope, wire.encode(wire.Finish(leave=True)) + bytes(wire.BODY_BYTES_MAX)]
    yield [envelope, bytes(24 << 20)]
    yield [envelope] * 2000


def _out_of_range() -> list[tuple[wire.AuxData, bytes]]:
    """Rows for the decode node that name no slot of it, or are no row of it: well-formed, so it is the node that must see it."""
    row = bytes(Layout(LAYOUT).row_bytes)
    slots = (LAYOUT.slots, LAYOUT.slots + 1, (1 << 31) - 1)
    return [(wire.AuxData(STRANGER, slot, 1), row) for slot in slots] + [
        (wire.AuxData(STRANGER, 0, 1), raw) for raw in (b"", row[:-1], row + b"\0")
    ]


def _nonsense() -> Iterator[tuple[str, Any, dict[str, int]]]:
    """(inbox, message, who counts how many late messages for it): all well-formed, about rooms that are unknown or long over."""
    pages = list(range(LAYOUT.pages_per_request))
    for number in range(100):
        room = room_of(SEED, number) if number % 2 else STRANGER + number
        for message in (
            wire.Status(room, number % 5, 0, drained=bool(number % 3)), wire.Drained(room, number), wire.Abort(room, 1, 0),
            wire.RoomExchange(room, 0, 0, 1, 1, pages),
        ):  # fmt: skip
            yield "decode-0", message, {"decode-0": 1}
        yield "prefill-0", wire.Status(room, 4, 0, drained=True), {"prefill-0": 1}
        yield "prefill-0", wire.Drained(room, 1), {"prefill-0": 1}
        yield (
            "prefill-0",
            wire.Abort(room, 1, 0),
            {"decode-0": 1},
        )  # answered with Drained, which nobody waits for
        yield "prefill-0", wire.Abort(room, 1, 77), {}
        yield "registry", wire.Status(room, 4, 0, drained=True), {"registry": 1}
        yield "driver", wire.Drained(room, 1), {}
        yield "driver", wire.Result(STRANGER + number, 1, 0, 7), {}
        yield "driver", wire.Beat(int(Role.DECODE), 50 + number, 1), {}
    for exchange in (
        wire.RoomExchange(STRANGER, 0, 0, LAYOUT.slots, 1, pages),
        wire.RoomExchange(STRANGER, 0, 0, (1 << 31) - 1, 1, pages),
        wire.RoomExchange(STRANGER, 0, 0, 1, 1, [LAYOUT.pages, *pages[1:]]),
        wire.RoomExchange(STRANGER, 0, 0, 1, 1, [(1 << 31) - 1] * len(pages)),
        wire.RoomExchange(STRANGER, 0, 0, 1, 1, pages[1:]),
        wire.RoomExchange(STRANGER, 0, 0, 1, 1, []),
    ):
        yield "prefill-0", exchange, {"decode-0": 1}  # answered with Failed
    yield "prefill-0", wire.RoomExchange(STRANGER, 0, 77, 1, 1, pages), {}


class Attack(threading.Thread):
    """Sends everything from sockets of its own; `bad` and `late` say what each inbox must count in the end."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        super().__init__(name="attack")
        self.cluster, self.port = cluster, port
        self.envelope = wire.envelope(cluster_tag(cluster.name))
        self.bad: Counter[str] = Counter()
        self.late: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            with zmq.Context() as context:
                outboxes = {name: context.socket(zmq.PUSH) for name in INBOXES}
                for name, outbox in outboxes.items():
                    outbox.connect(self.cluster.address(name))
                self.malformed(outboxes)
                self.sensible(outboxes)
                for outbox in outboxes.values():
                    outbox.close(int(DEADLINE_S * 1e3))  # everything is sent before the context ends
                for name in INBOXES:
                    self.too_large(context, self.cluster.address(name))
            self.junk()
        except BaseException as error:  # noqa: BLE001  shown by the test
            self.failure = error
        finally:
            self.ended.set()

    def malformed(self, outboxes: dict[str, zmq.Socket[bytes]]) -> None:
        forger = Forger(self.envelope, SEED)
        for number in range(MESSAGES):
            name = INBOXES[number % len(INBOXES)]
            outboxes[name].send_multipart(forger.draw())
            self.bad[name] += 1
        for name, outbox in outboxes.items():
            for frames in _large(self.envelope):
                outbox.send_multipart(frames)
                self.bad[name] += 1

    def sensible(self, outboxes: dict[str, zmq.Socket[bytes]]) -> None:
        """What the codec takes."""
        for message, raw in _out_of_range():
            outboxes["decode-0"].send_multipart([self.envelope, wire.encode(message), raw])
            self.bad["decode-0"] += 1
        for name, message, late in _nonsense():
            outboxes[name].send_multipart([self.envelope, wire.encode(message)])
            self.late.update(late)

    def too_large(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        """A frame over the socket's own bound: the connection is cut, nothing is counted."""
        outbox = context.socket(zmq.PUSH)
        monitor = outbox.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        outbox.connect(address)
        outbox.send_multipart([self.envelope, bytes(FRAME_BYTES_MAX + 1)], copy=False)
        assert monitor.poll(int(DEADLINE_S * 1e3)), f"{address} took a frame of {FRAME_BYTES_MAX + 1} bytes"
        recv_monitor_message(monitor)
        outbox.disable_monitor()
        outbox.close(0)
        monitor.close(0)

    def junk(self) -> None:
        """Strangers at the tcp data port, each of whom must be counted."""
        chance = random.Random(SEED)
        for number in range(CONNECTIONS):
            with socket.create_connection(("127.0.0.1", self.port), DEADLINE_S) as peer:
                peer.sendall(chance.randbytes(chance.choice((0, 1, 19, 20, 500))))
                if number % 2:
                    with suppress(OSError):  # the target may have shut it out already
                        peer.shutdown(socket.SHUT_WR)
            self.bad["decode-0"] += 1


def _data_port(cluster: Cluster) -> int:
    """Where the decode node listens: an outsider would find it by trying."""
    member = next(member for member in cluster.members if member.role is Role.DECODE)
    listening = [
        link.laddr.port
        for link in psutil.Process(member.process.pid).net_connections("tcp")
        if link.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 1
    return listening[0]


def _ask(driver: Driver) -> dict[str, wire.Census]:
    """The census of every node, the registry's too."""
    driver._serial += 1
    driver._census = {}
    for outbox in (*driver._peers.values(), driver._registry):
        outbox.send(wire.CensusRequest(driver._serial))
    deadline = time.monotonic() + DEADLINE_S
    while not driver._census.keys() >= set(ADDRESSES.values()):
        assert time.monotonic() < deadline, f"only {sorted(driver._census)} answer the census"
        driver._poller.poll(20)
        driver._take(time.monotonic())
        driver._housekeeping(time.monotonic())
    return {name: driver._census[address] for name, address in ADDRESSES.items()}


def _counts(driver: Driver, what: Resource) -> dict[str, int]:
    return {name: census.counts[int(what)][0] for name, census in _ask(driver).items()}


def _all_counted(driver: Driver, attack: Attack) -> dict[str, int]:
    """Wait until every inbox has counted what was sent to it: what it has not read yet it cannot have counted."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        seen = {**_counts(driver, Resource.BAD_MESSAGES), "driver": driver.inbox.bad}
        if all(seen[name] >= attack.bad[name] for name in INBOXES) or time.monotonic() > deadline:
            return seen


def _run(folder: Path) -> tuple[Load, Attack, dict[str, int], dict[str, int], Driver]:
    """Drive a light load from the attack's begin to its end."""
    load = Load(SCENARIO)
    with ExitStack() as stack:
        cluster = Cluster(1, 1, folder / "logs")
        recorder = stack.enter_context(Recorder(folder / "history" / "driver-0.1.main.hist", "driver-0", "main"))
        stack.enter_context(cluster)
        driver = Driver(cluster, recorder)
        stack.callback(driver.close)
        driver.wait_for_nodes(1, 1, DEADLINE_S)
        driver.configure(scenarios.node_settings(SCENARIO, folder / "history"), DEADLINE_S)
        driver.run(load, Phase.WARMUP)
        driver.drain(load, DEADLINE_S)
        driver.census(at_rest=False, timeout_s=DEADLINE_S)
        before = _counts(driver, Resource.LATE_MESSAGES)
        attack = Attack(cluster, _data_port(cluster))
        driver.tick = lambda: load.stop() if attack.ended.is_set() else None
        load.begin(time.monotonic())
        attack.start()
        stack.callback(attack.join)
        driver.run(load, Phase.LOAD)
        driver.drain(load, DEADLINE_S)
        bad = _all_counted(driver, attack)
        after = _counts(driver, Resource.LATE_MESSAGES)
        driver.census(at_rest=True, timeout_s=DEADLINE_S)
        driver.finish(leave=True)
    return load, attack, bad, {name: after[name] - before[name] for name in after}, driver


def test_a_cluster_under_fire_serves_counts_and_stays_clean(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    load, attack, bad, late, driver = _run(tmp_path)
    if attack.failure is not None:
        raise attack.failure
    assert driver.lost == []
    assert sum(attack.bad.values()) > MESSAGES
    assert bad == dict(attack.bad)
    assert late == {
        "registry": attack.late["registry"],
        "prefill-0": attack.late["prefill-0"],
        "decode-0": attack.late["decode-0"],
    }
    assert +load.ended == {Reason.NONE: load.issued}
    assert load.issued > 100, "nothing was served during the attack"
    assert not (tmp_path / "nowhere").exists()
    report: Report = check_history(tmp_path / "history", expectations(SCENARIO))
    assert report.verdict == "valid", report.to_dict()
    logs = "".join(log.read_text() for log in (tmp_path / "logs").iterdir())
    assert "Traceback" not in logs, logs[-2000:]


def test_the_forger_covers_every_type_and_nothing_it_draws_would_be_taken() -> None:
    assert {type(message) for message in VALID} == set(wire.Message.__args__)
    envelope = wire.envelope(77)
    forger = Forger(envelope, 1)
    drawn = [forger.draw() for _ in range(2000)]
    assert sum(frames[0] == envelope for frames in drawn) > 800
    assert {len(frames) for frames in drawn} >= {1, 2, 3, 5}
    again = Forger(envelope, 1)
    assert [again.draw() for _ in range(50)] == drawn[:50]
