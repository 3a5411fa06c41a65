"""A reference prefill that speaks a released engine's own protocol, for a decode that hosts it: frames, bootstrap server, addresses.

Its machine, its faults and its transport are the reference's. So it can be late, wrong or silent to order, beside a decode that is not ours.
"""

from __future__ import annotations

import msgspec

from harness.errors import HandoffError
from harness.history.event import Role
from harness.hosting.guest import split_layout
from harness.hosting.sglang import frames
from harness.hosting.sglang.bootstrap import Bootstrap
from harness.hosting.sglang.line import Line
from harness.hosting.sglang.meeting import Meeting
from harness.hosting.sglang.speaking import Speaking
from harness.node.shell import Address, Streams
from harness.protocol import wire
from harness.protocol.settings import NodeSettings
from prefill_stub.foreign import ForeignMachine, RemoteLayout
from prefill_stub.machine import PrefillMachine
from prefill_stub.node import PrefillNode

FromDecode = frames.Registration | frames.Destination | frames.Abort
ABORTS_MAX = 16_384
"""Aborts that wait for their answer."""
TENURE = 1
"""SGLang's protocol has none; ours takes 0 for a room that never had a slot."""


class SpeakingPrefillNode(Speaking, PrefillNode):
    """A prefill node; in a run whose decode is hosted alone it speaks the engine's protocol to it."""

    _line: Line[FromDecode] | None = None

    def configure(self, settings: NodeSettings, streams: Streams) -> None:
        """As the reference, on pages split into keys and values, and with the engine's sockets; or just as the reference."""
        speaks = settings.engine.hosts("decode") and not settings.engine.hosts("prefill")
        self._machine_kind = ForeignMachine if speaks else PrefillMachine
        if not speaks:
            super().configure(settings, streams)
            return
        spec = split_layout(settings.prefill_layout).spec
        both = msgspec.structs.replace(
            settings, prefill_layout=spec, decode_layout=split_layout(settings.decode_layout).spec
        )
        super().configure(both, streams)
        assert isinstance(self.machine, ForeignMachine)
        self.machine.cached = {}
        self._meetings: dict[str, tuple[int, Meeting]] = {}
        self._endpoints: dict[int, str] = {}
        self._aborted: dict[int, frames.Abort] = {}
        line: Line[FromDecode] = Line(self.context, frames.to_prefill)
        self._bootstrap = Bootstrap(line.port)
        self._speak(line)

    def _open_session(self, message: wire.Session) -> None:
        """Open the data plane, and say where the bootstrap server is: the engine does the rest."""
        if self._line is None:
            super()._open_session(message)
            return
        try:
            meeting = Meeting.decode(message.descriptor)
        except HandoffError as problem:
            self.send((int(Role.DECODE), message.decode), wire.SessionAck(self.index, str(problem)[:500]))
            return
        super()._open_session(msgspec.structs.replace(message, descriptor=meeting.plane.encode()))
        assert self.machine is not None
        if not isinstance(self.machine.layouts.get(message.decode), RemoteLayout):
            self.machine.layouts.pop(message.decode, None)  # the engine has not registered its memory yet
        if message.decode not in self._channels:
            return
        self._meetings[meeting.endpoint] = (message.decode, meeting)
        self._endpoints[message.decode] = meeting.endpoint
        self.send((int(Role.DECODE), message.decode), wire.Rendezvous(self.index, self._bootstrap.address))

    # What decode says ----------------------------------------------------------------------------------------------

    def _heard(self, message: FromDecode) -> None:
        machine = self.machine
        assert isinstance(machine, ForeignMachine)
        if isinstance(message, frames.Abort):
            self._on_abort(machine, message)
            return
        known = self._meetings.get(f"{message.endpoint}:{message.port}")
        if known is None:
            machine.late_messages += 1
        elif isinstance(message, frames.Registration):
            self._on_registration(machine, message, *known)
        else:
            exchange = wire.RoomExchange(message.room, 0, known[0], message.slot, TENURE, message.pages)
            machine.exchange(exchange)

    def _on_registration(
        self, machine: ForeignMachine, message: frames.Registration, decode: int, meeting: Meeting
    ) -> None:
        machine.cached[decode] = meeting.cached
        try:
            machine.layouts[decode] = RemoteLayout(machine.buffers.layout, meeting, message)
        except HandoffError as problem:
            self.answer(str(problem)[:2000])

    def _on_abort(self, machine: ForeignMachine, message: frames.Abort) -> None:
        """Answer once nothing is outstanding; where the engine leaves no address, it wants no answer."""
        known = self._meetings.get(f"{message.endpoint}:{message.port}")
        if message.port and known is None:
            machine.late_messages += 1
            return
        if known is not None and len(self._aborted) < ABORTS_MAX:
            self._aborted[message.room] = message
        machine.abort(wire.Abort(message.room, TENURE, known[0] if known else 0))

    # What it is told -----------------------------------------------------------------------------------------------

    def send_now(self, peer: Address, message: wire.Message, raw: bytes | None = None) -> None:
        """What is for decode's engine goes in its own frames, all else as ever."""
        if self._line is not None and isinstance(message, wire.Status | wire.Drained):
            self._tell(peer[1], message)
        else:
            super().send_now(peer, message, raw)

    def _tell(self, decode: int, message: wire.Status | wire.Drained) -> None:
        assert self._line is not None
        if isinstance(message, wire.Status):
            endpoint = self._endpoints.get(decode)
            if endpoint is not None:
                self._line.tell(endpoint, frames.Status(message.room, message.status).frames())
            return
        abort = self._aborted.pop(message.room, None)  # nobody else asked whether a write is over
        if abort is not None:
            ack = frames.AbortAck(abort.room, generation=abort.generation)
            self._line.tell(f"{abort.endpoint}:{abort.port}", ack.frames())

    def finish(self) -> None:
        """Close the bootstrap server, too."""
        if self._line is not None:
            self._bootstrap.close()
        super().finish()
