"""Starts and supervises local node processes: `multiprocess` (spawn), logs, exit codes, an end that leaves nothing behind."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from multiprocess.connection import wait

from harness.children import spawn
from harness.history.event import Role
from harness.link import Link
from harness.node.entry import launch
from harness.node.nursery import Order
from harness.nursery import MODULES, Nursery

PROGRAMS = {Role.PREFILL: "prefill_stub", Role.DECODE: "decode_node", Role.REGISTRY: "harness.registry"}
GRACE_S = 3.0


@dataclass
class Member:
    """One node process that this cluster started."""

    role: Role
    index: int
    incarnation: int
    process: Any
    log: Path
    expected: bool = False
    """The driver or a fault asked for its end."""
    reaped: bool = False
    exit_code: int | None = None

    @property
    def name(self) -> str:
        """`decode-0`."""
        return f"{self.role.name.lower()}-{self.index}"


@dataclass
class Cluster:
    """A registry and the nodes of one topology on this machine. Use as a context manager: leaving it ends every process.

    Addresses are abstract Unix sockets with a random name: two clusters never meet, nothing is left in a file system.
    """

    prefill: int
    decode: int
    logs: Path
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    members: list[Member] = field(default_factory=list)
    nursery: Nursery | None = None
    """Where nodes are forked, once somebody asked for it; None: each is started as a new interpreter."""

    link: Link | None = None
    """What lies between the nodes of one role and all others; None: they are on one host."""

    def address(self, who: str) -> str:
        """ZMQ address of `who` in this cluster."""
        if self.link is not None:
            return self.link.address(who)
        return f"ipc://@handoff-{self.name}-{who}"

    @property
    def registry(self) -> str:
        """ZMQ address of the bootstrap registry."""
        return self.address("registry")

    def __enter__(self) -> Self:
        """Start every process; raises HarnessError when one cannot be started."""
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            self.start(Role.REGISTRY, 0)
            for role, count in ((Role.DECODE, self.decode), (Role.PREFILL, self.prefill)):
                for index in range(count):
                    self.start(role, index)
        except BaseException:
            self.stop(grace_s=0.0)
            raise
        return self

    def start(self, role: Role, index: int, incarnation: int = 1) -> Member:
        """Start one process."""
        name = f"{role.name.lower()}-{index}"
        log = self.logs / f"{name}.log"
        arguments = [
            "--registry", self.registry, "--inbox", self.registry if role is Role.REGISTRY else self.address(name),
            "--index", str(index), "--incarnation", str(incarnation), "--cluster", self.name,
        ]  # fmt: skip
        beside = self.link.pid if self.link is not None and self.link.is_far(name) else 0
        order = Order(name, PROGRAMS[role], arguments, str(log), beside)
        process = spawn(f"handoff {name}", launch, *order[1:]) if self.nursery is None else self.nursery.start(order)
        member = Member(role, index, incarnation, process, log)
        self.members.append(member)
        return member

    def hasten(self) -> None:
        """Have nodes start in a fraction of a second from now on; returns when they can. Where the imports start threads they still take seconds."""
        if self.nursery is not None:
            return
        self.logs.mkdir(parents=True, exist_ok=True)
        nursery = Nursery(self.logs / "nursery.log", MODULES)
        usable = False
        try:
            usable = nursery.usable()
        finally:
            if not usable:
                nursery.close()
        self.nursery = nursery if usable else None

    def ended(self) -> list[Member]:
        """Processes that have ended since the last call, each reported once."""
        self._forget_replaced()
        alive = {member.process.sentinel: member for member in self.members if not member.reaped}
        found = []
        for sentinel in wait(list(alive), 0) if alive else []:
            member = alive[sentinel]
            member.process.join()
            member.exit_code = member.process.exitcode
            member.reaped = True
            found.append(member)
        return found

    def _forget_replaced(self) -> None:
        """Let go of ended processes that were started anew, and of their descriptors: a run may restart nodes a thousand times."""
        newest = {(member.role, member.index): member for member in self.members}
        for member in [member for member in self.members if member.reaped]:
            if newest[member.role, member.index] is not member:
                member.process.close()
                self.members.remove(member)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End every process: those that were told to leave get `grace_s`, then SIGTERM, then SIGKILL; all are reaped."""
        deadline = time.monotonic() + grace_s
        for step in ("leave", "terminate", "kill"):
            for member in self.members:
                if step != "leave" and member.process.is_alive():
                    getattr(member.process, step)()
            for member in self.members:
                member.process.join(max(deadline - time.monotonic(), 0.0))
            deadline = time.monotonic() + (1.0 if step == "leave" else GRACE_S)
        self.ended()
        if self.nursery is not None:
            self.nursery.close()
            self.nursery = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process; at once when leaving on an error."""
        self.stop(GRACE_S if kind is None else 0.0)


@dataclass
class External:
    """Nodes that somebody else started, perhaps on other hosts; they leave when the run ends, but are not watched as processes.

    `registry` is the bootstrap registry's ZMQ address, `inbox` the one that the driver binds (peers must reach it as written),
    `name` the `--cluster` of all of them.
    """

    registry: str
    inbox: str
    name: str
    logs: Path
    members: list[Member] = field(default_factory=list)

    def address(self, who: str) -> str:
        """The only address that is given here is the driver's."""
        assert who == "driver"
        return self.inbox

    def ended(self) -> list[Member]:
        """Nothing is known of their processes: a heartbeat that stops is what shows their end."""
        return []

    def __enter__(self) -> Self:
        """Nothing to start."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""


def log_tail(path: Path, lines: int = 3) -> str:
    """The last lines of a log, in one."""
    try:
        text = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return " | ".join(text[-lines:])
