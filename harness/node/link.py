"""The process that is the link between two network namespaces: it holds a device in each and carries every packet, late or not at all."""

from __future__ import annotations

import heapq
import os
import random
import select
import signal
import time
from contextlib import suppress
from typing import Any, NamedTuple

from harness.errors import UnavailableError
from harness.node import entry, namespace

DEVICE = "link"
NEAR, FAR = "10.11.12.1", "10.11.12.2"
"""Only these two namespaces know them."""
MTU_BYTES = 16_000
PACKETS_MAX = 16_384
"""On their way at once; more are lost, as in a router."""
TURN_PACKETS = 64
IDLE_S = 0.2


class Weather(NamedTuple):
    """What the link does to packets, both ways: each is lost with `loss` (1: the link is cut), else late by `delay_s`."""

    delay_s: float = 0.0
    loss: float = 0.0


CLEAR = Weather()


def carry(line: Any, log: str, *, die_with_thread: bool) -> None:
    """Target of a `multiprocess` child: make the far namespace and both devices, say so (or why not), and carry packets until `line` is closed.

    What comes on `line` is the `Weather` from then on.
    """
    entry.settle(log, die_with_thread=die_with_thread)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    entry.title("handoff link")
    try:
        ends = _ends()
    except (UnavailableError, OSError) as error:
        line.send(str(error))
        return
    line.send("")
    with suppress(EOFError, OSError):
        Link(*ends).serve(line)


def _ends() -> tuple[int, int]:
    near = namespace.tun(DEVICE)
    namespace.up(DEVICE, NEAR, MTU_BYTES)
    namespace.fresh()
    far = namespace.tun(DEVICE)
    namespace.up(DEVICE, FAR, MTU_BYTES)
    return near, far


class Link:
    """Carries packets between two non-blocking descriptors, one read a packet."""

    def __init__(self, near: int, far: int) -> None:
        """Nothing is on its way."""
        self.weather = CLEAR
        self._other = {near: far, far: near}
        self._way: list[tuple[float, int, int, bytes]] = []
        self._serial = 0
        self._random = random.Random(1)

    def serve(self, line: Any) -> None:
        """Until `line` is closed; raises EOFError or OSError then."""
        while True:
            wait_s = min(max(self._way[0][0] - time.monotonic(), 0.0), IDLE_S) if self._way else IDLE_S
            for ready in select.select([*self._other, line], [], [], wait_s)[0]:
                if ready is line:
                    self.weather = line.recv()
                else:
                    self.take(ready, time.monotonic())
            self.deliver(time.monotonic())

    def take(self, end: int, now: float) -> None:
        """Read what has come at `end`, at most TURN_PACKETS, and lose it or put it on its way."""
        for _ in range(TURN_PACKETS):
            try:
                packet = os.read(end, MTU_BYTES)
            except BlockingIOError:
                return
            if len(self._way) < PACKETS_MAX and self._random.random() >= self.weather.loss:
                self._serial += 1
                heapq.heappush(self._way, (now + self.weather.delay_s, self._serial, self._other[end], packet))

    def deliver(self, now: float) -> None:
        """Write out what is due."""
        while self._way and self._way[0][0] <= now:
            _, _, end, packet = heapq.heappop(self._way)
            with suppress(OSError):  # a full device loses it
                os.write(end, packet)
