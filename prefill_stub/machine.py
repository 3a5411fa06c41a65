"""The prefill side of the hand-off. Sans-I/O: messages in, actions out; no socket, clock or sleep.

An action is (peer, message), or (peer, `Write`) for the data plane; the shell answers a write with `wrote`. As in SGLang, prefill takes
its own slot and pages only once both the request and decode's room exchange are there, and works on rows of its own metadata
buffers, so that a field it does not set still holds what its slot's previous owner left.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from harness.history.event import KV_BIT, ROOM_BIT, Resource, Role, Verb
from harness.history.recorder import Observer
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers
from harness.protocol.payload import Payload, field_mask
from harness.protocol.ranks import placeholder, shard
from harness.protocol.recent import keep_last
from harness.protocol.rooms import is_room
from harness.protocol.settings import NodeSettings
from harness.protocol.slots import Pool
from harness.transport.base import Block, Outcome, Write

FAILED, SUCCESS = 0, 4
Action = tuple[tuple[int, int], Any]
_DECODE, _PREFILL = int(Role.DECODE), int(Role.PREFILL)
ALL_FIELDS = (ROOM_BIT << 1) - 1
ROWS_KEPT_MAX = 4096
ENDED_MAX = 16_384
"""Rooms that ended, remembered: what names one comes within far fewer hand-offs, or has been lost."""
_U32 = 0xFFFFFFFF
_SENT, _MADE, _PLACEHOLDER = int(Verb.SENT), int(Verb.MADE), int(Verb.PLACEHOLDER)


def contiguous_runs(pages: list[int]) -> list[tuple[int, int, int]]:
    """(position of the first, first page, count) of each run of neighbouring pages."""
    count = len(pages)
    if pages == list(range(pages[0], pages[0] + count)):
        return [(0, pages[0], count)]
    starts = [at for at in range(count) if not at or pages[at] != pages[at - 1] + 1]
    return [(at, pages[at], end - at) for at, end in zip(starts, [*starts[1:], count], strict=True)]


class Sender:
    """One hand-off as prefill sees it."""

    __slots__ = (
        "aborted", "attempt", "begun", "deadline", "decode", "exchange", "index", "lease", "posted_ns", "prefill", "room", "sent", "token", "wants",
    )  # fmt: skip

    def __init__(self, room: int, deadline: float) -> None:
        """Nothing is known but the room; its other half must come before `deadline`.

        That is the client's bound, not the transfer's: decode may still queue the request for want of a slot.
        """
        self.room = room
        self.deadline = deadline
        self.attempt = self.index = self.prefill = 0
        self.wants: int | None = None
        self.decode = -1
        self.exchange: wire.RoomExchange | None = None
        self.lease = -1
        self.token = 0
        self.posted_ns = 0
        self.begun = self.sent = self.aborted = False


class PrefillMachine:
    """See the module. `layouts[d]` is the layout of decode node d's region, known once its session is open."""

    def __init__(
        self, index: int, settings: NodeSettings, buffers: Buffers, payload: Payload, record: Observer,
        clock_ns: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        """All slots free. `clock_ns` only stamps records."""
        ranks = settings.ranks
        self._stage, self._last = ranks.stage(index), ranks.is_last(index)
        self._next_stage = ranks.next_stage(index)
        self._decode_rank = ranks.served(index)[0]
        self._own_layers = ranks.layers(index, settings.prefill_layout.layers)
        self._share = ranks.share(index, settings.prefill_layout.page_bytes)
        self._whole_pages = ranks.group == 1
        self._leads = self._last and not ranks.part(index)
        """The one rank that makes a decode rank's row, as far as the record goes: what its group writes is the same."""
        self._writes_row = self._leads or not settings.guards.last_stage_aux
        self.index = index
        self.settings = settings
        self.guards = settings.guards
        self.buffers = buffers
        self.payload = payload
        self.record = record
        self.out: list[Action] = []
        self.layouts: dict[int, Layout] = {}
        spec = settings.prefill_layout
        self.leases = Pool(spec.slots, "fifo")
        self.rooms: dict[int, Sender] = {}
        self._waiting: deque[Sender] = deque()
        self._clock_ns = clock_ns
        self._shared = settings.planes == "shared"
        self._observe = settings.record
        self._seal = self.guards.row_digest or self.guards.kv_digest
        self._digest_kv = settings.record or self.guards.kv_digest
        self.late_messages = 0
        self._ended: OrderedDict[int, int] = OrderedDict()
        """Room to the tenure that it had, 0 for none; in order of their ends."""
        self._now = self._next_sweep = 0.0
        self._kv = [self._kv_view(lease) for lease in range(spec.slots)]
        self._layers = [self._layer_views(lease) for lease in range(spec.slots)]
        self._spans = [self._row_spans(lease) for lease in range(spec.slots)]
        self._rows: dict[tuple[int, int, int], list[Block]] = {}

    def _kv_view(self, lease: int) -> Any:
        """Prefill's own pages of one lease: (layers, pages_per_request, page_words)."""
        count = self.settings.prefill_layout.pages_per_request
        return self.buffers.kv[:, lease * count : (lease + 1) * count]

    def _layer_views(self, lease: int) -> list[memoryview]:
        """Bytes of the lease's pages in each layer."""
        spec = self.settings.prefill_layout
        size = spec.pages_per_request * spec.page_bytes
        offsets = self.buffers.layout.page_offsets([lease * spec.pages_per_request])
        return [self.buffers.memory.view[offset : offset + size] for offset in offsets]

    def _row_spans(self, lease: int) -> list[tuple[memoryview, int, int, int]]:
        """Each field of a lease's row: where it is, from and to which byte of a whole row it goes, its bit."""
        views = self.buffers.row_views(lease)
        ends = list(itertools.accumulate(map(len, views)))
        return [(view, end - len(view), end, 1 << bit) for bit, (view, end) in enumerate(zip(views, ends, strict=True))]

    def _kv_blocks(self, layout: Layout, lease: int, pages: list[int]) -> list[Block]:
        """KV of a lease, layer by layer, neighbouring pages in one block, as SGLang groups contiguous indices."""
        size = self.settings.prefill_layout.page_bytes
        runs = contiguous_runs(pages)
        blocks: list[Block] = []
        for layer in self._own_layers:
            base, sources = layout.layer_offsets[layer], self._layers[lease][layer]
            if not self._whole_pages:
                blocks += self._shares(base, sources, pages)
                continue
            for position, page, count in runs:
                blocks.append((base + page * size, sources[position * size : (position + count) * size], KV_BIT))
        return blocks

    def _shares(self, base: int, sources: memoryview, pages: list[int]) -> list[Block]:
        """Its share of each page of a layer, which are never neighbours."""
        size, (first, end) = self.settings.prefill_layout.page_bytes, self._share
        return [
            (base + page * size + first, sources[at * size + first : at * size + end], KV_BIT)
            for at, page in enumerate(pages)
        ]

    def _row_blocks(self, layout: Layout, lease: int, decode: int, slot: int) -> list[Block]:
        """The row's fields in SGLang's order, the room last. Kept for small pools: it is the same for every request."""
        key = (decode, slot, lease)
        blocks = self._rows.get(key)
        if blocks is None:
            data = self.buffers.row_views(lease)
            blocks = [(offset, data[bit], 1 << bit) for bit, offset in enumerate(layout.row_offsets(slot))]
            if len(self._rows) < ROWS_KEPT_MAX:
                self._rows[key] = blocks
        return blocks

    # Messages ----------------------------------------------------------------------------------------------------

    def request(self, message: wire.Request) -> None:
        """The router's half of a room."""
        if not is_room(message.room) or (message.room in self._ended and self.guards.remember_rooms):
            self.late_messages += 1  # decode answers for what is no room
            return
        sender = self.rooms.get(message.room)
        if sender is None:
            sender = self.rooms[message.room] = Sender(message.room, self._now + self.settings.request_timeout_s)
        elif sender.wants is not None:
            self.late_messages += 1  # a second request for a live room: decode answers for it
            return
        sender.wants, sender.attempt, sender.decode = message.wants, message.attempt, message.decode
        sender.index, sender.prefill = message.index, message.prefill
        if sender.exchange is not None:
            self._begin(sender)

    def exchange(self, message: wire.RoomExchange) -> None:
        """Decode's half of a room: where the data shall go."""
        spec = self.settings.decode_layout
        layout = self.layouts.get(message.decode)
        fits = message.slot < spec.slots and len(message.pages) == spec.pages_per_request
        if layout is None or not fits or any(page >= spec.pages for page in message.pages):
            self._status(message.room, message.decode, FAILED)
            return
        if message.room in self._ended:
            self.late_messages += 1
            if self._ended[message.room] != message.tenure and self.guards.notify_failed:
                self._status(message.room, message.decode, FAILED)  # it ended before this came
            return
        sender = self.rooms.get(message.room)
        if sender is None:
            sender = self.rooms[message.room] = Sender(message.room, self._now + self.settings.request_timeout_s)
        elif sender.exchange is not None:
            self.late_messages += 1
            return
        sender.exchange = message
        if sender.wants is not None:
            self._begin(sender)

    def abort(self, message: wire.Abort) -> None:
        """Decode gave the room up: issue nothing more, and answer once nothing is outstanding."""
        sender = self.rooms.get(message.room)
        if sender is not None:
            sender.aborted = True
            if sender.lease >= 0 or sender.sent:
                return  # its write is outstanding: `settle` answers
        self._close(message.room, message.tenure)
        if message.tenure:
            self.out.append(((_DECODE, message.decode), wire.Drained(message.room, message.tenure, self.index)))

    def cancel(self, message: wire.Cancel) -> None:
        """The client gave the room up. A write that was begun goes on: decode, which the client tells too, decides."""
        sender = self.rooms.get(message.room)
        if sender is None or sender.lease >= 0 or sender.sent:
            self.late_messages += 1
        else:
            self._drop(message.room, sender.exchange)

    def _drop(self, room: int, exchange: wire.RoomExchange | None) -> None:
        """End a room of which nothing was written, and say so to whoever waits for it."""
        self._close(room, exchange.tenure if exchange else 0, remember=self.guards.notify_failed)
        if exchange is not None and self.guards.notify_failed:
            self._status(room, exchange.decode, FAILED)

    def _close(self, room: int, tenure: int, *, remember: bool = False) -> None:
        """Forget a room, and remember that it has ended, where that is asked for."""
        self.rooms.pop(room, None)
        if remember or self.guards.remember_rooms:
            keep_last(self._ended, room, tenure, ENDED_MAX)

    def lose_decode(self, decode: int) -> None:
        """A decode node is gone, and its channel closed: forget its rooms and what they hold."""
        for sender in list(self.rooms.values()):
            if sender.decode == decode or (sender.exchange and sender.exchange.decode == decode):
                self._close(sender.room, sender.exchange.tenure if sender.exchange else 0)
                if sender.lease >= 0:
                    self.leases.give(sender.lease)
        self.layouts.pop(decode, None)
        self._next()

    def sweep(self, now: float) -> None:
        """Forget rooms whose other half did not come in time. `now`: monotonic seconds; call it at every step."""
        self._now = now
        if now < self._next_sweep:
            return
        self._next_sweep = now + 0.1
        for sender in list(self.rooms.values())[:1024]:
            if sender.deadline > now:
                break  # in order of arrival
            if not sender.begun:
                self._close(sender.room, sender.exchange.tenure if sender.exchange else 0)

    # The hand-off --------------------------------------------------------------------------------------------------

    def _begin(self, sender: Sender) -> None:
        sender.begun = True
        if self.leases.free_count:
            self._run(sender)
        else:
            self._waiting.append(sender)

    def _run(self, sender: Sender) -> None:
        """Take a slot and pages, make the data, put it on the data plane."""
        exchange = sender.exchange
        assert exchange is not None
        lease = sender.lease = self.leases.take()
        self._make(sender, lease, exchange.tenure)
        layout = self.layouts[exchange.decode]
        blocks = self._kv_blocks(layout, lease, exchange.pages)
        if self._writes_row and not self._shared:  # else the row goes with the status
            blocks += self._row_blocks(layout, lease, exchange.decode, exchange.slot)
        sender.posted_ns = self._clock_ns()
        write = Write(sender.room, exchange.slot, exchange.tenure, exchange.decode, blocks, sender)
        self.out.append(((_DECODE, exchange.decode), write))
        if not self._last:
            self._pass_on(sender)

    def _pass_on(self, sender: Sender) -> None:
        """Have the next stage begin: this one has done its part."""
        assert sender.wants is not None
        request = wire.Request(sender.room, sender.attempt, sender.wants, sender.index, sender.prefill, sender.decode)
        self.out.append(((_PREFILL, self._next_stage), request))

    def _make(self, sender: Sender, lease: int, tenure: int) -> None:
        """Set prefill's own row and pages. What the row must be is recorded as made, not as left in the buffer."""
        payload = self.payload
        assert sender.wants is not None
        mask = field_mask(sender.wants)
        pages = self._kv[lease]
        payload.kv(sender.room, shard(sender.attempt, self._decode_rank), pages)
        if not self._writes_row:
            return
        attempt = sender.attempt if self._last else placeholder(sender.attempt, self._stage)
        row = payload.row(sender.room, attempt, mask)
        sender.token = int(row[0]) & _U32 if self._leads else 0
        sums = payload.sums(row) if self._observe or self._seal else []
        digest = payload.kv_digest(pages) if self._digest_kv else 0
        if self._seal:
            if not self.guards.clear_optional:
                sums = self._sums_as_sent(row, lease, mask)
            payload.seal(row, sums, tenure, digest)
        if self._observe:
            made = self._tags(sender, row, sums)
            if self._leads or not self._last:
                verb = _MADE if self._leads else _PLACEHOLDER
                self.record.row(verb, sender.room, lease, tenure, mask, digest >> 32, sender.room, made)
        self._set_buf(row, lease, mask)

    def _tags(self, _: Sender, row: Any, sums: list[int]) -> list[int]:
        """Nine fingerprints of what the request must get; `sums` are those of `row`, but for fields that it does not use."""
        return self.payload.tags(sums if self.guards.clear_optional or not self._seal else self.payload.sums(row))

    def _sums_as_sent(self, row: Any, lease: int, mask: int) -> list[int]:
        """Sums over the row as it will be sent: fields that are not set keep what the lease's last owner left."""
        old = self.payload.sums(self.buffers.read_row(lease))
        new = self.payload.sums(row)
        return [fresh if mask >> bit & 1 else stale for bit, (fresh, stale) in enumerate(zip(new, old, strict=True))]

    def _set_buf(self, row: Any, lease: int, mask: int) -> None:
        """Write the row into prefill's own buffers; without `clear_optional` unused fields are left as they are."""
        data = memoryview(row).cast("B")
        written = ALL_FIELDS if self.guards.clear_optional else mask | ROOM_BIT
        for view, start, end, bit in self._spans[lease]:
            if written & bit:
                view[:] = data[start:end]

    def may_issue(self, sender: Sender) -> bool:
        """False for a write that must not begin any more: its room was given up while it waited to be carried out. Then it is over."""
        if not sender.aborted or not self.guards.notify_abort:
            return True
        self._finish(sender, FAILED, drained=True)
        return False

    def wrote(self, sender: Sender, outcome: Outcome) -> None:
        """The channel's first answer to a write."""
        if outcome is Outcome.PENDING:
            return
        if outcome is Outcome.FAILED:
            self._finish(sender, FAILED, drained=True)
        else:
            self._finish(sender, SUCCESS, drained=outcome is Outcome.DONE)

    def settle(self, sender: Sender, *, ok: bool) -> None:
        """The channel's last answer: the blocks are visible, or the write failed."""
        if not sender.sent:
            self._finish(sender, SUCCESS if ok else FAILED, drained=True)
            return
        exchange = sender.exchange
        assert exchange is not None
        self._close(sender.room, exchange.tenure)
        if self.guards.drain_on_commit or self.guards.drain_on_abort or sender.aborted:
            self.out.append(((_DECODE, exchange.decode), wire.Drained(sender.room, exchange.tenure, self.index)))

    def _finish(self, sender: Sender, status: int, *, drained: bool) -> None:
        """Send the status, after the row where both share a plane, and give the slot and pages back."""
        exchange = sender.exchange
        assert exchange is not None
        if self._shared and self._writes_row and status == SUCCESS:
            aux = wire.AuxData(sender.room, exchange.slot, exchange.tenure)
            self.out.append(((_DECODE, exchange.decode), (aux, b"".join(self.buffers.row_views(sender.lease)))))
        self.leases.give(sender.lease)
        sender.lease = -1
        sender.sent = True
        if drained:
            self._close(sender.room, exchange.tenure)
        if drained and sender.aborted:
            self.out.append(((_DECODE, exchange.decode), wire.Drained(sender.room, exchange.tenure, self.index)))
        else:
            self._status(sender.room, exchange.decode, status, drained=drained, sender=sender)
        self._next()

    def _next(self) -> None:
        """Serve those who wait for one of prefill's own slots."""
        while self._waiting and self.leases.free_count:
            waiting = self._waiting.popleft()
            if self.rooms.get(waiting.room) is waiting:
                self._run(waiting)

    def _status(
        self, room: int, decode: int, status: int, *, drained: bool = True, sender: Sender | None = None
    ) -> None:
        posted, token = (sender.posted_ns, sender.token) if sender else (0, 0)
        self.record.event(_SENT, room, code=status, flags=int(drained), a=posted, b=token)
        self.out.append(((_DECODE, decode), wire.Status(room, status, self.index, drained)))

    def held(self) -> dict[int, tuple[int, int, int]]:
        """Census: prefill's own slots and open rooms. Its pages go with its slots."""
        return {
            int(Resource.SLOTS): (self.leases.held_count, self.leases.free_count, self.leases.size),
            int(Resource.ROOMS): (len(self.rooms), 0, 0),
            int(Resource.LATE_MESSAGES): (self.late_messages, 0, 0),
        }
