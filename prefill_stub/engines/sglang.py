"""SGLang's prefill side, hosted: its bootstrap server, KV manager, senders, buffers and slot allocator, of any release.

Ours are the request object, the forward pass (a function of the room), the pages, which go with the slot, and the loop.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any

import numpy as np
import torch

from harness.history.event import ROOM_BIT, Resource, Verb
from harness.history.recorder import Observer
from harness.hosting.guest import split_layout
from harness.hosting.ports import free_port
from harness.hosting.sglang.answers import LOOPBACK
from harness.hosting.sglang.release import Release
from harness.hosting.sglang.request import Request
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.payload import Payload, Words
from harness.protocol.rooms import share
from harness.protocol.settings import NodeSettings

FAILED, WAITING, SUCCESS = 0, 2, 4
FORWARD = 21
"""Names the draw of a forward pass's length."""


class Sending:
    """One request as prefill sees it."""

    def __init__(self, request: Request, sender: Any) -> None:
        """Without a slot."""
        self.request, self.sender = request, sender
        self.posted_ns = 0


def sent_row(buffers: Any, request: Request, layout: Layout) -> Words:
    """The row of `layout` that `buffers`, the release's, hold for `request`: uint64; fields that it does not use are zero."""
    parts = []
    for bit, field in enumerate(layout.fields):
        tensor: Any = getattr(buffers, field.name, None)
        if tensor is None or not (request.mask | ROOM_BIT) >> bit & 1:
            parts.append(np.zeros(field.row_bytes, np.uint8))
        else:
            parts.append(tensor[request.metadata_buffer_index].view(torch.uint8).numpy())
    return np.concatenate(parts).view(np.uint64)


class HostedPrefill:
    """Messages in, polls; the release talks to decode by itself."""

    def __init__(self, index: int, settings: NodeSettings, record: Observer, release: Release) -> None:
        """Start the bootstrap server and the manager."""
        self.index, self.settings, self.record, self.release = index, settings, record, release
        layout = split_layout(settings.prefill_layout)
        self.layout = layout
        self.payload = Payload(layout)
        self._cached = release.cached_counts(layout)
        size = layout.spec
        self.kv = torch.zeros((size.layers, size.pages, layout.page_words), dtype=torch.int64)
        self._kv_words = self.kv.numpy().view(np.uint64)
        self.buffers = release.buffers(size.slots, layout)
        self.slots = release.loaded.utils.ReqToMetadataIdxAllocator(size.slots)
        port = free_port()
        self._server = release.bootstrap_server(port)
        self.address = f"{LOOPBACK}:{port}"
        self.manager = release.manager("prefill", list(self.kv), self.buffers, port)
        self.rooms: dict[int, Sending] = {}
        self.room_of = [0] * size.slots
        """Who has each slot, or had it last."""
        self.bootstrapping: deque[Sending] = deque()
        self.running: list[tuple[float, Sending]] = []
        self.in_flight: deque[Sending] = deque()
        self.late_messages = 0
        self._next_look = 0.0

    def request(self, message: wire.Request) -> None:
        """A request arrives: its sender is made at once, slot and pages come later, as in SGLang."""
        if message.room in self.rooms:
            self.late_messages += 1
            return
        request = Request(message.room, message.attempt, message.wants, host=LOOPBACK, port=0)
        sending = Sending(request, self.release.sender(self.manager, self.address, message.room))
        self.rooms[message.room] = sending
        self.bootstrapping.append(sending)

    @property
    def busy(self) -> bool:
        """SGLang's scheduler polls as long as there is a request."""
        return bool(self.rooms)

    def poll(self) -> None:
        """One iteration of a scheduler: run what decode waits for, then look at what is in flight."""
        for _ in range(len(self.bootstrapping)):
            sending = self.bootstrapping.popleft()
            status = int(sending.sender.poll())
            if status == FAILED:
                self._end(sending, status)
            elif status != WAITING or not self._run(sending):
                self.bootstrapping.append(sending)
        now = time.monotonic()
        if self.running:
            self._finish_passes(now)
        if now >= self._next_look:
            self._next_look = now + self.settings.decode_step_ms * 1e-3
            self._look()

    def _look(self) -> None:
        """Look at what is in flight; as often as a scheduler comes round, which takes a forward pass each time."""
        for _ in range(len(self.in_flight)):
            sending = self.in_flight.popleft()
            status = int(sending.sender.poll())
            if status in {FAILED, SUCCESS}:
                self._end(sending, status)
            else:
                self.in_flight.append(sending)

    def _run(self, sending: Sending) -> bool:
        """Take a slot, make row and pages, send them; False when there is no slot."""
        if not self.slots.available_size():
            return False
        slot = sending.request.metadata_buffer_index = self.slots.alloc()
        self.room_of[slot] = sending.request.room
        count = self.settings.prefill_layout.pages_per_request
        sending.request.pages = list(range(slot * count, (slot + 1) * count))
        self.release.begin(sending.sender, sending.request.pages, slot)
        length = share(self.settings.seed, sending.request.room, FORWARD) * self.settings.hold_ms * 1e-3
        self.running.append((time.monotonic() + length, sending))
        return True

    def _finish_passes(self, now: float) -> None:
        """Send what the forward passes that are over by `now` have made."""
        over = [sending for due, sending in self.running if due <= now]
        self.running = [(due, sending) for due, sending in self.running if due > now]
        for sending in over:
            self._make(sending, sending.request.metadata_buffer_index)
            sending.posted_ns = time.monotonic_ns()
            self.release.send(sending.sender, sending.request.pages)
            self.in_flight.append(sending)

    def _make(self, sending: Sending, slot: int) -> None:
        """The forward pass: the row goes through SGLang's `set_buf`, the pages straight into the pool."""
        request, payload = sending.request, self.payload
        request.fill(payload.row(request.room, request.attempt, request.mask), self.layout)
        pages = self._kv_words[:, request.pages[0] : request.pages[-1] + 1]
        payload.kv(request.room, request.attempt, pages)
        digest = payload.kv_digest(pages)
        self.buffers.set_buf(request)
        tags = self._tags(request)
        self.record.row(Verb.MADE, request.room, slot, 0, request.mask, digest >> 32, request.room, tags)

    def _tags(self, request: Request) -> list[int]:
        """What the request must get: what a hosted decode takes from the row, or for our own the whole of what is sent."""
        if self.settings.engine.hosts("decode"):
            return request.tags(self._cached)
        return self.payload.tags(self.payload.sums(sent_row(self.buffers, request, self.layout)))

    def _end(self, sending: Sending, status: int) -> None:
        request = sending.request
        token = request.output_ids[0] if request.output_ids else 0
        self.record.event(Verb.SENT, request.room, code=status, a=sending.posted_ns, b=token)
        if status == FAILED:
            with contextlib.suppress(Exception):
                sending.sender.failure_exception()  # raises what failed, and forgets the room
        elif hasattr(sending.sender, "clear"):
            sending.sender.clear()
        del self.rooms[request.room]
        if request.metadata_buffer_index >= 0:
            self.slots.free(request.metadata_buffer_index)

    def held(self) -> dict[int, tuple[int, int, int]]:
        """Census: prefill's own slots and open rooms. Its pages go with its slots."""
        free, size = self.slots.available_size(), self.settings.prefill_layout.slots
        return {
            int(Resource.SLOTS): (size - free, free, size),
            int(Resource.ROOMS): (len(self.rooms), 0, 0),
            int(Resource.LATE_MESSAGES): (self.late_messages, 0, 0),
        }
