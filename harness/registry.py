"""Bootstrap registry: where nodes publish their address and learn of the others. `python -m harness.registry`.

As SGLang's bootstrap server, but pushed instead of asked: at each change everybody gets the whole topology. It keeps nothing on disk: one that
was started again learns from its nodes who is there, since they register anew when they hear nothing of it.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import zmq

from harness.history.event import Role
from harness.node.entry import run
from harness.node.post import Outbox
from harness.node.shell import BEAT_S, DRIVER, LOST_S, Address, Shell
from harness.node.silence import excuse
from harness.protocol import wire

CLAIM_S = 60.0
"""An index that was given out is kept so long for a node that does not register."""
CLAIMS_MAX = 4096


class RegistryCore:
    """Sans-I/O: who is registered, and what everybody is told. Times in seconds."""

    def __init__(self, incarnation: int = 1) -> None:
        """Nobody is there."""
        self._incarnation = incarnation
        self.nodes: dict[Address, wire.Register] = {}
        self._seen: dict[Address, float] = {}
        self._claims: dict[int, tuple[Address, float]] = {}
        """Token to the address that was given out for it, and when it was last asked for."""

    def claim(self, message: wire.Claim, now: float) -> int | None:
        """The lowest index of that role that nobody has; the same token gets the same again. None when too many ask at once."""
        self._claims = {
            token: given for token, given in self._claims.items() if given[0] in self.nodes or now - given[1] <= CLAIM_S
        }
        known = self._claims.get(message.token)
        if known is None and len(self._claims) >= CLAIMS_MAX:
            return None
        taken = {*self.nodes, *(address for address, _ in self._claims.values())}
        free = (index for index in itertools.count() if (message.role, index) not in taken)
        index = known[0][1] if known else next(free)
        self._claims[message.token] = ((message.role, index), now)
        return index

    def _release(self, key: Address) -> None:
        self._claims = {token: given for token, given in self._claims.items() if given[0] != key}

    def register(self, message: wire.Register, now: float) -> bool:
        """Take a node in; True if that changed anything. A lower incarnation than the known one is a ghost and ignored."""
        key = (message.role, message.index)
        known = self.nodes.get(key)
        if known is not None and message.incarnation < known.incarnation:
            return False
        self._seen[key] = now
        self.nodes[key] = message
        return known != message

    def beat(self, message: wire.Beat, now: float) -> None:
        """A sign of life."""
        key = (message.role, message.index)
        known = self.nodes.get(key)
        if known is not None and known.incarnation == message.incarnation:
            self._seen[key] = now

    def gone(self, message: wire.Gone) -> bool:
        """Forget a node of that incarnation; True if it was known."""
        key = (message.role, message.index)
        known = self.nodes.get(key)
        if known is None or known.incarnation != message.incarnation:
            return False
        del self.nodes[key], self._seen[key]
        self._release(key)
        return True

    def excuse(self, now: float, late_s: float) -> None:
        """The registry itself was not run for `late_s`."""
        excuse(self._seen, now, late_s)

    def expire(self, now: float, *, spare: Collection[Address] = ()) -> bool:
        """Forget nodes whose heartbeat stopped, but for `spare`; True if there were any."""
        silent = [key for key, seen in self._seen.items() if now - seen > LOST_S and key not in spare]
        for key in silent:
            del self.nodes[key], self._seen[key]
            self._release(key)
        return bool(silent)

    def topology(self) -> wire.Topology:
        """What everybody is told."""
        return wire.Topology(list(self.nodes.values()), self._incarnation)


class Registry(Shell):
    """The registry's shell: it knows its peers from their registration, not from a topology."""

    def __init__(self, role: Role, index: int, **options: Any) -> None:
        """Its own registry address is its inbox."""
        options["registry"] = options["registry"] if "*" not in options["inbox"] else options["inbox"]
        super().__init__(role, index, **options)
        self.core = RegistryCore(self.incarnation)
        handlers: dict[type, Callable[[Any], None]] = {
            wire.Register: self._on_register,
            wire.Beat: self._on_registry_beat,
            wire.Gone: self._on_registry_gone,
            wire.Claim: self._on_claim,
            wire.Topology: lambda _: None,
            wire.Configure: lambda _: None,
        }
        self._own.update(handlers)
        self.registered = True

    def known(self) -> Iterable[Address]:
        """Who is registered."""
        return list(self.core.nodes)

    def _on_claim(self, message: wire.Claim) -> None:
        index = self.core.claim(message, time.monotonic())
        if index is not None:
            self.reply(message.reply_to, wire.Claimed(message.token, index))

    def _on_register(self, message: wire.Register) -> None:
        if (message.role, message.index) == (self.role, self.index):
            return
        key = (message.role, message.index)
        known = self.core.nodes.get(key)
        if key == DRIVER and known is not None and known.incarnation < message.incarnation:
            if self._leave_at == math.inf:
                return  # one driver at a time
            self._leave_at = math.inf
        if self.core.register(message, time.monotonic()):
            if known is not None and key in self.peers:
                self.peers.pop(key).close(drop=True)
            try:
                self.peers[key] = Outbox(self.context, message.inbox, self._envelope)
            except zmq.ZMQError:
                self.core.nodes.pop(key, None)
                self.inbox.bad += 1
                return
            self._publish()
        elif key in self.peers:
            self.peers[key].send(self.core.topology())

    def _on_registry_beat(self, message: wire.Beat) -> None:
        self.core.beat(message, time.monotonic())

    def _on_registry_gone(self, message: wire.Gone) -> None:
        if self.core.gone(message):
            self._drop((message.role, message.index), leave=False)  # a driver that says so itself leaves us to the next

    def _drop(self, key: Address, *, leave: bool = True) -> None:
        outbox = self.peers.pop(key, None)
        if outbox is not None:
            outbox.close(drop=True)
        if key[0] == Role.DRIVER and leave:
            self._leaving = True  # one run, one registry: without its driver it has no purpose
        self._publish()

    def _publish(self) -> None:
        topology = self.core.topology()
        for outbox in self.peers.values():
            outbox.send(topology)

    def _beat(self, now: float) -> None:
        self.core.excuse(now, now - self._next_beat)
        self._next_beat = now + BEAT_S
        beat = wire.Beat(self.role, self.index, self.incarnation)
        for outbox in self.peers.values():
            outbox.send(beat)
        before = set(self.core.nodes)
        if self.core.expire(now, spare=() if self._parent_fd is None else (DRIVER,)):
            for key in before - set(self.core.nodes):
                self._drop(key)
        if self._parent_died() or now >= self._leave_at:
            self._leaving = True


def main(arguments: list[str] | None = None) -> int:
    """Run the registry."""
    return run(
        "harness.registry", Role.REGISTRY, Registry, "Bootstrap registry of the prefill/decode hand-off.", arguments
    )


if __name__ == "__main__":
    sys.exit(main())
