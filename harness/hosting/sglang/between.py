"""Checks of what prefill's threads do to each other. Where a thread of the release dies for good, the check comes last and takes the death as its answer."""

from __future__ import annotations

from harness.hosting.sglang.bench import Bench, Case, Handoff, wait_for
from harness.hosting.stepped import EAR, Gate, HeldDict

PATIENCE_S = 3.0
"""What a status waits for an acknowledgement that is all but sent."""


def cleared_between_lookups(bench: Bench, slot: int) -> dict[str, bool]:
    """Prefill's scheduler clears a finished room after the transfer thread has asked whether it is there, and before it asks for its status.

    On the second prefill, whose transfer thread nothing else needs.
    """
    case, first, second = Case(bench, slot), bench.handoff(prefill=1), bench.handoff(prefill=1)
    manager, poll = bench.prefills[1], bench.release.poll
    bench.fates()
    asked = HeldDict(manager.request_status, lambda room, status: room == first.request.room and status == poll.Success)
    manager.request_status = asked
    assert case.admit(first)
    bench.send(case, first, prefill=1)
    wait_for(lambda: first.sender.poll() == poll.Success, "end of a transfer at prefill")
    case.finish(first)
    wait_for(lambda: case.admit(second), "slot for the second request")
    bench.send(case, second, prefill=1)

    def went_on() -> bool:
        return bool(bench.watch.look()) or second.sender.poll() == poll.Success

    wait_for(lambda: asked.reached.is_set() or went_on(), "second look at the room, or the next transfer")
    first.sender.clear()
    asked.go_on.set()
    wait_for(went_on, "next transfer, or a dead thread")
    return bench.died("lookup-race")


def acknowledged_in_between(bench: Bench, slot: int) -> dict[str, bool]:
    """Prefill's bootstrap thread acknowledges an abort while its transfer thread sends a status to the same decode rank."""
    case, first, second = Case(bench, slot), bench.handoff(), bench.handoff()
    bench.fates()
    assert case.admit(first)
    bench.release.publish(second.receiver, [slot], slot)
    poll = bench.release.poll
    wait_for(lambda: second.sender.poll() == poll.WaitingForInput, "destination at prefill")
    EAR.gate = gate = Gate(str(first.request.room).encode())
    try:
        bench.send(case, first)
        wait_for(gate.reached.is_set, "status on its way")
        if _tells_prefill(second):
            wait_for(lambda: second.sender.poll() == poll.Failed, "abort at prefill")
            gate.overtaken.wait(PATIENCE_S)
        gate.open()
        wait_for(
            lambda: bench.watch.look() or bench.manager.check_status(first.request.room) == poll.Success,
            "status at decode, or a dead thread",
        )
    finally:
        gate.open()
        EAR.gate = None
    return bench.died("mixed-frames")


def aborted_before_arrival(bench: Bench, slot: int) -> dict[str, bool]:
    """Decode publishes where the data shall go and gives the request up, both before prefill has the request."""
    handoff = bench.handoff(at_decode_first=True)
    manager, poll, room = bench.prefills[0], bench.release.poll, handoff.request.room
    bench.release.publish(handoff.receiver, [slot], slot)
    wait_for(lambda: room in manager.transfer_infos, "destination at prefill")
    if not _tells_prefill(handoff):
        return {"abort-forgotten": False}
    wait_for(lambda: manager.request_status.get(room) == poll.Failed, "abort at prefill")
    return {"abort-forgotten": bench.arrive(room).poll() != poll.Failed}


def _tells_prefill(handoff: Handoff) -> bool:
    """Abort the hand-off on decode's side; whether the release sends anything to prefill for it."""
    EAR.heard = heard = set[bytes]()
    try:
        handoff.receiver.abort()
    finally:
        EAR.heard = None
    return b"ABORT" in heard
