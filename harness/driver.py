"""The driver's I/O: registers with the registry, configures the nodes, sends requests, takes results, watches processes.

It is the router and the client in one: it draws rooms and sends each request to one prefill and one decode node.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from harness.cluster import Cluster, External, Member, log_tail
from harness.errors import HarnessError
from harness.faults.traffic import PROBES
from harness.history.event import Kind, NodeEvent, Phase, Reason, Resource, Role, Verb
from harness.history.recorder import Observer
from harness.load import Load, Open
from harness.nemesis import Nemesis
from harness.node.entry import cluster_tag
from harness.node.post import Inbox, Outbox
from harness.node.shell import BEAT_S, HELLO_S, LOST_S, REGISTRY, Address
from harness.node.silence import STALL_S, excuse
from harness.protocol import wire
from harness.protocol.settings import NodeSettings
from harness.router import ONE_EACH, choose, deliver, serving

_HANDOFF = int(Verb.HANDOFF)
_OK, _FAIL, _INVOKE = int(Kind.OK), int(Kind.FAIL), int(Kind.INVOKE)
GAUGE_S = 0.5
ANSWER_S = 2.0
"""How long a node may take to answer a census."""
NODE_ROLES = (int(Role.PREFILL), int(Role.DECODE))


class Driver:
    """One run's driver. `cluster` is watched where its processes are local; `tick` is called about 20 times a second."""

    def __init__(self, cluster: Cluster | External, record: Observer, tick: Callable[[], None] = lambda: None) -> None:
        """Bind the inbox and register."""
        self.cluster = cluster
        self.record = record
        self.tick = tick
        self.incarnation = int(time.time()) if isinstance(cluster, External) else 1
        """Nodes that others started may have seen a driver before this one; a later one has a higher number."""
        self.context: zmq.Context[Any] = zmq.Context()
        self._envelope = wire.envelope(cluster_tag(cluster.name))
        self.inbox = Inbox(self.context, cluster.address("driver"), self._envelope)
        self._registry = Outbox(self.context, cluster.registry, self._envelope)
        self._poller = zmq.Poller()
        self._poller.register(self.inbox.socket, zmq.POLLIN)
        self.nodes: dict[Address, wire.Register] = {}
        self._peers: dict[Address, Outbox] = {}
        self._seen: dict[Address, float] = {}
        self.ready: dict[Address, str] = {}
        """Nodes that can take requests, or why they cannot."""
        self.settings = b""
        self._census: dict[Address, wire.Census] = {}
        self._finished: set[Address] = set()
        self._serial = 0
        self._next_beat = self._next_hello = 0.0
        self._registry_seen = 0.0
        self._load: Load | None = None
        self._next_gauge = 0.0
        self._gauges: dict[Address, tuple[int, int]] = {}
        self.nemesis: Nemesis | None = None
        """The faults of this run; None, and no cost, where there are none."""
        self.ranks = ONE_EACH
        self.dp_routing = "room"
        self.lost: list[str] = []
        """Nodes that ended or fell silent without being asked to."""

    def begin(self, record: Observer) -> None:
        """A new run: forget what belonged to the last one (and what came since), and record from here on into `record`."""
        self._take(time.monotonic())
        self.record = record
        self._load = self.nemesis = None
        for state in (self.ready, self._census, self._gauges):
            state.clear()
        for node, register in self.nodes.items():
            if node in self._peers:
                self._seen[node] = time.monotonic()
                self._record_up(node, register)

    def _record_up(self, node: Address, register: wire.Register) -> None:
        self.record.event(Verb.NODE, code=NodeEvent.UP, flags=1, value=node[0] << 32 | node[1], b=register.pid)

    # Phases ----------------------------------------------------------------------------------------------------

    def wait_for_nodes(self, prefill: int, decode: int, timeout_s: float) -> None:
        """Wait until every node has registered; raises HarnessError naming those that did not and why."""
        wanted = [(int(Role.PREFILL), i) for i in range(prefill)] + [(int(Role.DECODE), i) for i in range(decode)]
        self._wait(lambda: all(node in self._peers for node in wanted), timeout_s, "register", wanted, self._peers)

    def configure(self, settings: NodeSettings, timeout_s: float) -> None:
        """Configure prefill first, then decode, which asks prefill for sessions; raises HarnessError."""
        blob = self.settings = msgspec.json.encode(settings)
        for role in NODE_ROLES:
            group = [node for node in self._peers if node[0] == role]
            for node in group:
                self._peers[node].send(wire.Configure(blob))
            self._wait(lambda g=group: all(n in self.ready for n in g), timeout_s, "get ready", group, self.ready)  # type: ignore[misc]
            for node in group:
                if self.ready[node]:
                    raise HarnessError(f"{_name(node)}: {self.ready[node]}")

    def send(self, node: Address, message: wire.Message, raw: bytes | None = None) -> None:
        """Send to a node; one that is not there loses it."""
        deliver(self.ranks, self._peers, node, message, raw)

    def workers(self, role: int) -> list[Address]:
        """Instances of a role that can be given requests, by their leaders: all ranks are there."""
        gone = self.nemesis.away if self.nemesis is not None else ()
        return serving(self.ranks, role, (node for node in self._peers if node not in gone))

    def pump(self, wait_s: float) -> float:
        """Take what has come, or wait for it; returns the time, monotonic seconds."""
        now = time.monotonic()
        if not self._take(now):
            self._poller.poll(math.ceil(wait_s * 1e3))
        if now >= self._next_beat:
            self._housekeeping(now)
        return now

    def run(self, load: Load, phase: Phase) -> None:
        """Issue hand-offs until the load is exhausted, and take results meanwhile."""
        self._load = load
        self.record.event(Verb.PHASE, code=phase)
        decodes, prefills = self.workers(Role.DECODE), self.workers(Role.PREFILL)
        if not decodes or not prefills:
            raise HarnessError("no node is left to serve")
        nemesis = self.nemesis if phase is Phase.LOAD else None
        if nemesis is not None:
            nemesis.arm(time.monotonic(), armed=True)
        while not load.exhausted(now := time.monotonic()):
            wait_s = load.wait_s(now)
            if nemesis is not None:
                wait_s = min(wait_s, nemesis.step(now))
                decodes, prefills = self.workers(Role.DECODE), self.workers(Role.PREFILL)
            if not self._take(now) and not self._issue(load, now, prefills, decodes):
                self._poller.poll(math.ceil(wait_s * 1e3))
            if now >= self._next_beat:
                self._housekeeping(now)
            if self.lost:
                return

    def drain(self, load: Load, timeout_s: float) -> None:
        """Wait until nothing is in flight, at most `timeout_s`; what is open then, or whose node died, ends as INFO."""
        self.record.event(Verb.PHASE, code=Phase.DRAIN)
        deadline = time.monotonic() + timeout_s
        while load.open and time.monotonic() < deadline:
            now = self.pump(0.01)
            if self.nemesis is not None:
                self.nemesis.step(now)
        self._give_up(load, Reason.DRIVER_TIMEOUT)

    def abandon(self, load: Load) -> None:
        """The user will not wait: everything open ends as INFO."""
        self._give_up(load, Reason.INTERRUPTED)

    def _give_up(self, load: Load, reason: Reason) -> None:
        self._record_info(load.open.items(), reason)
        load.ended[reason] += len(load.open)
        load.open.clear()

    def _record_info(self, ended: Iterable[tuple[int, Open]], reason: Reason) -> None:
        """Nobody can say what became of these."""
        for room, opened in ended:
            self.record.event(_HANDOFF, room, kind=Kind.INFO, code=reason, b=opened.index)

    def census(self, *, at_rest: bool, timeout_s: float) -> dict[Address, wire.Census]:
        """Ask every node what it holds and record it. At rest it is asked again until nothing is held or time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            # The last question may be asked just before the deadline: its answer counts all the same.
            answers = self._ask_census(max(deadline, time.monotonic() + ANSWER_S))
            held = any(count[0] for answer in answers.values() for what, count in answer.counts.items() if what <= 3)
            if not at_rest or not held or time.monotonic() >= deadline:
                break
        for (role, index), answer in answers.items():
            for what, (held_count, free, size) in answer.counts.items():
                self.record.event(
                    Verb.RESOURCE, code=what, flags=int(at_rest), value=role << 32 | index,
                    a=held_count, b=free, c=size,
                )  # fmt: skip
        if at_rest and len(answers) == len(self._workers()):
            self.record.event(Verb.PHASE, code=Phase.REST)
        return answers

    def finish(self, *, leave: bool, timeout_s: float = 10.0) -> None:
        """Have the nodes close their histories, and end if `leave`."""
        self._finished.clear()
        workers = self._workers()
        for node in workers:
            if leave:
                self._expect_end(node)
            self._peers[node].send(wire.Finish(leave))
        deadline = time.monotonic() + timeout_s
        while not self._finished.issuperset(self._workers()) and time.monotonic() < deadline:
            self._poller.poll(20)
            self._take(time.monotonic())
            self._reap()
        if leave:
            self._expect_end((int(Role.REGISTRY), 0))
            self._registry.send(wire.Finish(leave=True))
        self.record.event(Verb.PHASE, code=Phase.FINISHED)

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Keep the nodes company while the caller does something long: signs of life come from a thread, which owns the sockets until then."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT_S):
                self._send_beats()
                self.inbox.drain()

        thread = threading.Thread(target=beat, name="beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def farewell(self, *, leave: bool) -> None:
        """To nodes that are not this process's own: leave once it has ended, or forget it and wait for the next driver."""
        word = wire.Finish(leave=True) if leave else wire.Gone(Role.DRIVER, 0, self.incarnation)
        for outbox in (*self._peers.values(), self._registry):
            outbox.send(word)

    @property
    def slots_in_use(self) -> tuple[int, int]:
        """(held, all) over the decode nodes, as they last said."""
        gauges = self._gauges.values()
        return sum(held for held, _ in gauges), sum(size for _, size in gauges)

    def close(self) -> None:
        """Close the sockets."""
        for outbox in self._peers.values():
            outbox.close()
        self._registry.close()
        self.inbox.close()
        self.context.term()

    # Inside ------------------------------------------------------------------------------------------------------

    def _workers(self) -> list[Address]:
        return [node for node in self._peers if node[0] in NODE_ROLES]

    def _take(self, now: float) -> int:
        """Handle what has come; returns how many messages."""
        messages = self.inbox.drain()
        event, load = self.record.event, self._load
        for message, _ in messages:
            if type(message) is not wire.Result:
                self._on_control(message, now)
            elif message.index >= PROBES:
                if self.nemesis is not None:
                    self.nemesis.traffic.answered(message.index, message.reason)
            elif load is not None:
                opened = load.finish(message.room, message.reason, now)
                if opened is not None:
                    kind = _FAIL if message.reason else _OK
                    event(_HANDOFF, message.room, kind=kind, code=message.reason, b=opened.index, value=message.token)
        return len(messages)

    def _issue(self, load: Load, now: float, prefills: list[Address], decodes: list[Address]) -> int:
        issued = 0
        open_loop = load.workload.arrival != "closed" and load.warm
        event = self.record.event
        several = self.ranks.prefill_dp > 1 or self.ranks.decode_dp > 1
        if not prefills or not decodes:
            return 0
        while (intended := load.due(now)) is not None:
            room, index, wants = load.issue(now, intended)
            if several:
                prefill, decode = self._choose(load, prefills, decodes, index, room)
            else:
                prefill, decode = prefills[index % len(prefills)], decodes[index % len(decodes)]
            load.open[room].decode = decode[1]
            event(
                _HANDOFF, room, kind=_INVOKE, code=wants, a=int(intended * 1e9) if open_loop else 0, b=index,
                c=prefill[1], d=decode[1],
            )  # fmt: skip
            request = wire.Request(room, 0, wants, index, prefill[1], decode[1])
            if self.nemesis is not None:
                self.nemesis.traffic.issue(request, now)
            else:
                self.send(decode, request)
                self.send(prefill, request)
            issued += 1
        return issued

    def _choose(
        self, load: Load, prefills: list[Address], decodes: list[Address], index: int, room: int
    ) -> tuple[Address, Address]:
        """Where a hand-off goes that is open already, where instances have several DP ranks."""
        # Counted only where it matters: that looks at every open hand-off.
        counts = self.dp_routing == "least-open"
        others = [opened for other, opened in load.open.items() if other != room] if counts else []
        by_prefill = Counter(opened.prefill for opened in others)
        by_decode = Counter(opened.decode for opened in others)
        prefill = choose(self.ranks, self.dp_routing, prefills, index, room, by_prefill)
        load.open[room].prefill = prefill[1]
        return prefill, choose(self.ranks, self.dp_routing, decodes, index, room, by_decode)

    def _send_beats(self) -> None:
        beat = wire.Beat(Role.DRIVER, 0, self.incarnation)
        for outbox in (*self._peers.values(), self._registry):
            outbox.send(beat)

    def _housekeeping(self, now: float) -> None:
        late_s = now - self._next_beat
        if self._load is not None and late_s > STALL_S:
            self.record.event(
                Verb.NODE,
                code=NodeEvent.STALLED,
                flags=1,
                value=int(Role.DRIVER) << 32,
                a=int(late_s * 1e9),
            )
        excuse(self._seen, now, late_s)
        self._next_beat = now + 0.05
        self._send_beats()
        if now >= self._next_hello and now - self._registry_seen > HELLO_S:
            self._next_hello = now + BEAT_S
            self._registry.send(wire.Register(Role.DRIVER, 0, self.incarnation, 0, self.inbox.address))
        if self._load is not None:
            self._record_info(self._load.overdue(now), Reason.DRIVER_TIMEOUT)
        if now >= self._next_gauge:
            self._next_gauge = now + GAUGE_S
            for node, outbox in self._peers.items():
                if node[0] == Role.DECODE:
                    outbox.send(wire.CensusRequest(0))
        self._reap()
        stopped = self.nemesis.processes.stopped if self.nemesis is not None else ()
        for node, seen in list(self._seen.items()):
            if node in stopped:
                self._seen[node] = now
            elif now - seen > LOST_S:
                self._forget(node, NodeEvent.LOST, "no heartbeat", expected=False)
        self.tick()

    def _reap(self) -> None:
        """Record processes that ended; take what they had sent before."""
        for member in self.cluster.ended():
            self._take(time.monotonic())
            node = (int(member.role), member.index)
            why = f"exit {member.exit_code}" + (f": {tail}" if (tail := log_tail(member.log)) else "")
            self._forget(node, NodeEvent.EXIT, why, expected=member.expected, member=member)

    def _forget(
        self, node: Address, event: NodeEvent, why: str, *, expected: bool, member: Member | None = None
    ) -> None:
        status = 0 if member is None else int(member.exit_code or 0) + 2**32
        pid = 0 if member is None else int(member.process.pid or 0)
        self.record.event(
            Verb.NODE, code=event, flags=int(expected), value=node[0] << 32 | node[1], a=status, b=pid
        )  # fmt: skip
        outbox = self._peers.pop(node, None)
        self._seen.pop(node, None)
        if outbox is not None:
            outbox.close(drop=True)
        if node[0] == Role.DECODE and self._load is not None:
            self._record_info(self._load.orphaned(self.ranks.leader(*node)), Reason.NODE_EXIT)
        victim = self.nemesis is not None and node in self.nemesis.away
        if not expected:
            self.lost.append(f"{_name(node)} ({why})")
        if node != REGISTRY and (not expected or victim):
            gone = wire.Gone(node[0], node[1], self.nodes[node].incarnation if node in self.nodes else 1)
            for other in self._peers.values():
                other.send(gone)
            self._registry.send(gone)
        if self.nemesis is not None and victim:
            self.nemesis.ended(node)

    def _expect_end(self, node: Address) -> None:
        for member in self.cluster.members:
            if (int(member.role), member.index) == node:
                member.expected = True

    def _on_control(self, message: wire.Message, now: float) -> None:
        if isinstance(message, wire.Topology):
            self._on_topology(message, now)
            return
        if not isinstance(message, wire.Beat | wire.Ready | wire.Census | wire.Finished):
            return
        node = (message.role, message.index)
        if node == REGISTRY:
            self._registry_seen = now
        elif node in self._seen:
            self._seen[node] = now
        if isinstance(message, wire.Ready):
            self.ready[node] = message.error
        elif isinstance(message, wire.Census):
            if message.serial == self._serial:
                self._census[node] = message
            if message.role == Role.DECODE:
                held, _, size = message.counts.get(int(Resource.SLOTS), (0, 0, 0))
                self._gauges[node] = (held, size)
        elif isinstance(message, wire.Finished):
            self._finished.add(node)

    @property
    def registered(self) -> set[tuple[Address, int]]:
        """Nodes that are there, with their incarnations."""
        return {(node, self.nodes[node].incarnation) for node in self._peers}

    def _on_topology(self, message: wire.Topology, now: float) -> None:
        for register in message.nodes:
            node = (register.role, register.index)
            known = self.nodes.get(node)
            if register.role == Role.DRIVER or (known and known.incarnation >= register.incarnation):
                continue
            try:
                self._peers[node] = Outbox(self.context, register.inbox, self._envelope)
            except zmq.ZMQError:
                self.inbox.bad += 1  # an address that is none
                continue
            self.nodes[node] = register
            self._seen[node] = now
            self._record_up(node, register)
            if self.nemesis is not None:
                self.nemesis.registered(node)
        if self.nemesis is not None:
            self.nemesis.listed(message)

    def _wait(
        self,
        condition: Callable[[], bool],
        timeout_s: float,
        what: str,
        wanted: list[Address],
        have: dict[Address, Any],
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            now = time.monotonic()
            self._poller.poll(20)
            self._take(now)
            if now >= self._next_beat:
                self._housekeeping(now)
            if self.lost:
                raise HarnessError(f"{self.lost[0]} ended while the harness waited for it to {what}")
            if now > deadline:
                missing = ", ".join(_name(node) for node in wanted if node not in have)
                raise HarnessError(f"{missing}: did not {what} within {timeout_s:g} s; see {self.cluster.logs}")

    def _ask_census(self, deadline: float) -> dict[Address, wire.Census]:
        self._serial += 1
        self._census = {}
        for node in self._workers():
            self._peers[node].send(wire.CensusRequest(self._serial))
        while not self._census.keys() >= set(self._workers()) and time.monotonic() < deadline:
            self._poller.poll(20)
            self._take(time.monotonic())
            self._housekeeping(time.monotonic())
        return dict(self._census)


def _name(node: Address) -> str:
    return f"{Role(node[0]).name.lower()}-{node[1]}"
