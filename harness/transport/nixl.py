"""NIXL with its UCX backend, over TCP (`nixl-tcp`) or shared memory of one host (`nixl-shm`): one-sided writes into registered memory.

A write is done when it is visible at the target. Over TCP the target's process has to take part in UCX's progress, and a thread of it
does; over shared memory the kernel copies (CMA) and nobody at the target takes part. NIXL gives no order within a write.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
from harness.transport.engine import EngineChannel, EngineTarget, Part, PeerGone, Staging, address_of, lifeline

NAME = "nixl"
PLANES = {"nixl": "tcp,self", "nixl-tcp": "tcp,self", "nixl-shm": "shm,cma,self,tcp"}
"""UCX_TLS of each transport, where the user has not set it. Over shared memory, too, UCX makes its connections by tcp."""
PARTS_MAX = 1000
TRANSFER_TIMEOUT_S = 30.0
"""NIXL has none: a transfer to a stopped peer stays in progress for ever."""
SPINS = 200
"""Looks at a transfer before its thread begins to sleep in between."""
USER_PLANE = os.environ.get("UCX_TLS")


def make_agent(version: str, plane: str) -> Any:
    """An agent with a name of its own; raises HarnessError when the release cannot be loaded or UCX does not start."""
    api = engines.load(NAME, version)
    os.environ["UCX_TLS"] = USER_PLANE or PLANES[plane]
    settings = api.nixl_agent_config(enable_prog_thread=False, enable_listen_thread=False, backends=["UCX"])
    with _explained(f"{NAME}=={version}: no agent"):
        agent = api.nixl_agent(f"handoff-{os.getpid()}-{secrets.token_hex(8)}", settings)
        if "UCX" not in agent.backends:
            raise HarnessError(f"{NAME}=={version}: its UCX backend did not start")
        return agent


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """NIXL's errors, which have no base of their own, as HarnessError."""
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:
        raise HarnessError(f"{what}: {error}") from error


class NixlMover:
    """One agent with its staging memory."""

    def __init__(self, agent: Any, metadata: bytes, base: int) -> None:
        """Register the staging memory and take the peer's metadata in; raises TransportError for what is none."""
        self.staging = Staging()
        self._agent, self._base = agent, base
        self._source = self.staging.address
        with _explained(f"{NAME}: staging memory"):
            self._memory = agent.register_memory([(self._source, self.staging.size_bytes, 0, "")], "DRAM")
        try:
            self._peer = agent.add_remote_agent(metadata)
        except Exception as error:
            raise TransportError(f"not the metadata of a {NAME} agent: {error}") from error

    def move(self, parts: Sequence[Part], gone: Callable[[], bool]) -> bool:
        """Transfers of PARTS_MAX blocks at most; raises PeerGone when one fails or does not end in TRANSFER_TIMEOUT_S."""
        for at in range(0, len(parts), PARTS_MAX):
            try:
                self._transfer(parts[at : at + PARTS_MAX], gone)
            except PeerGone:
                raise
            except Exception as error:
                raise PeerGone(str(error)) from error
        return True

    def _transfer(self, parts: Sequence[Part], gone: Callable[[], bool]) -> None:
        if gone():
            raise PeerGone("its lifeline broke")
        agent, source, base = self._agent, self._source, self._base
        ours = agent.get_xfer_descs([(source + start, size, 0) for _, start, size in parts], "DRAM")
        theirs = agent.get_xfer_descs([(base + offset, size, 0) for offset, _, size in parts], "DRAM")
        handle = agent.initialize_xfer("WRITE", ours, theirs, self._peer, b"")
        try:
            self._wait(handle, agent.transfer(handle), gone)
        finally:
            with contextlib.suppress(Exception):  # still in progress: NIXL keeps it, and this channel is over
                agent.release_xfer_handle(handle)

    def _wait(self, handle: Any, state: str, gone: Callable[[], bool]) -> None:
        """Nothing moves unless it is asked for."""
        looks = 0
        deadline = time.monotonic() + TRANSFER_TIMEOUT_S
        while state == "PROC":
            looks += 1
            time.sleep(0 if looks < SPINS else 5e-5)  # also lets the other threads of this process run
            state = self._agent.check_xfer_state(handle)
            if time.monotonic() > deadline or (looks > SPINS and gone()):
                raise PeerGone(f"not done within {TRANSFER_TIMEOUT_S:g} s, or its lifeline broke")
        if state != "DONE":
            raise PeerGone(f"the engine answered {state}")

    def close(self) -> None:
        """Give everything back; whatever is not possible any more is left to the process's end."""
        with contextlib.suppress(Exception):
            self._agent.remove_remote_agent(self._peer)
        with contextlib.suppress(Exception):
            self._agent.deregister_memory(self._memory)
        self._agent = None
        self.staging.close()


class _Progress(threading.Thread):
    """Lets UCX apply what has come to the target: NIXL's own thread takes a whole core, also when nothing comes."""

    PAUSE_S = 1e-4

    def __init__(self, agent: Any) -> None:
        super().__init__(name="nixl", daemon=True)
        self._agent = agent
        self._closing = threading.Event()
        self.start()

    def run(self) -> None:
        agent = self._agent
        while not self._closing.wait(self.PAUSE_S):
            agent.get_new_notifs()

    def close(self) -> None:
        """End it."""
        self._closing.set()
        self.join()
        self._agent = None


class NixlTransport:
    """`--transport nixl-tcp` and `nixl-shm`; `nixl` is `nixl-tcp`."""

    refuses = False
    lacks = frozenset({Lack.ORDER})

    def __init__(self, name: str, version: str) -> None:
        """Nothing is loaded yet."""
        self.name, self.version = name, version

    def done(self, settings: TransportSettings) -> Done:
        """Visible, but for what the seed makes late."""
        return Done.LEFT if settings.late_fraction and not settings.ack else Done.VISIBLE

    def target(
        self, settings: TransportSettings, memory: MemoryLike, owners: Ownership, seed: int, recorder: RecorderFactory
    ) -> Target:
        """Register the region; raises HarnessError, OSError."""
        del owners, seed, recorder
        agent = make_agent(self.version, self.name)
        base = address_of(memory.view)
        with _explained(f"{NAME}: {memory.size_bytes} bytes could not be registered"):
            registered = agent.register_memory([(base, memory.size_bytes, 0, "")], "DRAM")
            metadata = agent.get_agent_metadata().hex()
        where = {
            "engine": self.name,
            "version": self.version,
            "metadata": metadata,
            "base": base,
            "size": memory.size_bytes,
        }
        progress = _Progress(agent)

        def close() -> None:
            nonlocal agent
            progress.close()
            if agent is not None:
                with contextlib.suppress(Exception):
                    agent.deregister_memory(registered)
            agent = None

        return EngineTarget(settings.host, where, close)

    def channel(self, settings: TransportSettings, descriptor: bytes, seed: int, recorder: RecorderFactory) -> Channel:
        """Take the target's metadata in; raises TransportError."""
        with contextlib.ExitStack() as stack:
            try:
                where = json.loads(descriptor)
                metadata, base, size = bytes.fromhex(where["metadata"]), int(where["base"]), int(where["size"])
                line = stack.enter_context(lifeline(str(where["host"]), int(where["port"])))
            except (ValueError, KeyError, TypeError) as error:
                raise TransportError(f"not a descriptor of {NAME}: {error!r}") from error
            agents = [make_agent(self.version, self.name) for _ in range(settings.connections)]
            movers = [NixlMover(agent, metadata, base) for agent in agents]
            channel = EngineChannel(settings, seed, recorder, movers, line, size, observes=True)
            stack.pop_all()
            return channel
