"""Both sides of a release's hand-off in one process, over a transfer engine under control: for checks whose order is chosen.

Two prefill managers and one decode manager, all real, with their threads, frames and bootstrap servers; only bytes are moved by us.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from harness.errors import HarnessError
from harness.hosting.mover import Fate, Mover
from harness.hosting.ports import free_port
from harness.hosting.sglang.answers import LOOPBACK
from harness.hosting.sglang.release import Release
from harness.hosting.sglang.request import Request
from harness.hosting.stepped import Looks, stepped_buffers
from harness.hosting.watch import Watch
from harness.protocol.layout import Layout, LayoutSpec
from harness.protocol.payload import Payload

STEP_TIMEOUT_S = 10.0
"""Bound of each wait; a release that does not get on within it fails its check."""
SLOTS = 9
"""One for each case, so that cases do not meet."""
LAYOUT = Layout(LayoutSpec(slots=SLOTS, pages=SLOTS, layers=2, page_bytes=64, pages_per_request=1))
PAYLOAD = Payload(LAYOUT)


class Stuck(HarnessError):
    """The release did not get to where a check needs it."""


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = STEP_TIMEOUT_S) -> Any:
    """Poll `condition` until it is true and return its value; raises Stuck, naming `what`, after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Stuck(f"no {what} within {timeout_s:g} s")
        time.sleep(0.001)
    return value


class Side:
    """Memory of one side: the release's metadata buffers and (pages, words) tensors, keys and values of one layer."""

    def __init__(self, release: Release, kind: type | None = None) -> None:
        """All zero; `kind`: a subclass of the release's buffers."""
        self.buffers = release.buffers(SLOTS, LAYOUT, kind)
        words = LAYOUT.page_words
        self.kv = [torch.zeros((SLOTS, words), dtype=torch.int64) for _ in range(2)]

    def parts(self) -> list[tuple[int, int, str]]:
        """(first address, size, part) of everything: `kv`, `row`, or `room` for the row's last field."""
        pointers, lengths, _ = self.buffers.get_buf_infos()
        names = ["row"] * (len(pointers) - 1) + ["room" if hasattr(self.buffers, "bootstrap_room") else "row"]
        found = list(zip(pointers, lengths, names, strict=True))
        return found + [(tensor.data_ptr(), tensor.nbytes, "kv") for tensor in self.kv]


class Handoff:
    """One request on both sides."""

    def __init__(self, request: Request, receiver: Any, sender: Any) -> None:
        """Bootstrapped, without a slot."""
        self.request, self.receiver, self.sender = request, receiver, sender
        self.entry: Any = None

    @property
    def outcome(self) -> str:
        """`aborted`, `committed`, or `waiting`."""
        if self.request.finished_reason is not None:
            return "aborted"
        return "committed" if self.request.output_ids else "waiting"


class Case:
    """One check's own queue, with one slot and one page that every hand-off of the case gets in turn."""

    def __init__(self, bench: Bench, slot: int) -> None:
        """`slot` is not used by another case."""
        self.bench, self.slot = bench, slot
        utils = bench.release.loaded.utils
        self.allocator = utils.ReqToMetadataIdxAllocator(SLOTS)
        taken = [self.allocator.alloc() for _ in range(SLOTS)]
        self.allocator.free(taken[slot])
        self.page_free = True
        self.queue = bench.release.transfer_queue(
            bench.decode.buffers, self.allocator, lambda *_, **__: None, self._give_back
        )

    def _give_back(self, _: Request) -> None:
        self.page_free = True

    def admit(self, handoff: Handoff) -> bool:
        """Give slot and page and publish them; False while the release still holds them for another."""
        if not self.page_free or (slot := self.allocator.alloc()) is None:
            return False
        self.page_free = False
        handoff.request.metadata_buffer_index = slot
        handoff.entry = self.bench.release.decode_request(handoff.request, handoff.receiver)
        self.bench.release.publish(handoff.receiver, [self.slot], slot)
        self.queue.extend([handoff.entry])
        return True

    def step(self) -> None:
        """One iteration of decode's scheduler; what ends gives its page back, as a committed request does when it is finished."""
        for request in self.queue.pop_transferred():
            del request
            self.page_free = True
        resolve = getattr(self.queue, "resolve_deferred_releases", None)
        if resolve is not None:
            resolve()

    def stepped(self, handoff: Handoff) -> str:
        """Step once, and say what became of the hand-off."""
        self.step()
        return handoff.outcome

    def finish(self, handoff: Handoff) -> None:
        """Step until the hand-off has ended."""
        wait_for(lambda: self.stepped(handoff) != "waiting", "end of a hand-off")


class Bench:
    """See the module."""

    def __init__(self, release: Release, mover: Mover, watch: Watch) -> None:
        """Start servers and managers; `mover` must be installed before the release is loaded."""
        self.release, self.mover, self.watch = release, mover, watch
        self.provoked: dict[str, str] = {}
        """Hole to what died when it was tried."""
        self.looks = Looks()
        """At decode's rows."""
        self.decode = Side(release, stepped_buffers(release.loaded.utils.MetadataBuffers, self.looks))
        self.sides = [Side(release) for _ in range(2)]
        self.addresses, self.prefills = [], []
        for side in self.sides:
            port = free_port()
            self._server = release.bootstrap_server(port)
            self.addresses.append(f"{LOOPBACK}:{port}")
            self.prefills.append(release.manager("prefill", side.kv, side.buffers, port))
        self.manager = release.manager("decode", self.decode.kv, self.decode.buffers, free_port())
        self._parts = self.decode.parts()
        self._room = 0

    def handoff(self, prefill: int = 0, *, at_decode_first: bool = False) -> Handoff:
        """A new request, bootstrapped and known to both sides; `at_decode_first`: prefill gets it by `arrive`."""
        self._room += 1
        room, release = (1 << 40) + self._room, self.release
        address = self.addresses[prefill]
        host, _, port = address.partition(":")
        request = Request(room, 0, 0, host=host, port=int(port))
        sender = None if at_decode_first else self.arrive(room, prefill)
        kind = release.loaded.find("KVReceiver")
        receiver = wait_for(
            lambda: release.receiver(kind, self.manager, address, room), "answer of the bootstrap server"
        )
        wait_for(lambda: receiver.poll() != release.poll.Bootstrapping, "bootstrap of a receiver")
        return Handoff(request, receiver, sender)

    def arrive(self, room: int, prefill: int = 0) -> Any:
        """The request reaches prefill, which makes its sender."""
        return self.release.sender(self.prefills[prefill], self.addresses[prefill], room)

    def send(self, case: Case, handoff: Handoff, prefill: int = 0) -> None:
        """Prefill's half: wait for decode's destination, make row and page, send both."""
        poll, side = self.release.poll, self.sides[prefill]
        wait_for(lambda: handoff.sender.poll() == poll.WaitingForInput, "destination at prefill")
        room = handoff.request.room
        made = Request(room, 0, 0, host=LOOPBACK, port=0)
        made.fill(PAYLOAD.row(room, 0, made.mask), LAYOUT)
        made.metadata_buffer_index = case.slot
        self.release.begin(handoff.sender, [case.slot], case.slot)
        side.buffers.set_buf(made)
        for tensor in side.kv:
            tensor[case.slot] = room
        self.release.send(handoff.sender, [case.slot])

    def wait_status(self, handoff: Handoff) -> None:
        """Wait until decode knows that the transfer is reported done or failed."""
        poll = self.release.poll
        wait_for(
            lambda: self.manager.check_status(handoff.request.room) in (poll.Success, poll.Failed), "status at decode"
        )

    def token(self, handoff: Handoff) -> int:
        """First token that is this request's."""
        made = Request(handoff.request.room, 0, 0, host=LOOPBACK, port=0)
        made.fill(PAYLOAD.row(made.room, 0, made.mask), LAYOUT)
        return made.output_ids[0]

    def died(self, hole: str) -> dict[str, bool]:
        """The answer of a check that asks whether a thread dies, with what died kept."""
        deaths = self.watch.forget()
        if deaths:
            self.provoked[hole] = str(deaths[0])
        return {hole: bool(deaths)}

    def pages_named(self, case: Case) -> set[int]:
        """Rooms that the case's page on decode names."""
        return {int(word) for tensor in self.decode.kv for word in tensor[case.slot].tolist()}

    def fates(self, **fates: Fate) -> None:
        """Set what becomes of the blocks of each part of decode's memory (`kv`, `row`, `room`); others are there at once."""

        def fate(destination: int) -> Fate:
            for first, size, part in self._parts:
                if first <= destination < first + size:
                    return fates.get(part, Fate.NOW)
            return Fate.NOW

        self.mover.fate = fate
