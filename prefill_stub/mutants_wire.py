"""Small named changes of the reference's prefill side in what it writes and sends; the others are in `prefill_stub.mutants`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import zmq

from harness.history.event import KV_BIT, Role
from harness.protocol import wire
from harness.transport.base import Outcome, Write
from prefill_stub.machine import Sender

Node = Any
"""A `PrefillNode` whose methods, or whose machine's, are replaced."""
_DECODE = int(Role.DECODE)
KV_NOT_SENT_EVERY = 50
MUTE_AFTER = 2000
MIXED_EVERY = 200


def _blocks(node: Node, change: Callable[[Write], None]) -> None:
    """Have `change` edit each write before it is issued."""
    issue = node._issue

    def patched(write: Write) -> Outcome:
        change(write)
        outcome: Outcome = issue(write)
        return outcome

    node._issue = patched
    if node._writes is not None:
        node._writes._issue = patched


def _no_row(node: Node) -> None:
    machine = node.machine

    def change(write: Write) -> None:
        sender = machine.rooms.get(write.room)
        if sender is not None and not sender.wants:
            write.blocks = [block for block in write.blocks if block[2] == KV_BIT]

    _blocks(node, change)


def _last_layer_missing(node: Node) -> None:
    def change(write: Write) -> None:
        last = max((at for at, block in enumerate(write.blocks) if block[2] == KV_BIT), default=-1)
        write.blocks = [block for at, block in enumerate(write.blocks) if at != last]

    _blocks(node, change)


def _kv_not_sent(node: Node) -> None:
    count = [0]

    def change(write: Write) -> None:
        count[0] += 1
        if not count[0] % KV_NOT_SENT_EVERY:
            write.blocks = [block for block in write.blocks if block[2] != KV_BIT]

    _blocks(node, change)


def _blacklist(node: Node) -> None:
    machine, wrote = node.machine, node.machine.wrote
    bad: set[int] = set()

    def patched(sender: Sender, outcome: Outcome) -> None:
        assert sender.exchange is not None
        if outcome is Outcome.FAILED:
            bad.add(sender.exchange.decode)
        wrote(sender, outcome)

    issue = node._issue

    def patched_issue(write: Write) -> Outcome:
        outcome: Outcome = Outcome.FAILED if write.decode in bad else issue(write)
        return outcome

    node._issue = patched_issue
    if node._writes is not None:
        node._writes._issue = patched_issue
    machine.wrote = patched


def _stale_channel(node: Node) -> None:
    changed = node.peer_changed
    kept: dict[int, Any] = {}

    def patched(peer: tuple[int, int], *, alive: bool, dead: bool = False) -> None:
        if not alive and peer[1] in node._channels:
            kept[peer[1]] = node._channels.pop(peer[1])
        changed(peer, alive=alive, dead=dead)

    def patched_session(message: wire.Session) -> None:
        session(message)
        if message.decode in kept:
            node._channels[message.decode] = kept[message.decode]

    session = node._open_session
    node.peer_changed, node._open_session = patched, patched_session


def _duplicate_is_fatal(node: Node) -> None:
    machine, request = node.machine, node.machine.request

    def patched(message: wire.Request) -> None:
        sender = machine.rooms.get(message.room)
        if sender is not None and sender.wants is not None:
            del machine.rooms[message.room]
            machine.rooms[sender.room]
        request(message)

    machine.request = patched


def _dead_head_blocks(node: Node) -> None:
    machine, following = node.machine, node.machine._next

    def patched() -> None:
        head = machine._waiting[0] if machine._waiting else None
        if head is None or machine.rooms.get(head.room) is head:
            following()

    machine._next = patched


def _other_id(node: Node) -> None:
    machine = node.machine

    def patched(room: int, decode: int, code: int, **options: Any) -> None:
        status(room, decode, code, **options)
        peer, message = machine.out[-1]
        machine.out[-1] = (peer, wire.Status(message.room ^ 1, message.status, message.rank, message.drained))

    status = machine._status
    machine._status = patched


def _mute(node: Node, muted: Callable[[int], bool]) -> None:
    """Statuses for decode node d are lost while `muted(d)`."""
    machine, status = node.machine, node.machine._status

    def patched(room: int, decode: int, code: int, **options: Any) -> None:
        status(room, decode, code, **options)
        if muted(decode):
            machine.out.pop()

    machine._status = patched


def _mute_push(node: Node) -> None:
    count = [0]

    def muted(_: int) -> bool:
        count[0] += 1
        return count[0] > MUTE_AFTER

    _mute(node, muted)


def _mute_after_restart(node: Node) -> None:
    gone: set[int] = set()
    changed = node.peer_changed

    def patched(peer: tuple[int, int], *, alive: bool, dead: bool = False) -> None:
        if not alive:
            gone.add(peer[1])
        changed(peer, alive=alive, dead=dead)

    node.peer_changed = patched
    _mute(node, gone.__contains__)


def _interleaved_sends(node: Node) -> None:
    count, machine = [0], node.machine

    def muted(decode: int) -> bool:
        count[0] += 1
        if count[0] % MIXED_EVERY:
            return False
        # One thread's envelope, the other's whole message, the first one's body: what arrives is two pieces of nonsense.
        peer = (_DECODE, decode)
        outbox = node.peers.get(peer)
        if outbox is not None:
            outbox.socket.send(outbox._envelope, zmq.NOBLOCK | zmq.SNDMORE)
            outbox.send(wire.Beat(Role.PREFILL, node.index, node.incarnation))
            outbox.socket.send(wire.encode(machine.out[-1][1]), zmq.NOBLOCK)
        return True

    _mute(node, muted)


CHANGES: Mapping[str, Callable[[Node], None]] = {
    "no_row": _no_row,
    "last_layer_missing": _last_layer_missing,
    "kv_not_sent": _kv_not_sent,
    "blacklist": _blacklist,
    "stale_channel": _stale_channel,
    "duplicate_is_fatal": _duplicate_is_fatal,
    "dead_head_blocks": _dead_head_blocks,
    "other_id": _other_id,
    "mute_push": _mute_push,
    "mute_after_restart": _mute_after_restart,
    "interleaved_sends": _interleaved_sends,
}
