"""What only gloo has: a rendezvous on the connection that showed the token."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from harness.transport import registry, tcp
from harness.transport.base import TransportError
from harness.transport.rig import Rig

DEADLINE_S = 60.0
ITEM = struct.Struct("<HI")


def _stranger(rig: Rig) -> socket.socket:
    """A peer that knows the token."""
    where = json.loads(rig.target.descriptor())
    peer = socket.create_connection((where["host"], where["port"]), DEADLINE_S)
    peer.sendall(tcp.HELLO.pack(tcp.MAGIC, bytes.fromhex(where["token"])))
    assert peer.recv(tcp.ACK.size, socket.MSG_WAITALL) == tcp.ACK.pack(0, 1)
    return peer


def _drained(peer: socket.socket) -> None:
    """Read until the target closes."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass


JUNK: dict[str, Callable[[], bytes]] = {
    "garbage": lambda: random.Random(1).randbytes(4000),
    "a value of 4 GiB": lambda: ITEM.pack(3, (1 << 32) - 1) + b"0/0",
    "items without end": lambda: b"".join(ITEM.pack(3, 1) + b"%03d" % i + b"x" for i in range(1000)),
    "an address that is none": lambda: ITEM.pack(3, 170) + b"0/0" + bytes(170) + ITEM.pack(0, 0),
    "half an item": lambda: ITEM.pack(3, 170)[:-1],
}


@pytest.mark.parametrize("junk", JUNK)
def test_a_rendezvous_that_is_none_ends_that_connection_only(junk: str) -> None:
    with Rig(registry.get("gloo"), DEADLINE_S, ack=True) as rig:
        with _stranger(rig) as peer:
            peer.sendall(JUNK[junk]())
            with contextlib.suppress(OSError):  # the target may have had enough of it already
                peer.shutdown(socket.SHUT_WR)
            _drained(peer)
        rig.until(lambda: rig.target.counters()["bad_frames"] == 1, "one bad peer counted")
        rig.compare("a stranger changed the memory")
        rig.burst(range(1, 9))
        rig.settle()


def test_a_rendezvous_that_does_not_begin_keeps_nobody_out_and_no_thread_back() -> None:
    before = set(threading.enumerate())
    with Rig(registry.get("gloo"), DEADLINE_S, ack=True) as rig:
        silent = [_stranger(rig) for _ in range(4)]
        rig.burst(range(1, 9))
        rig.settle()
    assert set(threading.enumerate()) <= before
    for peer in silent:
        peer.close()


def test_a_wrong_token_is_a_transport_error() -> None:
    with Rig(registry.get("gloo"), DEADLINE_S, ack=True) as rig:
        wrong = json.dumps({**json.loads(rig.target.descriptor()), "token": "00" * 16}).encode()
        with pytest.raises(TransportError, match="cannot connect"):
            rig.connect(wrong)
        rig.burst(range(1, 9))
        rig.settle()


def test_a_foreign_tenure_is_refused_and_only_that_write_fails() -> None:
    with Rig(registry.get("gloo"), DEADLINE_S, ack=True, enforce=True, connections=2) as rig:
        for slot in (0, 1, 2):
            rig.owners.grant(slot, 1)
        rig.write(1, 0)
        rig.write(2, 1, tenure=9, lands=False)
        rig.write(3, 2)
        rig.until(lambda: len(rig.done) == 3, "three answers")
        assert sorted(rig.done) == [(1, True), (2, False), (3, True)]
