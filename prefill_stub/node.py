"""I/O shell of a prefill stub: its own memory, one channel to each decode node, and the machine's messages."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from harness import extension
from harness.errors import HandoffError
from harness.faults.catalogue import parse_all
from harness.faults.plan import StateAborts
from harness.faults.writes import Writes
from harness.history.event import Role
from harness.history.threads import thread_to
from harness.node.shell import Address, Shell, Streams
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory, prepare_torch
from harness.protocol.payload import Payload
from harness.protocol.settings import NodeSettings
from harness.transport import registry
from harness.transport.base import Channel, Outcome, RecorderFactory, TransportError, Write
from prefill_stub import mutants
from prefill_stub.fanout import FanOut
from prefill_stub.machine import PrefillMachine


class PrefillNode(Shell):
    """One prefill process; serves one run after the other."""

    machine: PrefillMachine | FanOut | None = None
    _memories: tuple[Memory, ...] = ()
    _machine_kind = PrefillMachine

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Allocate prefill's own buffers and build the machine; sessions come from decode."""
        mutants.clear(self)
        registry.get(settings.transport.name, settings.transport.version)
        self._streams = streams
        self.machine = self._machine_of(settings)
        self._channels: dict[int, Channel] = {}
        self._descriptors: dict[int, bytes] = {}
        writes = Writes(parse_all(settings.faults), settings.seed, streams("main"), self._issue)
        self._writes = writes if writes.any else None
        self._change(settings)
        self.handlers |= {
            wire.Request: self.machine.request,
            wire.RoomExchange: self.machine.exchange,
            wire.Abort: self.machine.abort,
            wire.Cancel: self.machine.cancel,
            wire.Session: self._open_session,
        }
        self._aborts = StateAborts(settings, streams("main"))
        self._ack = settings.planes == "shared"

    def _machine_of(self, settings: NodeSettings) -> PrefillMachine | FanOut:
        """The machine with memory of its own; with a part for each decode rank where it serves several."""
        layout = Layout(settings.prefill_layout)
        ranks = settings.ranks.served(self.index)
        self._memories = tuple(Memory.create(f"handoff-{self.name}", layout.size_bytes) for _ in ranks)
        buffers = [Buffers(memory, layout) for memory in self._memories]
        if len(ranks) == 1:
            record = self._streams("main")
            return self._machine_kind(self.index, settings, buffers[0], Payload(layout), record, time.monotonic_ns)
        records = [self._streams(thread_to("main", rank)) for rank in ranks]
        return FanOut(self.index, settings, buffers, Payload(layout), records, time.monotonic_ns)

    def _change(self, settings: NodeSettings) -> None:
        """Apply mutants and plugins; they know a machine that serves one decode rank."""
        whole = self.machine
        for machine in whole.lanes if isinstance(whole, FanOut) else (whole,):
            self.machine = machine
            mutants.apply(settings.mutants, self)
            extension.apply((*settings.mutants, *settings.guards.own), "prefill", self)
        self.machine = whole

    def _streams_to(self, decode: int) -> RecorderFactory:
        """Where a channel to a decode process records what it does."""
        assert self.settings is not None
        if self.settings.ranks.fan_out == 1:
            return self._streams
        rank = self.settings.ranks.rank(Role.DECODE, decode)
        return lambda thread: self._streams(thread_to(thread, rank))

    def _open_session(self, message: wire.Session) -> None:
        assert self.settings is not None
        assert self.machine is not None
        peer = (int(Role.DECODE), message.decode)
        writer = self.settings.ranks.rank(Role.PREFILL, self.index)
        settings = msgspec.structs.replace(self.settings.transport, writer=writer)
        if self._ack:
            # The control experiment is about the row alone: KV must be there before the row is sent.
            settings = msgspec.structs.replace(settings, ack=True)
        error = ""
        if self._descriptors.get(message.decode) == message.descriptor:
            self.send(peer, wire.SessionAck(self.index))  # asked again: the first answer found nobody
            return
        try:
            old = self._channels.pop(message.decode, None)
            if old is not None:
                old.close()
            transport = registry.get(settings.name, settings.version)
            channel = transport.channel(
                settings, message.descriptor, self.settings.seed, self._streams_to(message.decode)
            )
            self._channels[message.decode] = channel
            self._descriptors[message.decode] = message.descriptor
            self.machine.layouts[message.decode] = Layout(self.settings.decode_layout)
        except (TransportError, HandoffError) as problem:
            error = str(problem)[:500]
        self.send(peer, wire.SessionAck(self.index, error))

    def arm(self, now: float, *, armed: bool) -> None:
        """Those of its messages, and its own."""
        super().arm(now, armed=armed)
        self._aborts.arm(now, armed=armed)
        if self._writes is not None:
            self._writes.arm(now, armed=armed)

    def step(self, now: float) -> int:
        """Carry out the machine's actions, those that come of them too, and collect completions."""
        machine = self.machine
        assert machine is not None
        machine.sweep(now)
        busy = False
        for channel in self._channels.values():
            for sender, ok in channel.completions():
                if self._writes is None or not self._writes.completed(sender):
                    machine.settle(sender, ok=ok)  # type: ignore[arg-type]
            busy = busy or channel.busy
        if not self._plain():
            return min(self._step_with_faults(machine, now), 1 if busy else 50)
        out = machine.out
        at = 0
        while at < len(out):
            peer, action = out[at]
            at += 1
            if type(action) is Write:
                self._write(machine, action)
            elif type(action) is tuple:
                self.send(peer, action[0], action[1])
            else:
                outbox = self.peers.get(peer)
                if outbox is not None:
                    outbox.send(action)
        out.clear()
        return 1 if busy else 50

    def _plain(self) -> bool:
        """Whether messages can go straight into the outboxes."""
        return self._writes is None and not self._aborts.any and self.messages is None

    def _write(self, machine: PrefillMachine | FanOut, write: Write) -> None:
        if machine.may_issue(write.key):  # type: ignore[arg-type]
            machine.wrote(write.key, self._issue(write))  # type: ignore[arg-type]

    def _issue(self, write: Write) -> Outcome:
        channel = self._channels.get(write.decode)
        return Outcome.FAILED if channel is None else channel.write(write)

    def _step_with_faults(self, machine: PrefillMachine | FanOut, now: float) -> int:
        """The same with what the faults do to writes and messages; returns how long to wait, in ms."""
        wait_s = self._flush_writes(machine, now)
        at = 0
        while at < len(machine.out):
            peer, action = machine.out[at]
            at += 1
            if type(action) is Write:
                self._write_with_faults(machine, action, now)
            else:
                message, raw = action if type(action) is tuple else (action, None)
                self._abort_at("sent", peer, message, now)
                self.send(peer, message, raw)
                self._abort_at("status", peer, message, now)
        machine.out.clear()
        if self.messages is not None:
            wait_s = min(wait_s, self.messages.flush(now))
        return math.ceil(wait_s * 1e3)

    def _abort_at(self, state: str, peer: Address, message: wire.Message, now: float) -> None:
        if self._aborts.any and isinstance(message, wire.Status) and self._aborts.picks(state, message.room, now):
            self.send_now(peer, wire.Cancel(message.room))

    def _flush_writes(self, machine: PrefillMachine | FanOut, now: float) -> float:
        if self._writes is None:
            return 0.05
        over, wait_s = self._writes.flush(now)
        for sender, outcome, posted in over:
            if posted:
                machine.settle(sender, ok=outcome is not Outcome.FAILED)  # type: ignore[arg-type]
            else:
                machine.wrote(sender, outcome)  # type: ignore[arg-type]
        return wait_s

    def _write_with_faults(self, machine: PrefillMachine | FanOut, write: Write, now: float) -> None:
        if not machine.may_issue(write.key):  # type: ignore[arg-type]
            return
        if self._aborts.any and self._aborts.picks("writing", write.room, now):
            self.send_now((int(Role.DECODE), write.decode), wire.Cancel(write.room))
        outcome = self._issue(write) if self._writes is None else self._writes.begin(write, now)
        machine.wrote(write.key, outcome)  # type: ignore[arg-type]

    def descriptors(self) -> Iterable[int]:
        """Whatever the channels wait for."""
        if self.settings is None:
            return ()
        return [descriptor for channel in self._channels.values() for descriptor in channel.descriptors()]

    def peer_changed(self, peer: Address, *, alive: bool, dead: bool = False) -> None:
        """A lost decode node takes its channel and rooms with it."""
        del dead
        if alive or peer[0] != Role.DECODE or self.machine is None:
            return
        self._descriptors.pop(peer[1], None)
        channel = self._channels.pop(peer[1], None)
        if channel is not None:
            channel.close()
        if self._writes is not None:
            self._writes.forget(peer[1])
        self.machine.lose_decode(peer[1])

    def held(self) -> dict[int, tuple[int, int, int]]:
        """The machine's census."""
        assert self.machine is not None
        return self.machine.held()

    def finish(self) -> None:
        """Close the channels, then the memory they read from."""
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        self.machine = None
        for memory in self._memories:
            memory.close()
        self._memories = ()


def make(*arguments: Any, **options: Any) -> PrefillNode:
    """Build the node."""
    prepare_torch()
    return PrefillNode(*arguments, **options)
