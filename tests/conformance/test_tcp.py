"""What only tcp has: a port that anybody can connect to, and a backlog of a size of its own."""

from __future__ import annotations

import json
import random
import select
import socket
from collections.abc import Callable, Iterator

import pytest

from harness.history.event import KV_BIT, Verb
from harness.transport import registry, tcp, tcp_channel
from harness.transport.base import Outcome, TransportError, Write
from harness.transport.conformance import Rig

DEADLINE_S = 30.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A target under attack, and an honest channel to it."""
    with Rig(registry.get("tcp"), DEADLINE_S, ack=True) as opened:
        yield opened


def _where(rig: Rig) -> tuple[tuple[str, int], bytes]:
    where = json.loads(rig.target.descriptor())
    return (where["host"], where["port"]), bytes.fromhex(where["token"])


def _bad(rig: Rig) -> int:
    return rig.target.counters()["bad_frames"]


def _connect(rig: Rig, *, greet: bool = False) -> socket.socket:
    """A foreign connection; with `greet` one that knows the token."""
    address, token = _where(rig)
    peer = socket.create_connection(address, DEADLINE_S)
    if greet:
        peer.sendall(tcp.HELLO.pack(tcp.MAGIC, token))
        assert peer.recv(tcp.ACK.size, socket.MSG_WAITALL) == tcp.ACK.pack(0, 1)
    return peer


def _closed_by_target(peer: socket.socket) -> bool:
    try:
        return peer.recv(64) == b""
    except ConnectionResetError:
        return True


def _frame(size: int, count: int, entries: bytes = b"", magic: int = tcp.MAGIC) -> bytes:
    return tcp.HEAD.pack(magic, size, 77, 0, 1, count, tcp.WANT_ACK, 1) + entries


HELLOS: dict[str, Callable[[bytes], bytes]] = {
    "wrong magic": lambda token: tcp.HELLO.pack(tcp.MAGIC ^ 1, token),
    "wrong token": lambda token: tcp.HELLO.pack(tcp.MAGIC, bytes([token[0] ^ 1]) + token[1:]),
    "http": lambda _: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": lambda _: bytes(20),
}


@pytest.mark.parametrize("hello", HELLOS)
def test_a_stranger_is_shut_out_and_counted(rig: Rig, hello: str) -> None:
    with _connect(rig) as peer:
        peer.sendall(HELLOS[hello](_where(rig)[1]))
        assert _closed_by_target(peer)
    assert _bad(rig) == 1
    rig.burst(range(1, 9))
    rig.settle()


def test_a_truncated_hello_is_counted(rig: Rig) -> None:
    with _connect(rig) as peer:
        peer.sendall(tcp.HELLO.pack(tcp.MAGIC, _where(rig)[1])[:-1])
        peer.shutdown(socket.SHUT_WR)
        assert _closed_by_target(peer)
    assert _bad(rig) == 1
    rig.burst(range(1, 9))
    rig.settle()


def test_who_sends_nothing_keeps_nobody_out(rig: Rig) -> None:
    silent = [_connect(rig) for _ in range(10)]
    other = rig.connect(rig.target.descriptor())
    other.close()
    rig.burst(range(1, 9))
    rig.settle()
    for peer in silent:
        peer.close()
    rig.until(lambda: _bad(rig) == 10, "each silent connection counted once it is closed")


_ENTRY = tcp.ENTRY.pack(0, 8, 1)
FRAMES: dict[str, bytes] = {
    "garbage": random.Random(1).randbytes(5000),
    "wrong magic": _frame(tcp.HEAD.size, 0, magic=tcp.MAGIC + 1),
    "length below the header": _frame(tcp.HEAD.size - 1, 0),
    "length below the entries": _frame(tcp.HEAD.size + tcp.ENTRY.size - 1, 1, _ENTRY),
    "oversized length": _frame(tcp.FRAME_BYTES_MAX + 1, 0),
    "largest length": _frame((1 << 32) - 1, 0),
    "more data than entries say": _frame(tcp.HEAD.size + tcp.ENTRY.size + 9, 1, _ENTRY + bytes(9)),
    "less data than entries say": _frame(tcp.HEAD.size + tcp.ENTRY.size + 7, 1, _ENTRY + bytes(7)),
    "an entry of 4 GiB": _frame(tcp.HEAD.size + tcp.ENTRY.size + 8, 1, tcp.ENTRY.pack(0, (1 << 32) - 1, 1) + bytes(8)),
}


@pytest.mark.parametrize("name", FRAMES)
def test_garbage_after_a_valid_hello_ends_that_connection_only(rig: Rig, name: str) -> None:
    with _connect(rig, greet=True) as peer:
        peer.sendall(FRAMES[name])
        assert _closed_by_target(peer)
    rig.until(lambda: _bad(rig) == 1, "one bad frame")
    assert rig.events == []
    rig.compare("a bad frame changed the memory")
    rig.burst(range(1, 9))
    rig.settle()


@pytest.mark.parametrize("kept", [1, tcp.HEAD.size - 1, tcp.HEAD.size, tcp.HEAD.size + 20])
def test_a_frame_that_ends_early_is_counted(rig: Rig, kept: int) -> None:
    whole = _frame(tcp.HEAD.size + tcp.ENTRY.size + 8, 1, _ENTRY + bytes(8))
    with _connect(rig, greet=True) as peer:
        peer.sendall(whole[:kept])
        peer.shutdown(socket.SHUT_WR)
        assert _closed_by_target(peer)
    rig.until(lambda: _bad(rig) == 1, "one bad frame")
    rig.burst(range(1, 9))
    rig.settle()


def test_a_frame_of_the_largest_slot_tenure_and_room_is_applied_or_refused_not_fatal(rig: Rig) -> None:
    top = (1 << 32) - 1
    with _connect(rig, greet=True) as peer:
        head = tcp.HEAD.pack(tcp.MAGIC, tcp.HEAD.size, (1 << 64) - 1, top, top, 0, tcp.WANT_ACK, top)
        peer.sendall(head)
        assert peer.recv(tcp.ACK.size, socket.MSG_WAITALL) == tcp.ACK.pack(top, 1)
    rig.owners.enforce = True
    with _connect(rig, greet=True) as peer:
        peer.sendall(head)
        assert peer.recv(tcp.ACK.size, socket.MSG_WAITALL) == tcp.ACK.pack(top, 0)
    assert _bad(rig) == 0
    assert [event.verb for event in rig.events] == [Verb.LANDED, Verb.REFUSED]


def test_one_byte_at_a_time_is_a_frame_all_the_same(rig: Rig) -> None:
    data = bytes(range(8))
    with _connect(rig, greet=True) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in _frame(tcp.HEAD.size + tcp.ENTRY.size + 8, 1, _ENTRY + data):
            peer.sendall(bytes([byte]))
        assert peer.recv(tcp.ACK.size, socket.MSG_WAITALL) == tcp.ACK.pack(1, 1)
    assert bytes(rig.memory.view[:8]) == data


def test_seeded_junk_from_many_connections_changes_nothing(rig: Rig) -> None:
    chance = random.Random(11)
    for number in range(60):
        with _connect(rig, greet=bool(number % 2)) as peer:
            # The first byte makes sure that it is no frame: a valid one from a peer with the token would be obeyed.
            peer.sendall(b"\xff" + chance.randbytes(chance.randrange(60, 3000)))
            assert _closed_by_target(peer)
    rig.until(lambda: _bad(rig) == 60, "sixty counted")
    rig.compare("junk changed the memory")
    rig.burst(range(1, 9))
    rig.settle()


class _Reset:
    """A connection whose peer sent a valid hello and was gone before the answer."""

    def __init__(self, hello: bytes) -> None:
        self.hello, self.closed = hello, False

    def recv(self, *_: object) -> bytes:
        return self.hello

    def settimeout(self, _: object) -> None:
        pass

    def setsockopt(self, *_: object) -> None:
        pass

    def sendall(self, _: bytes) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def close(self) -> None:
        self.closed = True


def test_a_peer_that_is_gone_right_after_its_hello_leaves_no_trace(rig: Rig) -> None:
    connection = _Reset(tcp.HELLO.pack(tcp.MAGIC, _where(rig)[1]))
    rig.target._greet(connection)
    assert connection.closed


def test_writes_wait_in_a_bounded_backlog_and_arrive_when_the_target_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_channel, "SEND_BACKLOG_MAX", 32 << 20)
    size = 1 << 20
    data = memoryview(random.Random(2).randbytes(size))
    with Rig(registry.get("tcp"), DEADLINE_S, size=size) as rig:
        count, outcome = 0, Outcome.DONE
        with rig.owners.lock:
            while not rig.channel.busy:
                outcome = rig.write(100 + count, blocks=[(0, data, KV_BIT)])
                count += 1
                assert count < 64, "the socket buffers took 64 MiB"
            assert outcome is Outcome.DONE
            for _ in range(8):
                rig.write(100 + count, blocks=[(0, data, KV_BIT)])
                count += 1
        rig.until(lambda: not rig.channel.busy, "an empty backlog")
        rig.until(lambda: len(rig.events) == count, "every write applied")
        rig.settle()
        assert [event.room for event in rig.events] == list(range(100, 100 + count))
        with rig.owners.lock:
            taken = 0
            while rig.channel.write(Write(7, 0, 1, 0, [(0, data, KV_BIT)], 7)) is not Outcome.FAILED:
                taken += size
                assert taken < 128 << 20, "the backlog has no bound"
        assert taken > 32 << 20
        assert not rig.channel.busy
        assert rig.channel.descriptors() == []
        assert rig.channel.completions() == []


def test_unacknowledged_writes_that_wait_are_lost_with_the_peer_and_never_reported(rig: Rig) -> None:
    with Rig(registry.get("tcp"), DEADLINE_S) as other:
        assert other.write(1) is Outcome.DONE
        other.target.close()
        other.until(lambda: other.write(2, lands=False) is Outcome.FAILED, "FAILED")
        assert other.done == []


def test_acknowledgement_of_several_connections_comes_when_all_shares_have_landed() -> None:
    with Rig(registry.get("tcp"), DEADLINE_S, ack=True, connections=4, enforce=True) as rig:
        rig.owners.grant(0, 1)
        rig.write(1)
        rig.until(lambda: rig.done == [(1, True)], "one completion")
        assert rig.whole(1)
        assert len(rig.events.of(Verb.LANDED, 1)) == 4
        rig.write(2, tenure=9, lands=False)
        rig.until(lambda: rig.done[1:] == [(2, False)], "one failure for four refused shares")
        rig.until(lambda: rig.target.counters()["refused"] == 4, "four shares refused")
        rig.pump()
        assert len(rig.done) == 2


def _with_wrong_token(rig: Rig) -> bytes:
    return json.dumps({**json.loads(rig.target.descriptor()), "token": "00" * 16}).encode()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Every socket that a channel opens."""
    sockets: list[socket.socket] = []
    create = socket.create_connection

    def keep(*arguments: object) -> socket.socket:
        sockets.append(create(*arguments))  # type: ignore[arg-type]
        return sockets[-1]

    monkeypatch.setattr(tcp_channel.socket, "create_connection", keep)
    yield sockets
    for each in sockets:
        each.close()


def test_a_wrong_token_is_a_transport_error(rig: Rig, opened: list[socket.socket]) -> None:
    with pytest.raises(TransportError, match="cannot connect"):
        rig.connect(_with_wrong_token(rig))
    assert len(opened) == 1
    assert _bad(rig) == 1


def test_a_channel_that_cannot_be_opened_closes_its_sockets(rig: Rig, opened: list[socket.socket]) -> None:
    with pytest.raises(TransportError):
        rig.connect(_with_wrong_token(rig))
    assert [each.fileno() for each in opened] == [-1]


def test_descriptors_wake_on_the_end_of_the_peer(rig: Rig) -> None:
    rig.target.close()
    poller = select.poll()
    for descriptor in rig.channel.descriptors():
        poller.register(descriptor, select.POLLIN)
    assert poller.poll(DEADLINE_S * 1e3)
    assert rig.channel.completions() == []
    assert rig.channel.descriptors() == []
