"""What the link between two namespaces does to packets, and where it can be had."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import link as links
from harness.errors import FieldError, UnavailableError
from harness.node import link, namespace
from harness.node.link import Weather
from harness.scenario import load


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, link.Link]]:
    """A link, and its two devices as others see them: one packet a read."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
    yield pairs[0][0], pairs[1][0], link.Link(pairs[0][1].fileno(), pairs[1][1].fileno())
    for pair in pairs:
        for end in pair:
            end.close()


def _came(end: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(end.recv(100))
        except BlockingIOError:
            return found


def _near(carrier: link.Link) -> int:
    return next(iter(carrier._other))


def test_packets_cross_in_order_both_ways(ends: tuple[socket.socket, socket.socket, link.Link]) -> None:
    near, far, carrier = ends
    near.send(b"a")
    near.send(b"b")
    far.send(b"c")
    for end in carrier._other:
        carrier.take(end, 1.0)
    carrier.deliver(1.0)
    assert (_came(far), _came(near)) == ([b"a", b"b"], [b"c"])


def test_a_delay_is_kept_and_what_is_on_its_way_keeps_its_own(
    ends: tuple[socket.socket, socket.socket, link.Link],
) -> None:
    near, far, carrier = ends
    carrier.weather = Weather(delay_s=0.5)
    near.send(b"late")
    carrier.take(_near(carrier), 1.0)
    carrier.weather = link.CLEAR
    near.send(b"at once")
    carrier.take(_near(carrier), 1.1)
    carrier.deliver(1.4)
    assert _came(far) == [b"at once"]
    carrier.deliver(1.5)
    assert _came(far) == [b"late"]


@pytest.mark.parametrize(("loss", "least", "most"), [(1.0, 0, 0), (0.5, 50, 150), (0.0, 200, 200)])
def test_a_share_is_lost(
    ends: tuple[socket.socket, socket.socket, link.Link], loss: float, least: int, most: int
) -> None:
    near, far, carrier = ends
    carrier.weather = Weather(loss=loss)
    came = 0
    for _ in range(200):
        near.send(b"x")
        carrier.take(_near(carrier), 1.0)
        carrier.deliver(1.0)
        came += len(_came(far))
    assert least <= came <= most


def test_what_is_on_its_way_is_bounded(
    ends: tuple[socket.socket, socket.socket, link.Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far, carrier = ends
    monkeypatch.setattr(link, "PACKETS_MAX", 3)
    carrier.weather = Weather(delay_s=1.0)
    for _ in range(5):
        near.send(b"x")
    carrier.take(_near(carrier), 1.0)
    carrier.deliver(2.0)
    assert len(_came(far)) == 3


def _scenario(*faults: str, transport: str = "tcp"):
    return load(None, {"faults": list(faults), "transport.name": transport})


def test_whose_nodes_are_behind_it(tmp_path: Path) -> None:
    assert links.far_role(_scenario("abort", transport="shm")) == ""
    assert links.far_role(_scenario("link:node=decode", "link:node=decode,loss=0.1")) == "decode"
    made = links.Link("decode", tmp_path)
    addresses = [made.address(who) for who in ("registry", "driver", "prefill-3", "decode-0")]
    assert [address.rpartition(":")[0].removeprefix("tcp://") for address in addresses] == [link.NEAR] * 3 + [link.FAR]
    assert len({address.rpartition(":")[2] for address in addresses}) == 4


@pytest.mark.parametrize(
    ("faults", "transport", "said"),
    [
        (("link:node=decode", "link:node=prefill"), "tcp", "one `node` for all faults of the link"),
        (("link",), "shm", "transport.name: 'shm' is not allowed; use tcp, gloo or mooncake"),
        (("link",), "nixl-tcp", "transport.name: 'nixl-tcp' is not allowed"),
    ],
)
def test_what_a_link_cannot_be_used_with(faults: tuple[str, ...], transport: str, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        links.require(_scenario(*faults, transport=transport))


def test_without_root_it_is_one_line_and_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(what: str, *_: int) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(namespace, "_call", refused)
    with pytest.raises(UnavailableError, match=r"^a network namespace needs root: Operation not permitted$") as found:
        links.require(_scenario("link"))
    assert found.value.exit_code == 2
    links.require(_scenario("abort"))
