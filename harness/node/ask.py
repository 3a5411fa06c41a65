"""One question to a node or the registry, and its answer, from a process that is no member of the cluster (yet)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from harness.errors import HarnessError
from harness.node.address import resolved, split, towards
from harness.node.post import Inbox, Outbox
from harness.protocol import wire

AGAIN_S = 0.25
Answer = TypeVar("Answer", wire.Pong, wire.Claimed)


def ask(
    address: str, cluster: int, question: Callable[[str], wire.Message], answer: type[Answer], timeout_s: float
) -> Answer:
    """Send `question(own address)` to `address` until an `answer` comes; raises HarnessError when none does in time.

    A question is asked again now and then, since whoever is to answer may not be there yet: it must bear that.
    """
    deadline = time.monotonic() + timeout_s
    address = resolved(address, timeout_s)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    envelope = wire.envelope(cluster)
    try:
        inbox = Inbox(context, _own_inbox(address), envelope)
        outbox = Outbox(context, address, envelope)
        while time.monotonic() < deadline:
            outbox.send(question(inbox.address))
            inbox.socket.poll(int(AGAIN_S * 1e3))
            for message, _ in inbox.drain():
                if isinstance(message, answer):
                    return message
    except zmq.ZMQError as error:
        raise HarnessError(f"{address}: {error}") from error
    finally:
        context.destroy(linger=0)
    raise HarnessError(f"{address}: no answer within {timeout_s:g} s")


def _own_inbox(address: str) -> str:
    if split(address)[0] == "tcp":
        return f"tcp://{towards(address)}:*"
    return f"ipc://@handoff-ask-{secrets.token_hex(8)}"


def ping(address: str, cluster: int, timeout_s: float) -> wire.Pong:
    """Who is at `address`; raises HarnessError."""
    return ask(address, cluster, wire.Ping, wire.Pong, timeout_s)


def claim_index(registry: str, cluster: int, role: int, timeout_s: float) -> int:
    """An index that no other node of `role` has; raises HarnessError."""
    token = secrets.randbits(63)
    return ask(registry, cluster, lambda own: wire.Claim(role, token, own), wire.Claimed, timeout_s).index
