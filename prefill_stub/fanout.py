"""One prefill rank that serves several decode ranks of each instance (decode's TP above prefill's). Sans-I/O.

As in SGLang, a room begins once the transfer infos of `required_dst_info_num` different decode ranks are there, and each rank's part is then written to
where that rank said. What comes after the beginning is each destination's own: slot, pages, tenure, write, status, abort and drain notice. So a
destination is a `PrefillMachine` of its own, and what they have in common is when they begin, or that they cannot any more.

In a released engine a room has one slot of prefill's own, and Success goes out when every rank's part was sent. Here each part has a slot of its own and
is reported by itself: the MIN over decode's ranks makes of it what it makes of the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from harness.history.event import Role
from harness.history.recorder import Observer
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers
from harness.protocol.payload import Payload
from harness.protocol.recent import keep_last
from harness.protocol.settings import NodeSettings
from harness.transport.base import Outcome
from prefill_stub.machine import ENDED_MAX, FAILED, Action, PrefillMachine, Sender


class Lane(PrefillMachine):
    """What prefill does for one of the decode ranks that it serves; `together` says when."""

    def __init__(
        self, together: FanOut, decode_rank: int, index: int, settings: NodeSettings, buffers: Buffers, payload: Payload,
        record: Observer, clock_ns: Callable[[], int],
    ) -> None:  # fmt: skip
        """As a machine; the first rank's has the next stage begin."""
        super().__init__(index, settings, buffers, payload, record, clock_ns)
        self._together, self._decode_rank = together, decode_rank
        self._passes_on = not together.lanes

    def exchange(self, message: wire.RoomExchange) -> None:
        """As a machine; a decode that counts on another number of ranks is told at once that this cannot work."""
        if message.required_dst_info_num != self.settings.ranks.fan_out:
            self._status(message.room, message.decode, FAILED)
            return
        self._together.heard(message.room)
        super().exchange(message)

    def begin(self, sender: Sender) -> None:
        """Everything is there for every destination."""
        super()._begin(sender)

    def _begin(self, sender: Sender) -> None:
        """Everything is there for this destination."""
        self._together.gather(sender.room)

    def ready(self, room: int) -> Sender | None:
        """Its part of a room of which both halves are there, and which has not begun."""
        sender = self.rooms.get(room)
        complete = sender is not None and sender.exchange is not None and sender.wants is not None and not sender.begun
        return sender if complete else None

    def unbegun(self, room: int) -> bool:
        """Whether its part of the room has not begun; what is over and remembered has."""
        sender = self.rooms.get(room)
        return not sender.begun if sender is not None else room not in self._ended

    def drop(self, room: int) -> None:
        """Another destination is gone before all were there."""
        if self.unbegun(room):
            sender = self.rooms.get(room)
            self._drop(room, sender.exchange if sender is not None else None)

    def rooms_of(self, decode: int) -> list[int]:
        """Rooms that this decode process has asked for."""
        return [room for room, sender in self.rooms.items() if sender.exchange and sender.exchange.decode == decode]

    def _pass_on(self, sender: Sender) -> None:
        if self._passes_on:
            super()._pass_on(sender)


class FanOut:
    """The machine of a prefill process as its node sees it: messages and completions go to the lane of the decode rank that they are about."""

    def __init__(
        self, index: int, settings: NodeSettings, buffers: Sequence[Buffers], payload: Payload, records: Sequence[Observer],
        clock_ns: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        """`buffers` and `records`: one for each decode rank that prefill process `index` serves, in order."""
        self.out: list[Action] = []
        self.layouts: dict[int, Layout] = {}
        self.lanes: list[Lane] = []
        self._ranks = settings.ranks
        self._count_messages = not settings.guards.count_destinations
        self._messages: OrderedDict[int, int] = OrderedDict()
        """Transfer infos by room, counted one by one: a mutant."""
        self._first = self._ranks.served(index)[0]
        for at, rank in enumerate(self._ranks.served(index)):
            lane = Lane(self, rank, index, settings, buffers[at], payload, records[at], clock_ns)
            lane.out, lane.layouts = self.out, self.layouts
            self.lanes.append(lane)

    def _lane(self, decode: int) -> Lane | None:
        """Who serves a decode process; None if that is not served here."""
        at = self._ranks.rank(Role.DECODE, decode) - self._first
        if 0 <= at < len(self.lanes):
            return self.lanes[at]
        self.lanes[0].late_messages += 1
        return None

    # Messages ------------------------------------------------------------------------------------------------------

    def request(self, message: wire.Request) -> None:
        """The router's half of a room, for every destination."""
        for lane in self.lanes:
            lane.request(message)

    def exchange(self, message: wire.RoomExchange) -> None:
        """One decode rank's half of a room."""
        lane = self._lane(message.decode)
        if lane is not None:
            lane.exchange(message)

    def cancel(self, message: wire.Cancel) -> None:
        """The client gave the room up. It can come before the other half of some destinations: none of them begins any more."""
        unbegun = any(message.room in lane.rooms and lane.unbegun(message.room) for lane in self.lanes)
        for lane in self.lanes:
            lane.cancel(message)
        if unbegun:
            self._drop(message.room)

    def abort(self, message: wire.Abort) -> None:
        """One decode rank gave the room up; where it has not begun, it never will, and the others are told."""
        lane = self._lane(message.decode)
        if lane is not None:
            lane.abort(message)
            self._drop(message.room)

    def lose_decode(self, decode: int) -> None:
        """A decode process is gone: so are its rooms, and the others' part of those that have not begun."""
        lane = self._lane(decode)
        if lane is None:
            return
        rooms = lane.rooms_of(decode)
        lane.lose_decode(decode)
        for room in rooms:
            self._drop(room)

    def _drop(self, room: int) -> None:
        """What has not begun of a room never will."""
        for lane in self.lanes:
            lane.drop(room)

    # Beginning -----------------------------------------------------------------------------------------------------

    def heard(self, room: int) -> None:
        """A transfer info has come; only the mutant counts them."""
        if self._count_messages:
            keep_last(self._messages, room, self._messages.get(room, 0) + 1, ENDED_MAX)
            self.gather(room)

    def gather(self, room: int) -> None:
        """Begin, once, if the infos of as many decode ranks are there as this process serves: released engines compare for equality, too."""
        ready = [(lane, sender) for lane in self.lanes if (sender := lane.ready(room)) is not None]
        count = self._messages.get(room, 0) if self._count_messages else len(ready)
        if count == len(self.lanes):
            for lane, sender in ready:
                lane.begin(sender)

    # What the node does with it ------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Forget rooms that lack something for too long."""
        for lane in self.lanes:
            lane.sweep(now)

    def _of(self, sender: Sender) -> Lane:
        assert sender.exchange is not None
        lane = self._lane(sender.exchange.decode)
        assert lane is not None
        return lane

    def may_issue(self, sender: Sender) -> bool:
        """See `PrefillMachine`."""
        return self._of(sender).may_issue(sender)

    def wrote(self, sender: Sender, outcome: Outcome) -> None:
        """See `PrefillMachine`."""
        self._of(sender).wrote(sender, outcome)

    def settle(self, sender: Sender, *, ok: bool) -> None:
        """See `PrefillMachine`."""
        self._of(sender).settle(sender, ok=ok)

    def held(self) -> dict[int, tuple[int, int, int]]:
        """Census: all lanes together."""
        total: dict[int, tuple[int, int, int]] = {}
        for lane in self.lanes:
            for resource, (held, free, size) in lane.held().items():
                before = total.get(resource, (0, 0, 0))
                total[resource] = (before[0] + held, before[1] + free, before[2] + size)
        return total
