"""Mooncake's transfer engine, any release, over its TCP protocol: one-sided writes into decode's registered memory.

Up to 0.3.11.post1 a write has returned when its bytes left the sender; from 0.3.12 when the target acknowledged it (MC_TCP_PROTO=1 brings
the old protocol back). Each process listens on two ports, on all interfaces: Mooncake offers no other way.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packaging.version import Version

from harness.errors import HarnessError
from harness.protocol.settings import TransportSettings
from harness.releases import engines
from harness.transport.base import (
    Channel,
    Done,
    Lack,
    MemoryLike,
    Ownership,
    RecorderFactory,
    Target,
    TransportError,
)
from harness.transport.engine import (
    EngineChannel,
    EngineTarget,
    Part,
    PeerGone,
    Staging,
    address_of,
    lifeline,
)

NAME = "mooncake"
ACKNOWLEDGES_FROM = Version("0.3.12")
"""Seen: a write to a stopped peer returned success at once in 0.3.7.post2 to 0.3.11.post1, and waited from 0.3.12 on."""

BATCH_PARTS_MAX = 128
"""A block takes about 0.1 ms on a quiet machine, and the engine gives a call up after MC_TRANSFER_TIMEOUT seconds."""


def acknowledges(version: str) -> bool:
    """Whether a write of that release has returned only when it is visible, as declared; `handoff probe` measures it."""
    return Version(version) >= ACKNOWLEDGES_FROM and os.environ.get("MC_TCP_PROTO") != "1"


CALL_TIMEOUT_S = 60.0


class _Calls:
    """Calls into engines of this process that are under way: an engine is not ended while another one may be writing to it.

    0.3.10.post2 ends the process (SIGSEGV, or an exception that nobody catches) when it is. Of another process's end it only says -1.
    """

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        """No call is under way inside, nor begins; waits for those that are, which the engine bounds by MC_TRANSFER_TIMEOUT."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count, CALL_TIMEOUT_S)
            yield


_calls = _Calls()


def _engine(version: str, host: str) -> Any:
    """A transfer engine of that release; raises HarnessError when it cannot be loaded or does not start."""
    engine = engines.load(NAME, version).TransferEngine()
    code = engine.initialize(host, "P2PHANDSHAKE", "tcp", "")
    if code:
        raise HarnessError(f"{NAME}=={version}: initialize answered {code}")
    return engine


def _register(engine: Any, address: int, size_bytes: int) -> None:
    if engine.register_memory(address, size_bytes):
        raise HarnessError(f"{NAME}: {size_bytes} bytes could not be registered")


class MooncakeMover:
    """One staging memory of a transfer engine that the channel's movers share."""

    def __init__(self, engine: Any, session: str, base: int) -> None:
        """Register the staging memory; `base` is the address of the target's region there. Raises HarnessError."""
        self.staging = Staging()
        self._engine, self._session, self._base = engine, session, base
        _register(engine, self.staging.address, self.staging.size_bytes)

    def move(self, parts: Sequence[Part], gone: Callable[[], bool]) -> bool:
        """Batches of writes; raises PeerGone when the engine says that one failed."""
        source, base = self.staging.address, self._base
        for at in range(0, len(parts), BATCH_PARTS_MAX):
            batch = parts[at : at + BATCH_PARTS_MAX]
            with _calls:
                if gone():  # some releases end the process when they are asked to write to what is not there
                    raise PeerGone("its lifeline broke")
                code = self._engine.batch_transfer_sync_write(
                    self._session,
                    [source + start for _, start, _ in batch],
                    [base + offset for offset, _, _ in batch],
                    [size for _, _, size in batch],
                )
            if code:
                raise PeerGone(f"the engine answered {code}")
        return True

    def close(self) -> None:
        """Take the staging memory from the engine; the last mover takes the engine along."""
        with _calls.none():
            self._engine.unregister_memory(self.staging.address)
            self._engine = None
        self.staging.close()


class MooncakeTransport:
    """`--transport mooncake==VERSION`."""

    name = NAME
    refuses = False

    def __init__(self, version: str) -> None:
        """Nothing is loaded yet."""
        self.version = version
        acked = acknowledges(version)
        self.lacks = frozenset({Lack.ORDER} if acked else {Lack.ORDER, Lack.ACK, Lack.RECORDS})

    def done(self, settings: TransportSettings) -> Done:
        """By the release; see `acknowledges`."""
        late = settings.late_fraction and not settings.ack
        return Done.LEFT if Lack.ACK in self.lacks or late else Done.VISIBLE

    def target(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> Target:
        """Register the region; raises HarnessError, OSError."""
        del owners, seed, recorder
        held = [_engine(self.version, settings.host)]
        base = address_of(memory.view)
        _register(held[0], base, memory.size_bytes)
        session = f"{settings.host}:{held[0].get_rpc_port()}"
        where = {"engine": NAME, "version": self.version, "session": session, "base": base, "size": memory.size_bytes}

        def close() -> None:
            with _calls.none():
                while held:
                    held.pop().unregister_memory(base)

        return EngineTarget(settings.host, where, close)

    def channel(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> Channel:
        """Reach the target; its engine is reached by the first write. Raises TransportError."""
        with contextlib.ExitStack() as stack:
            try:
                where = json.loads(descriptor)
                session, base, size = str(where["session"]), int(where["base"]), int(where["size"])
                line = stack.enter_context(lifeline(str(where["host"]), int(where["port"])))
            except (ValueError, KeyError, TypeError) as error:
                raise TransportError(f"not a descriptor of {NAME}: {error!r}") from error
            engine = _engine(self.version, settings.host)
            movers = [MooncakeMover(engine, session, base) for _ in range(settings.connections)]
            observes = Lack.RECORDS not in self.lacks
            channel = EngineChannel(settings, seed, recorder, movers, line, size, observes=observes)
            stack.pop_all()
            return channel
