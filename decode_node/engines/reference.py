"""The reference decode engine: SGLang's decode side of the hand-off with every guard switchable.

Sans-I/O: no socket, clock or sleep. It reads its own memory, which is what a poll is.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import numpy as np

from decode_node.engine import Action
from decode_node.engines.handoff import Handoff
from decode_node.fanin import FanIn
from harness.history.event import HIDDEN_MASK, Finding, Reason, Resource, Role, Verb, Wants
from harness.history.recorder import Observer
from harness.protocol import wire
from harness.protocol.layout import DIGEST_WORD, KV_DIGEST_WORD, ROOM_WORD, TENURE_WORD
from harness.protocol.memory import Buffers, Words
from harness.protocol.payload import Payload, field_mask
from harness.protocol.ranks import shard
from harness.protocol.recent import keep_last
from harness.protocol.rooms import NO_ROOM, is_room
from harness.protocol.settings import NodeSettings
from harness.protocol.slots import Pool
from harness.transport.base import Ownership

FAILED, SUCCESS = 0, 4
_DRIVER = (int(Role.DRIVER), 0)
_U32 = 0xFFFFFFFF
_COMMIT, _ALLOC, _STATUS, _FREE = int(Verb.COMMIT), int(Verb.ALLOC), int(Verb.STATUS), int(Verb.FREE)
_PREFILL = int(Role.PREFILL)
ENDED_MAX = 16_384
"""Rooms that ended, remembered."""
REPEAT_S = 0.25
"""How long an abort may stay unanswered before it is sent again."""


class ReferenceEngine:
    """See the module. `owners` is shared with the transport's target; `refuses` says whether that target can refuse a write."""

    def __init__(
        self, index: int, settings: NodeSettings, buffers: Buffers, payload: Payload, owners: Ownership,
        record: Observer, *, refuses: bool,
    ) -> None:  # fmt: skip
        """All slots free, nothing open."""
        self.index = index
        self.settings = settings
        self.guards = settings.guards
        self.buffers = buffers
        self.payload = payload
        self.owners = owners
        self.record = record
        self.out: list[Action] = []
        spec = settings.decode_layout
        self.slots = Pool(spec.slots, settings.slot_policy, settings.seed)
        self.pages = Pool(spec.pages, settings.page_policy, settings.seed)
        self._pages_per_request = spec.pages_per_request
        self._tenures = [0] * spec.slots
        self.open: dict[int, Handoff] = {}
        self.ready: dict[int, Handoff] = {}
        self.waiting: deque[Handoff] = deque()
        self.holding: dict[int, Handoff] = {}
        self._using: deque[tuple[float, Handoff]] = deque()
        self._ended: OrderedDict[int, int] = OrderedDict()
        """Room to request index of what has ended, in order of their ends."""
        self._absent: set[int] = set()
        self._ranks = settings.ranks
        self._rank = self._ranks.rank(Role.DECODE, index)
        self._ranked = not settings.ranks.single
        self._now = 0.0
        self._next_sweep = 0.0
        self.late_messages = 0
        self._observe = settings.record
        guards = self.guards
        self._audit_kv = settings.record and not guards.kv_digest
        # Where the target refuses foreign tenures, nothing of an old one can land any more, drained or not.
        self._safe_without_drain = refuses and guards.tenure_on_writes

    # Admission -------------------------------------------------------------------------------------------------

    def admit(self, request: wire.Request, now: float) -> None:
        """Queue the request (FIFO) and give it a slot as soon as there is one; refuse duplicates and a full queue."""
        self._now = now
        room = request.room
        known = self._index_of(room)
        if known == request.index and self.guards.remember_rooms:
            self.late_messages += 1  # the same request again, not another with its room
            return
        full = len(self.open) >= self.settings.queue_max
        if not is_room(room) or full or (known is not None and self.guards.refuse_duplicate):
            self.out.append((_DRIVER, wire.Result(room, request.index, int(Reason.REJECTED), 0)))
            if full and known is None and self.guards.notify_unadmitted:
                self._tell(request.prefill, wire.Abort(room, 0, self.index))
            return
        handoff = Handoff(request, now + self.settings.request_timeout_s)
        self.open[room] = handoff
        if self._ranked:
            writers = self._ranks.writers(request.prefill, self.index)
            handoff.fan = FanIn(writers, await_all=self.guards.await_all_ranks)
        if not self._absent.isdisjoint(handoff.fan.writers if handoff.fan else (request.prefill,)):
            self._fail(handoff, Reason.PEER_LOST)
            return
        self.waiting.append(handoff)
        self._fill()

    def _index_of(self, room: int) -> int | None:
        """Index of the request that has or, as far as is remembered, had this room."""
        handoff = self.open.get(room) or self.holding.get(room)
        return handoff.index if handoff is not None else self._ended.get(room)

    def cancel(self, room: int, now: float) -> None:
        """The client gave the request up."""
        self._now = now
        handoff = self.open.get(room)
        if handoff is None:
            self.late_messages += 1
            return
        self._fail(handoff, Reason.CANCELLED)
        self._fill()

    def _fill(self) -> None:
        """Give slots and pages to those who wait, in order of arrival."""
        count = self._pages_per_request
        while self.waiting and self.slots.free_count and self.pages.free_count >= count:
            handoff = self.waiting.popleft()
            if self.open.get(handoff.room) is handoff:
                self._allocate(handoff)

    def _allocate(self, handoff: Handoff) -> None:
        slot = handoff.slot = self.slots.take()
        handoff.page_list = self.pages.take_many(self._pages_per_request)
        handoff.pages = np.array(handoff.page_list)
        tenure = handoff.tenure = self._tenures[slot] = self._tenures[slot] + 1
        handoff.deadline = self._now + self.settings.transfer_timeout_s
        self.owners.grant(slot, tenure)
        self.record.event(
            _ALLOC, handoff.room, slot, tenure, value=self.buffers.room_word(slot),
            a=self._pages_per_request, c=handoff.prefill,
        )  # fmt: skip
        where = (slot, tenure, handoff.page_list, self._ranks.fan_out)
        self._tell(handoff.prefill, wire.RoomExchange(handoff.room, handoff.attempt, self.index, *where))

    def _tell(self, prefill: int, message: wire.RoomExchange | wire.Abort) -> None:
        """Send to every rank of a prefill instance that writes to this decode rank."""
        if not self._ranked:
            self.out.append(((_PREFILL, prefill), message))
            return
        self.out += [((_PREFILL, writer), message) for writer in self._ranks.writers(prefill, self.index)]

    # Control messages --------------------------------------------------------------------------------------------

    def deliver(self, message: wire.Status | wire.Drained) -> None:
        """Status and drain notices; what names a room that is gone is counted and ignored."""
        if isinstance(message, wire.Drained):
            self._on_drained(message)
            return
        handoff = self.open.get(message.room)
        if handoff is None or handoff.slot < 0:
            if message.room in self.holding:
                held = self.holding[message.room]
                self._drain_known(held, drained=message.drained and (held.fan is None or held.fan.drain(message.rank)))
            else:
                self.late_messages += 1
            return
        self.record.event(
            _STATUS, handoff.room, handoff.slot, handoff.tenure, code=message.status, flags=message.rank,
            a=int(message.drained),
        )  # fmt: skip
        if handoff.status == FAILED and self.guards.terminal_failed:
            return
        handoff.status = message.status
        handoff.drained = handoff.drained or message.drained  # a notice of its own may have overtaken this
        if handoff.fan is not None:
            handoff.status = handoff.fan.report(message.rank, message.status, drained=message.drained)
            handoff.drained = not handoff.fan.undrained
        if handoff.status in {FAILED, SUCCESS}:
            self.ready[handoff.room] = handoff

    def _on_drained(self, message: wire.Drained) -> None:
        held = self.holding.get(message.room)
        if held is not None and held.tenure == message.tenure:
            self._drain_known(held, drained=held.fan is None or held.fan.drain(message.rank))
            return
        handoff = self.open.get(message.room)
        if handoff is not None and handoff.tenure == message.tenure:
            handoff.drained = handoff.fan is None or handoff.fan.drain(message.rank)
        else:
            self.late_messages += 1

    def _drain_known(self, handoff: Handoff, *, drained: bool) -> None:
        if drained:
            handoff.drained = True
            del self.holding[handoff.room]
            self._release(handoff)
            self._fill()

    def lose_prefill(self, prefill: int, now: float, *, dead: bool) -> None:
        """Fail every open room of a prefill node that is gone.

        If it is dead for certain its writes ended with it, so what was held for them is free; one that only fell silent may write yet.
        """
        self._now = now
        self._absent.add(prefill)
        if dead:
            for handoff in list(self.holding.values()):
                if prefill in (handoff.fan.writers if handoff.fan else (handoff.prefill,)):
                    self._drain_known(handoff, drained=handoff.fan is None or handoff.fan.drain(prefill))
        for handoff in list(self.open.values()):
            if prefill in (handoff.fan.writers if handoff.fan else (handoff.prefill,)):
                handoff.drained = dead
                if handoff.fan is not None:
                    handoff.fan.ask_again(but=(prefill,) if dead else ())
                    handoff.drained = not handoff.fan.undrained
                self._fail(handoff, Reason.PEER_LOST)
        self._fill()

    def gain_prefill(self, prefill: int) -> None:
        """A prefill node is there (again)."""
        self._absent.discard(prefill)

    # Polling -----------------------------------------------------------------------------------------------------

    @property
    def awaiting(self) -> bool:
        """True while a transfer is reported done and not committed, or a row handed out by reference is still to be used."""
        return bool(self.ready or self._using)

    def poll(self, now: float) -> None:
        """Try to commit whatever has a final status; sweep time-outs now and then."""
        self._now = now
        if self.ready:
            for handoff in list(self.ready.values()):
                self._try(handoff)
            if self.waiting:
                self._fill()
        if self._using:
            self._use(now)
        if now >= self._next_sweep:
            self._sweep(now)

    def _try(self, handoff: Handoff) -> None:
        if handoff.status == FAILED:
            self._fail(handoff, Reason.PREFILL_FAILED)
            return
        word = self.buffers.room_word(handoff.slot)
        if word != handoff.room and self.guards.validate_room:
            if word == NO_ROOM:
                self._found(handoff, Finding.EMPTY, word)
            else:
                self._found(handoff, Finding.FOREIGN, word)
                self._fail(handoff, Reason.MISMATCH, word)
            return
        row = self.buffers.read_row(handoff.slot)
        payload, guards = self.payload, self.guards
        if not self._observe and not guards.row_digest:
            self._commit(handoff, row, None, 0)
            return
        sums = payload.sums(row)
        at = payload.room_at
        tail = row[at : at + 4].tolist()
        if guards.row_digest and not self._sealed(handoff, tail, sums):
            self._found(handoff, Finding.TORN, tail[ROOM_WORD])
            return
        digest = 0
        if guards.kv_digest or self._observe:
            digest = payload.kv_digest(self.buffers.kv.take(handoff.pages, axis=1))
            if guards.kv_digest and digest != tail[KV_DIGEST_WORD]:
                self._found(handoff, Finding.KV_MISSING, tail[ROOM_WORD])
                return
        self._commit(handoff, row, sums, digest)

    def _sealed(self, handoff: Handoff, tail: list[int], sums: list[int]) -> bool:
        """True if the row adds up to the digest that it carries, for this room and this tenure."""
        if tail[ROOM_WORD] != handoff.room or tail[TENURE_WORD] != handoff.tenure:
            return False
        wanted = self.payload.row_digest(sums, handoff.room, handoff.tenure, tail[KV_DIGEST_WORD])
        return tail[DIGEST_WORD] == wanted

    def _found(self, handoff: Handoff, finding: Finding, word: int) -> None:
        """Record why the row was not taken, once for each finding."""
        if handoff.finding != finding:
            handoff.finding = finding
            self.record.event(Verb.POLL, handoff.room, handoff.slot, handoff.tenure, code=finding, value=word)

    # Ends --------------------------------------------------------------------------------------------------------

    def _commit(self, handoff: Handoff, row: Words, sums: list[int] | None, kv_digest: int) -> None:
        room, slot, tenure = handoff.room, handoff.slot, handoff.tenure
        token = int(row[0]) & _U32
        consumed = handoff.mask if self.guards.requested_fields_only else field_mask(Wants.LOGPROBS | Wants.HIDDEN)
        if self._observe and sums is not None:
            if self._audit_kv:
                self._audit_pages(handoff)
            word = int(row[self.payload.room_at])
            self.record.row(_COMMIT, room, slot, tenure, consumed, kv_digest >> 32, word, self.payload.tags(sums))
        self._close(handoff)
        self.out.append((_DRIVER, wire.Result(room, handoff.index, 0, token)))
        if not self.guards.copy_row and handoff.wants & Wants.HIDDEN:
            self._using.append((self._now + self.settings.decode_step_ms * 1e-3, handoff))
        self._end(handoff, hold=self.guards.drain_on_commit)

    def _audit_pages(self, handoff: Handoff) -> None:
        """Name the pages that are not this request's. The engine does not look at the result: it has no such guard."""
        pages = self.buffers.kv.take(handoff.pages, axis=1)
        for layer, position, named, whole in self.payload.foreign_pages(
            handoff.room, shard(handoff.attempt, self._rank), pages
        ):
            self.record.event(
                Verb.KV_PAGE, handoff.room, handoff.slot, handoff.tenure, value=named, code=0 if whole else 1,
                a=layer, b=handoff.page_list[position], c=position,
            )  # fmt: skip

    def _fail(self, handoff: Handoff, reason: Reason, word: int = 0) -> None:
        """Abort: tell the driver why, free or hold what the request has."""
        room = handoff.room
        self._close(handoff)
        self.out.append((_DRIVER, wire.Result(room, handoff.index, int(reason), 0)))
        self.record.event(Verb.ABORT, room, handoff.slot, handoff.tenure, code=reason, value=word)
        if handoff.slot < 0:
            if self.guards.notify_unadmitted and (reason != Reason.PEER_LOST or self._ranked):
                self._tell(handoff.prefill, wire.Abort(room, 0, self.index))
            return
        if self.guards.notify_abort:
            self._tell(handoff.prefill, wire.Abort(room, handoff.tenure, self.index))
            # As released engines do: what counts is the answer to the abort, not what the status said before it.
            handoff.drained = handoff.drained and reason == Reason.PEER_LOST
            if handoff.fan is not None and reason != Reason.PEER_LOST:
                handoff.fan.ask_again()
        self._end(handoff, hold=self.guards.drain_on_abort)

    def _close(self, handoff: Handoff) -> None:
        """The request is over, and its room remembered, where that is asked for."""
        self.open.pop(handoff.room, None)
        self.ready.pop(handoff.room, None)
        if self.guards.remember_rooms:
            keep_last(self._ended, handoff.room, handoff.index, ENDED_MAX)

    def _end(self, handoff: Handoff, *, hold: bool) -> None:
        """Release now, or when the writer has drained."""
        if hold and not handoff.drained and not self._safe_without_drain:
            self.record.event(Verb.HOLD, handoff.room, handoff.slot, handoff.tenure)
            handoff.deadline = self._now + self.settings.hold_timeout_s
            handoff.asked = self._now
            self.holding[handoff.room] = handoff
        else:
            self._release(handoff)

    def _release(self, handoff: Handoff) -> None:
        """Clear what is to be cleared, then give slot and pages back."""
        slot = handoff.slot
        self.owners.revoke(slot)
        if self.guards.clear_on_free:
            self.buffers.clear_room(slot)
        self.record.event(_FREE, handoff.room, slot, handoff.tenure, value=self.buffers.room_word(slot))
        self.slots.give(slot)
        self.pages.give_many(handoff.page_list)

    def _use(self, now: float) -> None:
        """A view engine: the request's next decode step reads the row again, wherever it is by now."""
        while self._using and self._using[0][0] <= now:
            _, handoff = self._using.popleft()
            if self._observe:
                row = self.buffers.read_row(handoff.slot)
                tags = self.payload.tags(self.payload.sums(row))
                kept = [tag if HIDDEN_MASK >> bit & 1 else 0 for bit, tag in enumerate(tags)]
                self.record.row(Verb.USE, handoff.room, handoff.slot, handoff.tenure, HIDDEN_MASK, 0, 0, kept)

    def _sweep(self, now: float) -> None:
        """Fail what is over its time, release what was held for too long. Both tables are in order of their deadlines."""
        self._next_sweep = now + 0.05
        for table in (self.open, self.holding):
            for handoff in list(table.values())[:256]:
                if handoff.deadline > now:
                    continue
                if table is self.open:
                    self._fail(handoff, Reason.TIMEOUT)
                elif not self.guards.quarantine:
                    del self.holding[handoff.room]
                    self._release(handoff)
        if self.guards.repeat_abort:
            self._ask_again(now)
        self._fill()

    def _ask_again(self, now: float) -> None:
        """Repeat the abort of what is held for an answer that does not come: either message may have been lost."""
        for handoff in list(self.holding.values())[:256]:
            if now - handoff.asked >= REPEAT_S:
                handoff.asked = now
                self._tell(handoff.prefill, wire.Abort(handoff.room, handoff.tenure, self.index))

    def held(self) -> dict[int, tuple[int, int, int]]:
        """Slots, pages and open rooms."""
        return {
            int(Resource.SLOTS): (self.slots.held_count, self.slots.free_count, self.slots.size),
            int(Resource.PAGES): (self.pages.held_count, self.pages.free_count, self.pages.size),
            int(Resource.ROOMS): (len(self.open) + len(self.holding), 0, 0),
            int(Resource.LATE_MESSAGES): (self.late_messages, 0, 0),
        }
