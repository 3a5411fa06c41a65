"""Small named changes of the reference's prefill side, each the mechanism of a known bug (`harness.protocol.mutants` has them in words)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.history.event import Role
from harness.protocol import wire
from harness.transport.base import Outcome
from prefill_stub import mutants_wire
from prefill_stub.machine import FAILED, SUCCESS, Sender

Node = Any
"""A `PrefillNode` whose methods, or whose machine's, are replaced."""
_DECODE = int(Role.DECODE)
LEAKS_MAX = 24


def _success_on_failure(node: Node) -> None:
    finish = node.machine._finish

    def patched(sender: Sender, status: int, *, drained: bool) -> None:
        finish(sender, status if sender.aborted else SUCCESS, drained=drained)

    node.machine._finish = patched


def _ack_without_drain(node: Node) -> None:
    machine, abort = node.machine, node.machine.abort

    def patched(message: wire.Abort) -> None:
        abort(message)
        sender = machine.rooms.get(message.room)
        if sender is not None:
            machine.out.append(((_DECODE, message.decode), wire.Drained(message.room, message.tenure)))

    machine.abort = patched


def _fails_early(node: Node) -> None:
    if node._writes is not None:
        node._writes.fails_early = True


def _source_timer(node: Node) -> None:
    machine, wrote = node.machine, node.machine.wrote
    early: set[int] = set()
    _ends_once(node, early)

    def patched(sender: Sender, outcome: Outcome) -> None:
        if outcome is Outcome.PENDING and sender.lease >= 0:
            early.add(sender.room)
            machine.leases.give(sender.lease)
        wrote(sender, outcome)
        if outcome is Outcome.PENDING:
            machine._next()

    machine.wrote = patched


def _ends_once(node: Node, early: set[int]) -> None:
    """Hand-offs in `early` have given their lease back already."""
    machine, finish = node.machine, node.machine._finish
    give = machine.leases.give

    def patched(sender: Sender, status: int, *, drained: bool) -> None:
        if sender.room in early:
            early.discard(sender.room)
            machine.leases.give = lambda _: setattr(machine.leases, "give", give)
        finish(sender, status, drained=drained)

    machine._finish = patched


def _cancel_frees_source(node: Node) -> None:
    machine, cancel = node.machine, node.machine.cancel
    early: set[int] = set()
    _ends_once(node, early)

    def patched(message: wire.Cancel) -> None:
        sender = machine.rooms.get(message.room)
        if sender is not None and sender.lease >= 0 and sender.room not in early:
            early.add(sender.room)
            machine.leases.give(sender.lease)
            machine._next()
        else:
            cancel(message)

    machine.cancel = patched


def _strict_completion(node: Node) -> None:
    machine, cancel, wrote = node.machine, node.machine.cancel, node.machine.wrote

    def patched_cancel(message: wire.Cancel) -> None:
        cancel(message)
        sender = machine.rooms.get(message.room)
        if sender is not None and sender.lease >= 0:
            machine.rooms.pop(message.room)  # freed by force; the transfer does not know

    def patched(sender: Sender, outcome: Outcome) -> None:
        if outcome is not Outcome.PENDING:
            machine.rooms[sender.room]
        wrote(sender, outcome)

    machine.cancel, machine.wrote = patched_cancel, patched


def _deaf_to_abort(node: Node) -> None:
    node.machine.abort = lambda _: None


def _abort_is_fatal(node: Node) -> None:
    def patched(message: wire.Abort) -> None:
        raise AssertionError(f"unknown message {message}")

    node.machine.abort = patched


def _abort_of_what_is_over(answer: Callable[[wire.Abort], None]) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        machine, abort = node.machine, node.machine.abort

        def patched(message: wire.Abort) -> None:
            if message.room in machine.rooms or not message.tenure:
                abort(message)
            else:
                answer(message)

        machine.abort = patched

    return change


def _raise(message: wire.Abort) -> None:
    raise KeyError(message.room)


def _waiting_abort_leaks(node: Node) -> None:
    machine, abort = node.machine, node.machine.abort
    kept: list[int] = []

    def patched(message: wire.Abort) -> None:
        sender = machine.rooms.get(message.room)
        queued = sender is not None and sender.lease < 0 and sender in machine._waiting
        abort(message)
        if queued and len(kept) < 4:
            kept.append(message.room)
            machine._waiting.append(sender)
            _take_and_forget(machine, sender)

    machine.abort = patched


def _take_and_forget(machine: Any, sender: Sender) -> None:
    """The room is gone, its place in the queue is not: when its turn comes it takes a slot, and nobody gives it back."""
    take = machine._next

    def patched() -> None:
        if sender in machine._waiting and machine.leases.free_count:
            machine._waiting.remove(sender)
            machine.leases.take()
            machine._next = take
        take()

    machine._next = patched


def _failure_sends_nothing(node: Node) -> None:
    machine, status = node.machine, node.machine._status

    def patched(room: int, decode: int, code: int, **options: Any) -> None:
        if code != FAILED:
            status(room, decode, code, **options)

    machine._status = patched


def _late_result_dropped(node: Node) -> None:
    machine, wrote = node.machine, node.machine.wrote
    dropped: list[int] = []

    def patched(sender: Sender, outcome: Outcome) -> None:
        if sender.aborted and outcome is not Outcome.PENDING and len(dropped) < LEAKS_MAX:
            dropped.append(sender.room)
        else:
            wrote(sender, outcome)

    machine.wrote = patched


def _failed_keeps_lease(node: Node) -> None:
    machine, finish = node.machine, node.machine._finish
    kept: list[int] = []

    def patched(sender: Sender, status: int, *, drained: bool) -> None:
        give = machine.leases.give
        if status == FAILED and len(kept) < LEAKS_MAX:
            kept.append(sender.lease)
            machine.leases.give = lambda _: None
        finish(sender, status, drained=drained)
        machine.leases.give = give

    machine._finish = patched


def _cancel_closes_channel(node: Node) -> None:
    machine, cancel = node.machine, node.machine.cancel

    def patched(message: wire.Cancel) -> None:
        sender = machine.rooms.get(message.room)
        if sender is not None and sender.lease >= 0 and sender.exchange is not None:
            node._broken = True
        cancel(message)

    issue = node._issue
    node._broken = False
    node._issue = lambda write: Outcome.FAILED if node._broken else issue(write)
    if node._writes is not None:
        node._writes._issue = node._issue
    machine.cancel = patched


CHANGES: Mapping[str, Callable[[Node], None]] = {
    "success_on_failure": _success_on_failure,
    "ack_without_drain": _ack_without_drain,
    "fails_early": _fails_early,
    "source_timer": _source_timer,
    "cancel_frees_source": _cancel_frees_source,
    "strict_completion": _strict_completion,
    "deaf_to_abort": _deaf_to_abort,
    "abort_is_fatal": _abort_is_fatal,
    "abort_unanswered": _abort_of_what_is_over(lambda _: None),
    "strict_abort": _abort_of_what_is_over(_raise),
    "waiting_abort_leaks": _waiting_abort_leaks,
    "failure_sends_nothing": _failure_sends_nothing,
    "late_result_dropped": _late_result_dropped,
    "failed_keeps_lease": _failed_keeps_lease,
    "cancel_closes_channel": _cancel_closes_channel,
    **mutants_wire.CHANGES,
}


def clear(node: Node) -> None:
    """Undo what `apply` did to the node itself: it serves another run, with a machine of its own."""
    for name in ("_issue", "_open_session", "peer_changed"):
        node.__dict__.pop(name, None)


def apply(names: Iterable[str], node: Node) -> None:
    """Change `node`, which is configured; names of mutants at decode are not its own and left alone."""
    for name in names:
        if name in CHANGES:
            CHANGES[name](node)
