"""I/O shell of a prefill stub: its own memory, one channel to each decode node, and the machine's messages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from harness.errors import HandoffError
from harness.history.event import Role
from harness.node.shell import Address, Shell, Streams
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory, prepare_torch
from harness.protocol.payload import Payload
from harness.protocol.settings import NodeSettings
from harness.transport import registry
from harness.transport.base import Channel, Outcome, TransportError, Write
from prefill_stub.machine import PrefillMachine


class PrefillNode(Shell):
    """One prefill process; serves one run after the other."""

    machine: PrefillMachine | None = None
    _memory: Memory | None = None

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """Allocate prefill's own buffers and build the machine; sessions come from decode."""
        registry.get(settings.transport.name, settings.transport.version)
        layout = Layout(settings.prefill_layout)
        self._memory = Memory.create(f"handoff-{self.name}", layout.size_bytes)
        buffers = Buffers(self._memory, layout)
        self._streams = streams
        self.machine = PrefillMachine(
            self.index, settings, buffers, Payload(layout), streams("main"), time.monotonic_ns
        )
        self.handlers |= {
            wire.Request: self.machine.request,
            wire.RoomExchange: self.machine.exchange,
            wire.Abort: self.machine.abort,
            wire.Session: self._open_session,
        }
        self._channels: dict[int, Channel] = {}
        self._descriptors: dict[int, bytes] = {}
        self._ack = settings.planes == "shared"

    def _open_session(self, message: wire.Session) -> None:
        assert self.settings is not None
        assert self.machine is not None
        peer = (int(Role.DECODE), message.decode)
        settings = self.settings.transport
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
            channel = transport.channel(settings, message.descriptor, self.settings.seed, self._streams)
            self._channels[message.decode] = channel
            self._descriptors[message.decode] = message.descriptor
            self.machine.layouts[message.decode] = Layout(self.settings.decode_layout)
        except (TransportError, HandoffError) as problem:
            error = str(problem)[:500]
        self.send(peer, wire.SessionAck(self.index, error))

    def step(self, now: float) -> int:
        """Carry out the machine's actions, those that come of them too, and collect completions."""
        machine = self.machine
        assert machine is not None
        machine.sweep(now)
        busy = False
        for channel in self._channels.values():
            for sender, ok in channel.completions():
                machine.settle(sender, ok=ok)  # type: ignore[arg-type]
            busy = busy or channel.busy
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

    def _write(self, machine: PrefillMachine, write: Write) -> None:
        if not machine.may_issue(write.key):  # type: ignore[arg-type]
            return
        channel = self._channels.get(write.decode)
        outcome = Outcome.FAILED if channel is None else channel.write(write)
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
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def make(*arguments: Any, **options: Any) -> PrefillNode:
    """Build the node."""
    prepare_torch()
    return PrefillNode(*arguments, **options)
