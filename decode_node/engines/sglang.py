"""SGLang's decode side, hosted: its KV manager, receivers, transfer queue, buffers and slot allocator, of any release.

Ours are the request object, the queue of requests that wait for a slot, the page allocator and the loop. What happens is recorded where SGLang
calls what it was given; nothing of the hand-off is replaced.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any

import numpy as np
import torch

from decode_node.engine import Action
from decode_node.mixed import Places
from harness.history.event import HIDDEN_MASK, Finding, Reason, Resource, Role, Verb, Wants
from harness.history.recorder import Observer
from harness.hosting.guest import split_layout
from harness.hosting.ports import free_port
from harness.hosting.sglang.observe import watched_allocator, watched_buffers, watched_receiver
from harness.hosting.sglang.release import Release, room_word
from harness.hosting.sglang.request import Request
from harness.hosting.threads import native_since, tasks
from harness.protocol import wire
from harness.protocol.payload import Payload
from harness.protocol.rooms import share
from harness.protocol.settings import NodeSettings
from harness.protocol.slots import Pool

_DRIVER = (int(Role.DRIVER), 0)
FAILED, WAITING, SUCCESS = 0, 2, 4
ABORTED, ABORT_AT = 22, 23
"""Names the draws of whether and when a client gives up."""


class Handoff:
    """One admitted request and what is known of it."""

    def __init__(self, message: wire.Request, request: Request, deadline: float) -> None:
        """Without a receiver and a slot."""
        self.message, self.request, self.deadline = message, request, deadline
        self.room = request.room
        self.receiver: Any = None
        self.slot, self.tenure = -1, 0
        self.status = -1
        self.early = False
        """Its Success came before its row, and that is on record."""
        self.ended = False
        self.cancelled = False
        """Its client gave it up."""


class HostedDecode:
    """A `DecodeEngine`. `addresses` holds where each prefill's bootstrap server is, once that is known."""

    def __init__(self, index: int, settings: NodeSettings, record: Observer, release: Release) -> None:
        """Allocate memory and start the release's manager."""
        self.index, self.settings, self.record, self.release = index, settings, record, release
        self.out: list[Action] = []
        self.addresses: dict[int, str] = {}
        layout = split_layout(settings.decode_layout)
        spec = layout.spec
        utils = release.loaded.utils
        self.payload = Payload(layout)
        self.cached = release.cached_counts(layout)
        self.kv = torch.zeros((spec.layers, spec.pages, layout.page_words), dtype=torch.int64)
        self._kv_words = self.kv.numpy().view(np.uint64)
        self.buffers = release.buffers(spec.slots, layout, watched_buffers(utils.MetadataBuffers))
        self._has_room = hasattr(self.buffers, "bootstrap_room")
        self.slots = watched_allocator(utils.ReqToMetadataIdxAllocator, self._on_free)(spec.slots)
        self.pages = Pool(spec.pages, settings.page_policy, settings.seed)
        self.queue = release.transfer_queue(self.buffers, self.slots, self._on_stream, self._give_back)
        before = tasks()
        self.manager = release.manager("decode", list(self.kv), self.buffers, free_port())
        for task in native_since(before):
            os.setpriority(os.PRIO_PROCESS, task, settings.engine.transfer_nice)
        self._receiver_kind = watched_receiver(release.loaded.find("KVReceiver"), self._on_poll)
        self._resolve = getattr(self.queue, "resolve_deferred_releases", lambda: None)
        self._tenures = [0] * spec.slots
        self.places = Places()
        self._owners: dict[int, Handoff] = {}
        self.open: dict[int, Handoff] = {}
        self.waiting: deque[Handoff] = deque()
        self._using: deque[tuple[float, Handoff]] = deque()
        self._to_abort: list[tuple[float, Handoff]] = []
        self._now = 0.0
        self.late_messages = 0

    # Admission: ours -------------------------------------------------------------------------------------------------

    def admit(self, request: wire.Request, now: float) -> None:
        """Queue the request; refuse duplicates and a full queue."""
        room = request.room
        if room in self.open or len(self.open) >= self.settings.queue_max:
            self.out.append((_DRIVER, wire.Result(room, request.index, int(Reason.REJECTED), 0)))
            return
        host, _, port = self.addresses[request.prefill].partition(":")
        made = Request(room, request.attempt, request.wants, host=host, port=int(port))
        handoff = Handoff(request, made, now + self.settings.request_timeout_s)
        self.open[room] = handoff
        self.waiting.append(handoff)

    def deliver(self, message: wire.Status | wire.Drained) -> None:
        """The release has its own control connection: nothing of ours is for it."""
        del message
        self.late_messages += 1

    def _fill(self) -> None:
        """As SGLang's scheduler: look at all that wait, in order of arrival; those whose sender is ready get slot and pages."""
        for _ in range(len(self.waiting)):
            handoff = self.waiting.popleft()
            if not self._ready(handoff):
                if not handoff.ended:
                    self.waiting.append(handoff)
            elif not self._allocate(handoff):
                self.waiting.append(handoff)

    def _ready(self, handoff: Handoff) -> bool:
        if handoff.receiver is None and handoff.cancelled:
            self._end(handoff, Reason.CANCELLED)
            return False
        if handoff.receiver is None:
            address = self.addresses[handoff.message.prefill]
            handoff.receiver = self.release.receiver(self._receiver_kind, self.manager, address, handoff.room)
            if handoff.receiver is None:
                return False
        status = int(handoff.receiver.poll())
        if status == FAILED or self._now > handoff.deadline:
            failed = Reason.CANCELLED if handoff.cancelled else Reason.PREFILL_FAILED
            self._drop(handoff, failed if status == FAILED else Reason.TIMEOUT)
        return not handoff.ended and status == WAITING

    def _drop(self, handoff: Handoff, reason: Reason) -> None:
        """End a request that has no slot."""
        if reason is Reason.TIMEOUT:
            handoff.receiver.abort()
        with contextlib.suppress(Exception):
            handoff.receiver.failure_exception()  # raises what failed, and forgets the room
        self._end(handoff, reason)

    def _allocate(self, handoff: Handoff) -> bool:
        count = self.settings.decode_layout.pages_per_request
        if self.pages.free_count < count or not self.slots.available_size():
            return False
        slot = handoff.slot = self.slots.alloc()
        handoff.tenure = self._tenures[slot] = self._tenures[slot] + 1
        request = handoff.request
        request.pages, request.metadata_buffer_index = self.pages.take_many(count), slot
        self._owners[slot] = handoff
        self.places.put(handoff.room, slot, handoff.tenure)
        self.record.event(
            Verb.ALLOC, handoff.room, slot, handoff.tenure, value=room_word(self.buffers, slot), a=count,
            c=handoff.message.prefill,
        )  # fmt: skip
        entry = self.release.decode_request(request, handoff.receiver)
        self.release.publish(handoff.receiver, request.pages, slot)
        self.queue.extend([entry])
        settings, room = self.settings, handoff.room
        if share(settings.seed, room, ABORTED) < settings.abort_fraction:
            self._to_abort.append((self._now + share(settings.seed, room, ABORT_AT) * settings.hold_ms * 1e-3, handoff))
        return True

    def cancel(self, room: int, now: float) -> None:
        """The client gave the request up: as SGLang's scheduler does, wherever the request is."""
        del now
        handoff = self.open.get(room)
        if handoff is None:
            self.late_messages += 1
            return
        handoff.cancelled = True
        if handoff.receiver is not None:
            handoff.receiver.abort()

    def _abort(self) -> None:
        """Clients give up: as SGLang's scheduler does for what is in its transfer queue, tell the receiver."""
        due = [handoff for at, handoff in self._to_abort if at <= self._now]
        self._to_abort = [(at, handoff) for at, handoff in self._to_abort if at > self._now]
        for handoff in due:
            if not handoff.ended:
                handoff.cancelled = True
                handoff.receiver.abort()

    # The loop ----------------------------------------------------------------------------------------------------

    @property
    def awaiting(self) -> bool:
        """SGLang's scheduler polls as long as there is a request."""
        return bool(self.open or self._using)

    def poll(self, now: float) -> None:
        """One iteration of a scheduler: admit, let SGLang look at its transfers, resolve what it deferred."""
        self._now = now
        self._fill()
        if self._to_abort:
            self._abort()
        for request in self.queue.pop_transferred():
            self._give_back(request)  # a request that is done with decoding gives its pages back
        self._resolve()
        self._note_early()
        while self._using and self._using[0][0] <= now:
            self._use(self._using.popleft()[1])

    def _note_early(self) -> None:
        """Record once for each request that its Success is known and SGLang waits for its row."""
        for entry in self.queue.queue:
            handoff = self.open.get(entry.req.room)
            if handoff is not None and handoff.status == SUCCESS and not handoff.early:
                handoff.early = True
                word = room_word(self.buffers, handoff.slot)
                self.record.event(Verb.POLL, handoff.room, handoff.slot, handoff.tenure, code=Finding.EMPTY, value=word)

    # What SGLang calls -------------------------------------------------------------------------------------------

    def _on_poll(self, room: int, status: int) -> None:
        """A receiver was polled."""
        handoff = self.open.get(room)
        if handoff is None or handoff.status == status:
            return
        handoff.status = status
        if status in {FAILED, SUCCESS} and handoff.slot >= 0:
            self.record.event(Verb.STATUS, room, handoff.slot, handoff.tenure, code=status)

    def _on_stream(self, requests: list[Request], *_: object, **__: object) -> None:
        """SGLang tells the clients of requests that it aborted."""
        for request in requests:
            handoff = self.open.get(request.room)
            if handoff is not None:
                word = self._word_refused(handoff)
                self._end(handoff, self._reason(handoff, word), word)

    def _reason(self, handoff: Handoff, word: int) -> Reason:
        """Why SGLang gave the request up, from what it had seen: only a time-out is known by its words alone."""
        if handoff.cancelled and handoff.status != SUCCESS:
            return Reason.CANCELLED
        if handoff.status == SUCCESS:
            return Reason.MISMATCH if word not in {0, handoff.room} else Reason.PREFILL_FAILED
        message = str(getattr(handoff.request.finished_reason, "message", ""))
        return Reason.TIMEOUT if "timed out" in message else Reason.PREFILL_FAILED

    def _words_read(self, slot: int) -> tuple[int, int]:
        """The room words before and after SGLang's last read of the slot."""
        before, after = getattr(self.buffers, "words_read", {}).get(slot, (0, 0))
        return int(before), int(after)

    def _word_refused(self, handoff: Handoff) -> int:
        """The room word that SGLang gave the request up for: the first that is another's, as it was before the read, after it or is now.

        Up to 0.5.10 the row is handed out by reference, and the room looked at after that.
        """
        if handoff.slot < 0:
            return 0
        words = (*self._words_read(handoff.slot), room_word(self.buffers, handoff.slot))
        return next((word for word in words if word not in {0, handoff.room}), words[0])

    def _give_back(self, request: Request) -> None:
        """SGLang, or a finished request, releases pages."""
        pages, request.pages = request.pages, []
        self.pages.give_many(pages)

    def _on_free(self, slot: int) -> None:
        """SGLang frees a slot: what it took from it is complete now, and its row is as the next owner will find it."""
        handoff = self._owners.pop(slot, None)
        room = handoff.room if handoff is not None else 0
        if handoff is not None and not handoff.ended and handoff.request.output_ids:
            self._commit(handoff)
        self.record.event(Verb.FREE, room, slot, self._tenures[slot], value=room_word(self.buffers, slot))

    # Ends --------------------------------------------------------------------------------------------------------

    def _commit(self, handoff: Handoff) -> None:
        """SGLang has put the row into the request."""
        request, slot, tenure = handoff.request, handoff.slot, handoff.tenure
        pages = self._kv_words.take(request.pages, axis=1)
        digest = self.payload.kv_digest(pages)
        for layer, position, named, whole in self.payload.foreign_pages(handoff.room, request.attempt, pages):
            self.record.event(
                Verb.KV_PAGE, handoff.room, slot, tenure, value=named, code=0 if whole else 1, a=layer,
                b=request.pages[position], c=position,
            )  # fmt: skip
        word = self._words_read(slot)[0] if self._has_room else handoff.room
        self.record.row(
            Verb.COMMIT, handoff.room, slot, tenure, request.mask, digest >> 32, word, request.tags(self.cached)
        )
        handoff.ended = True
        del self.open[handoff.room]
        self.out.append((_DRIVER, wire.Result(handoff.room, handoff.message.index, 0, request.output_ids[0])))
        if request.wants & Wants.HIDDEN and self._is_view(request.hidden_states_tensor):
            self._using.append((self._now + self.settings.decode_step_ms * 1e-3, handoff))

    def _is_view(self, tensor: torch.Tensor | None) -> bool:
        """Whether SGLang handed out its own buffer instead of a copy."""
        own = self.buffers.output_hidden_states.untyped_storage().data_ptr()
        return tensor is not None and tensor.untyped_storage().data_ptr() == own

    def _use(self, handoff: Handoff) -> None:
        """The request's next decode step reads again what it was handed by reference."""
        tags = handoff.request.tags(self.cached)
        kept = [tag if HIDDEN_MASK >> bit & 1 else 0 for bit, tag in enumerate(tags)]
        self.record.row(Verb.USE, handoff.room, handoff.slot, handoff.tenure, HIDDEN_MASK, 0, 0, kept)

    def _end(self, handoff: Handoff, reason: Reason, word: int = 0) -> None:
        """The request failed."""
        handoff.ended = True
        self.open.pop(handoff.room, None)
        self.record.event(Verb.ABORT, handoff.room, handoff.slot, handoff.tenure, code=reason, value=word)
        self.out.append((_DRIVER, wire.Result(handoff.room, handoff.message.index, int(reason), 0)))

    def gain_prefill(self, prefill: int) -> None:
        """It has a bootstrap server of its own, which is asked at the first request."""

    def lose_prefill(self, prefill: int, now: float, *, dead: bool) -> None:
        """SGLang finds out by itself, from its heartbeats."""
        del prefill, now, dead

    def held(self) -> dict[int, tuple[int, int, int]]:
        """Slots, pages and open rooms."""
        free = self.slots.available_size()
        size = self.settings.decode_layout.slots
        return {
            int(Resource.SLOTS): (size - free, free, size),
            int(Resource.PAGES): (self.pages.held_count, self.pages.free_count, self.pages.size),
            int(Resource.ROOMS): (len(self.open), 0, 0),
            int(Resource.LATE_MESSAGES): (self.late_messages, 0, 0),
        }
