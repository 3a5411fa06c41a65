"""Two network namespaces and the link between them: the nodes of one role are as on another host, and all that they send crosses the link.

Control plane and data plane alike. The registry, the driver and the nodes of the other role are on the near side.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from multiprocess import Pipe

from harness.children import spawn
from harness.errors import FieldError, HarnessError, UnavailableError
from harness.faults.catalogue import parse_all
from harness.history.event import FaultKind
from harness.node import namespace
from harness.node.link import CLEAR, DEVICE, FAR, NEAR, Weather, carry
from harness.scenario import Scenario

READY_S = 60.0
PORTS = {"registry": 5000, "driver": 5001, "prefill": 6000, "decode": 7000}
"""In namespaces of our own every port is free."""
ELSEWHERE = ("shm", "nixl", "nixl-shm", "nixl-tcp")
"""Transports that do not cross the link: memory is of one host, and UCX looks for devices in the file system, which has those of the namespace that mounted it."""


def far_role(scenario: Scenario) -> str:
    """Whose nodes are behind the link: `prefill` or `decode`; empty where no fault is one of the link. Raises FieldError."""
    roles = {fault.s("node") for fault in parse_all(scenario.faults) if fault.kind.number is FaultKind.LINK}
    if len(roles) > 1:
        raise FieldError("faults", "link", "one `node` for all faults of the link")
    name = scenario.transport.name
    if roles and name in ELSEWHERE:
        raise FieldError("transport.name", name, "tcp, gloo or mooncake where a fault is of the link")
    return roles.pop() if roles else ""


def require(scenario: Scenario) -> None:
    """Raise UnavailableError where a fault of the scenario is one of the link and none can be made here; FieldError as `far_role`."""
    if not far_role(scenario):
        return
    found: list[UnavailableError] = []
    tried = threading.Thread(target=_try, args=(found,), name="link")
    tried.start()
    tried.join()
    if found:
        raise found[0]


def _try(found: list[UnavailableError]) -> None:
    """On a thread of its own: what it makes goes with it."""
    try:
        namespace.fresh()
        os.close(namespace.tun(DEVICE))
    except UnavailableError as error:
        found.append(error)


class Link:
    """Use as a context manager, on the thread that starts the processes: inside, that thread is in the near namespace."""

    def __init__(self, far: str, logs: Path) -> None:
        """Behind it will be the nodes of the role `far`; what its process says goes to `logs`."""
        self.far = far
        self._logs = logs
        self._home = -1
        self._line: Any = None
        self._process: Any = None

    def __enter__(self) -> Self:
        """Make both namespaces and the link; raises UnavailableError where that is not allowed, with everything as it was."""
        self._logs.mkdir(parents=True, exist_ok=True)
        self._home = namespace.current()
        try:
            namespace.fresh()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        self._line, other = Pipe()
        with contextlib.closing(other):
            self._process = spawn("handoff link", carry, other, str(self._logs / "link.log"))
        try:
            problem = self._line.recv() if self._line.poll(READY_S) else f"no answer within {READY_S:g} s"
        except EOFError:
            problem = f"it ended; see {self._logs}"
        if problem:
            raise UnavailableError(f"link: {problem}")

    @property
    def pid(self) -> int:
        """Of the link's process, which is in the far namespace."""
        return int(self._process.pid)

    def is_far(self, who: str) -> bool:
        """Whether `who` (`decode-0`) is behind the link."""
        return who.partition("-")[0] == self.far

    def address(self, who: str) -> str:
        """ZMQ address of `who`."""
        role, _, index = who.partition("-")
        return f"tcp://{FAR if self.is_far(who) else NEAR}:{PORTS[role] + int(index or 0)}"

    def change(self, weather: Weather = CLEAR) -> None:
        """What the link does from now on; raises HarnessError when its process has ended."""
        try:
            self._line.send(weather)
        except OSError as error:
            raise HarnessError(f"link: it has ended: {error}") from error

    def close(self) -> None:
        """End the link and go back to the namespace before."""
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.join(READY_S)
            self._process.kill()
            self._process.join()
            self._process.close()
        namespace.enter(self._home)
        os.close(self._home)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
