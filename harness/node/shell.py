"""Base of every node process: register, be configured, serve, answer the census, leave.

A subclass is the node: it owns a sans-I/O core, hands it messages and carries out the actions that the core returns. The shell ends
when it is told to, when its parent dies, and, where it has no parent to watch, when the driver's heartbeat stops.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from harness import extension
from harness.errors import HandoffError
from harness.faults.catalogue import parse_all
from harness.faults.messages import Messages
from harness.faults.queues import Queues
from harness.history.event import Resource, Role
from harness.history.reader import SUFFIX
from harness.history.recorder import NullRecorder, Observer, Recorder
from harness.history.threads import is_main
from harness.node import heap
from harness.node.address import host_of
from harness.node.post import Inbox, Outbox
from harness.node.silence import excuse
from harness.protocol import wire
from harness.protocol.settings import NodeSettings

BEAT_S = 0.25
DRAIN = 16
LOST_S = 5.0
"""A peer whose heartbeat stops for so long is lost. A local peer's end is seen at once, by the driver."""
PART_S = 3.0
"""A node that was started by hand stays so long after the driver's goodbye: whoever watches the processes sees the driver end first,
and a next driver that comes at once finds it."""
HELLO_S = 1.0
"""A registry that was not heard of for so long may be another one, which knows nobody: everybody registers again until it is heard."""
Address = tuple[int, int]
"""(Role, index)."""
DRIVER: Address = (Role.DRIVER, 0)
REGISTRY: Address = (Role.REGISTRY, 0)
Action = tuple[Address, Any]


def _at_host(settings: NodeSettings, host: str) -> NodeSettings:
    """Where a node listens for data is its own affair, not the scenario's."""
    return msgspec.structs.replace(settings, transport=msgspec.structs.replace(settings.transport, host=host))


class Streams:
    """The history streams of one process: one for each thread that records."""

    def __init__(self, folder: Path, process: str, incarnation: int, *, record: bool) -> None:
        """Streams are created when asked for, in `folder`."""
        self._folder, self._process, self._incarnation, self._record = folder, process, incarnation, record
        self._open: dict[str, Recorder] = {}
        self._lock = threading.Lock()

    def __call__(self, thread: str) -> Observer:
        """`main` (and `main@N`, see `harness.history.threads`) is one stream, shared by all that run on the main thread; any other name is a new stream at each call."""
        if not self._record:
            return NullRecorder()
        with self._lock:
            name = thread
            while not is_main(thread) and name in self._open:
                stem, _, number = name.partition("-")
                name = f"{stem}-{int(number or 1) + 1}"
            if name not in self._open:
                path = self._folder / f"{self._process}.{self._incarnation}.{name}{SUFFIX}"
                self._open[name] = Recorder(path, self._process, name, incarnation=self._incarnation)
            return self._open[name]

    def close(self) -> None:
        """Close all; their threads must have ended."""
        for stream in self._open.values():
            stream.close()
        self._open.clear()


class Shell:
    """See the module. `role`, `index`, `incarnation` name the process; `registry` and `inbox` are ZMQ addresses.

    `parent_fd` becomes readable when the parent has died (None: nobody to watch but the driver's heartbeat).
    `data_host` is where peers reach its data connections (None: the inbox's host); `shm_dir` where memory that peers map
    gets a name (None: it has none, and is reached through this process's descriptor, in the same pid namespace only).
    """

    def __init__(
        self, role: Role, index: int, *, registry: str, inbox: str, cluster: int, incarnation: int = 1,
        parent_fd: int | None = None, data_host: str | None = None, shm_dir: Path | None = None,
    ) -> None:  # fmt: skip
        """Bind the inbox and say hello to the registry."""
        self.role, self.index, self.incarnation = role, index, incarnation
        self.name = f"{role.name.lower()}-{index}"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._envelope = wire.envelope(cluster)
        self.inbox = Inbox(self.context, inbox, self._envelope)
        self.data_host = data_host or host_of(self.inbox.address)
        self.shm_dir = shm_dir
        self.registered = False
        """The registry has told everybody of this very process."""
        self.peers: dict[Address, Outbox] = {}
        self._incarnations: dict[Address, int] = {}
        self._seen: dict[Address, float] = {}
        self._dead: dict[Address, int] = {}
        """Peers that died, with their incarnation: an older topology may still name them."""
        self._silent: dict[Address, int] = {}
        """Peers that were given up for want of a heartbeat, with their incarnation: they may be alive all the same."""
        self._registry = Outbox(self.context, registry, self._envelope)
        self._registry_seen = 0.0
        self._poller = zmq.Poller()
        self._poller.register(self.inbox.socket, zmq.POLLIN)
        self._parent_fd = parent_fd
        if parent_fd is not None:
            self._poller.register(parent_fd, zmq.POLLIN)
        self._watched: set[int] = set()
        self._next_beat = 0.0
        self._leaving = False
        self._leave_at = math.inf
        self._answer: wire.Ready | None = None
        self.settings: NodeSettings | None = None
        self.streams: Streams | None = None
        self.late_messages = 0
        self.abrupt = False
        """Somebody else's threads live in this process: it ends without waiting for them."""
        self.handlers: dict[type, Callable[[Any], None]] = {}
        """What the engine of the current run takes; `configure` fills it."""
        self.raw_handlers: dict[type, Callable[[Any, bytes], None]] = {}
        self._own: dict[type, Callable[[Any], None]] = {
            wire.Topology: self._on_topology,
            wire.Configure: self._on_configure,
            wire.Beat: self._on_beat,
            wire.Gone: self._on_gone,
            wire.CensusRequest: self._on_census,
            wire.Finish: self._on_finish,
            wire.Arm: lambda message: self.arm(time.monotonic(), armed=message.armed),
            wire.Ping: self._on_ping,
        }
        self.messages: Messages | None = None
        """Faults of this run's messages; None, and no cost, where there are none."""
        self.queues: Queues | None = None
        """Those that fill a peer's queue; None where there are none."""

    # What a node adds -----------------------------------------------------------------------------------------

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Build the engine for a run; raises HandoffError for settings it cannot serve."""

    def ready(self) -> bool:
        """True once the node can take requests; asked until it says so."""
        return True

    def step(self, now: float) -> int:
        """Let the engine poll and carry out its actions; returns how long to wait for messages, in ms (0: more to do)."""
        del now
        return 100

    def peer_changed(self, peer: Address, *, alive: bool, dead: bool = False) -> None:
        """A peer registered, or is lost: `dead` for certain, or only silent (then it may be called again once that is known)."""

    def finish(self) -> None:
        """End the run: release everything that `configure` made."""

    def held(self) -> dict[int, tuple[int, int, int]]:
        """The engine's part of the census: Resource to (held, free, size)."""
        return {}

    def descriptors(self) -> Iterable[int]:
        """File descriptors whose readability must wake the loop."""
        return ()

    # The loop ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Run until told to leave."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the whole group; the driver decides
        signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            while not self._leaving:
                now = time.monotonic()
                if now >= self._next_beat:
                    self._beat(now)
                # Few at a time: a peer can work on the first answers while the rest is still being worked on here.
                messages = self.inbox.drain(DRAIN)
                for message, raw in messages:
                    handler = self._own.get(type(message)) or self.handlers.get(type(message))
                    if handler is not None:
                        handler(message)
                    elif type(message) in self.raw_handlers:
                        self.raw_handlers[type(message)](message, raw)
                    else:
                        self.late_messages += 1
                if self.queues is not None:
                    self.queues.step(self.peers, now)
                wait_ms = self.step(now) if self.settings is not None else 100
                if not messages and wait_ms:
                    self._wait(wait_ms)
        finally:
            self._close()

    def _wait(self, wait_ms: int) -> None:
        watched = set(self.descriptors())
        for descriptor in watched - self._watched:
            self._poller.register(descriptor, zmq.POLLIN)
        for descriptor in self._watched - watched:
            self._poller.unregister(descriptor)
        self._watched = watched
        for ready, _ in self._poller.poll(wait_ms):
            if ready == self._parent_fd:
                self._leaving = True

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins and with it the faults of this node, or they heal."""
        if self.messages is not None:
            self.messages.arm(now, armed=armed)
        if self.queues is not None:
            self.queues.arm(now, armed=armed)

    def send(self, peer: Address, message: wire.Message, raw: bytes | None = None) -> None:
        """Send to a peer, or do to the message what a fault says."""
        if self.messages is None:
            self.send_now(peer, message, raw)
        else:
            self.messages.send(peer, message, raw, time.monotonic())

    def send_now(self, peer: Address, message: wire.Message, raw: bytes | None = None) -> None:
        """Send to a peer; one that is not there (any more) loses it."""
        outbox = self.peers.get(peer)
        if outbox is None:
            return
        lost = outbox.lost
        outbox.send(message, raw)
        if self.queues is not None and outbox.lost > lost:
            self.queues.lost(message)

    def _beat(self, now: float) -> None:
        excuse(self._seen, now, now - self._next_beat)
        self._next_beat = now + BEAT_S
        if not self.peers or now - self._registry_seen > HELLO_S:
            self._registry.send(wire.Register(self.role, self.index, self.incarnation, os.getpid(), self.inbox.address))
        beat = wire.Beat(self.role, self.index, self.incarnation)
        for outbox in self.peers.values():
            outbox.send(beat)
        self._registry.send(beat)
        for peer, seen in list(self._seen.items()):
            # A parent is watched as a process: a driver that has nothing to say between two runs is not lost.
            if now - seen > LOST_S and not (peer == DRIVER and self._parent_fd is not None):
                self._silent[peer] = self._incarnations.get(peer, 0)
                self._lose(peer, dead=False)
        if self._parent_died() or now >= self._leave_at:
            self._leaving = True

    def _parent_died(self) -> bool:
        if self._parent_fd is None:
            return False
        return any(ready == self._parent_fd for ready, _ in self._poller.poll(0))

    def _lose(self, peer: Address, *, dead: bool) -> None:
        outbox = self.peers.pop(peer, None)
        self._seen.pop(peer, None)
        self._incarnations.pop(peer, None)
        if outbox is None:
            return
        outbox.close(drop=True)
        if peer == DRIVER:
            self._leaving = True
        elif self.settings is not None:
            self.peer_changed(peer, alive=False, dead=dead)

    # Messages of the shell -----------------------------------------------------------------------------------------

    def _on_topology(self, message: wire.Topology) -> None:
        for node in message.nodes:
            peer = (node.role, node.index)
            known = self._incarnations.get(peer, self._dead.get(peer, 0))
            if peer == (self.role, self.index):
                self.registered = node.inbox == self.inbox.address
                continue
            if node.incarnation <= known:
                continue
            if peer in self._incarnations and peer == DRIVER:
                self._forget_driver()
            elif peer in self._incarnations:
                self._lose(peer, dead=True)
            silent = self._silent.pop(peer, node.incarnation)
            if silent < node.incarnation and self.settings is not None:
                self.peer_changed(peer, alive=False, dead=True)
            try:
                self.peers[peer] = Outbox(self.context, node.inbox, self._envelope)
            except zmq.ZMQError:
                self.inbox.bad += 1  # an address that is none
                continue
            self._incarnations[peer] = node.incarnation
            self._seen[peer] = time.monotonic()
            if self.settings is not None:
                self.peer_changed(peer, alive=True)
            if peer == DRIVER and self._answer is not None:
                self.send(DRIVER, self._answer)  # the driver's order was here before the driver's address

    def _forget_driver(self) -> None:
        """It has ended and left this node to the next one, or the next one is here already."""
        self.peers.pop(DRIVER).close(drop=True)
        del self._seen[DRIVER], self._incarnations[DRIVER]
        self.finish_run()
        self._answer = None
        self._leave_at = math.inf

    def _on_beat(self, message: wire.Beat) -> None:
        peer = (message.role, message.index)
        if peer == REGISTRY:
            self._registry_seen = time.monotonic()
        elif self._incarnations.get(peer) == message.incarnation:
            self._seen[peer] = time.monotonic()

    def _on_gone(self, message: wire.Gone) -> None:
        peer = (message.role, message.index)
        if peer != DRIVER:  # the next driver begins at 1 again
            self._dead[peer] = max(message.incarnation, self._dead.get(peer, 0))
        if self._incarnations.get(peer) == message.incarnation:
            if peer == DRIVER:
                self._forget_driver()
            else:
                self._lose(peer, dead=True)
        elif self._silent.get(peer) == message.incarnation:
            del self._silent[peer]
            if self.settings is not None:
                self.peer_changed(peer, alive=False, dead=True)

    def _on_configure(self, message: wire.Configure) -> None:
        if self.settings is not None:
            self.finish_run()
        error = ""
        try:
            settings = _at_host(msgspec.json.decode(message.settings, type=NodeSettings), self.data_host)
            extension.use(settings.plugins)
            streams = Streams(Path(settings.history_dir), self.name, self.incarnation, record=settings.record)
            messages = Messages(parse_all(settings.faults), settings.seed, streams("main"), self.send_now)
            queues = self._queues(settings, streams("main"))
            self.configure(settings, streams)
            self.queues = queues if queues.any else None
            self.messages = messages if messages.any or queues.any else None
            self.settings, self.streams = settings, streams
        except (HandoffError, msgspec.MsgspecError, OSError, RuntimeError) as problem:
            error = f"{type(problem).__name__}: {problem}"[:2000]
        heap.freeze()
        self._answer = None
        if error:
            self.answer(error)
        else:
            self.announce()

    def _queues(self, settings: NodeSettings, record: Observer) -> Queues:
        filler = wire.Beat(self.role, self.index, self.incarnation)
        counts = {int(Role.PREFILL): settings.prefills, int(Role.DECODE): settings.decodes}
        leaders = {role: range(0, count, settings.ranks.count(role)) for role, count in counts.items()}
        return Queues(parse_all(settings.faults), settings.seed, record, filler, leaders)

    def announce(self) -> None:
        """Tell the driver that this node can take requests, once it can; nodes call it when that changes."""
        if self.settings is not None and self.ready():
            self.answer("")

    def answer(self, error: str) -> None:
        """Tell the driver that this node is ready, or why it will not be."""
        self._answer = wire.Ready(self.role, self.index, error)
        self.send(DRIVER, self._answer)

    def _on_census(self, message: wire.CensusRequest) -> None:
        own = {
            int(Resource.THREADS): (threading.active_count(), 0, 0),
            int(Resource.DESCRIPTORS): (sum(1 for _ in Path("/proc/self/fd").iterdir()), 0, 0),
            int(Resource.BAD_MESSAGES): (self.inbox.bad, 0, 0),
            int(Resource.LATE_MESSAGES): (self.late_messages, 0, 0),
            int(Resource.RSS_KIB): (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0, 0),
        }
        engine = self.held() if self.settings is not None else {}
        for what, (held, _, _) in own.items():
            if what in engine:
                engine[what] = (engine[what][0] + held, 0, 0)
        self.send(DRIVER, wire.Census(self.role, self.index, message.serial, {**own, **engine}))

    def _on_finish(self, message: wire.Finish) -> None:
        self.finish_run()
        self.send(DRIVER, wire.Finished(self.role, self.index))
        if message.leave:
            self._leaving = self._parent_fd is not None
            self._leave_at = time.monotonic() + PART_S

    def _on_ping(self, message: wire.Ping) -> None:
        peers = [(int(role), index) for role, index in self.known()]
        self.reply(message.reply_to, wire.Pong(self.role, self.index, self.incarnation, self.registered, peers))

    def known(self) -> Iterable[Address]:
        """Whom this process knows."""
        return list(self.peers)

    def reply(self, address: str, message: wire.Message) -> None:
        """Send one message to somebody who is no peer."""
        try:
            outbox = Outbox(self.context, address, self._envelope)
        except zmq.ZMQError:
            self.inbox.bad += 1  # an address that is none
            return
        outbox.send(message)
        outbox.close()

    def finish_run(self) -> None:
        """End the run if there is one: engine first, then its streams."""
        if self.settings is None:
            return
        self.settings = self.messages = self.queues = None
        self.handlers.clear()
        self.raw_handlers.clear()
        self.finish()
        if self.streams is not None:
            self.streams.close()
            self.streams = None

    def _on_sigterm(self, *_: object) -> None:
        self._leaving = True

    def _close(self) -> None:
        with contextlib.suppress(HandoffError, OSError):
            self.finish_run()
        for outbox in self.peers.values():
            outbox.close()
        self._registry.close(drop=True)
        self.inbox.close()
        self.context.term()
