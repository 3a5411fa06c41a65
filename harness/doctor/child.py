"""Probes that load native code: each runs in a process of its own, which may crash or hang without harm.

`python -m harness.doctor.child NAME` prints what it saw as one JSON object.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from harness.releases.overlay import DIES_WITH_US

LIMIT_S = 60.0
"""Of one probe: importing torch takes two to six seconds here, many times that on a busy machine."""


def ask(name: str, *arguments: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """What the probe `name` saw; `error` in one line where it raised, crashed or took longer than `limit_s`.

    It stays in the terminal's process group, so that Ctrl-C ends it with us.
    """
    command = [sys.executable, "-c", DIES_WITH_US, "-m", __name__, name, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:  # fmt: skip
        try:
            said, complaints = process.communicate(timeout=limit_s)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return {"error": f"no answer within {limit_s:g} s"}
            raise
    return _answer(process.returncode, said, complaints)


def _answer(code: int, said: str, complaints: str) -> dict[str, Any]:
    lines = said.strip().splitlines()
    if code == 0 and lines:
        with contextlib.suppress(ValueError):
            return dict(json.loads(lines[-1]))
    if code < 0:
        return {"error": f"it crashed: {_signal(-code)}"}
    last = [line for line in complaints.splitlines() if line.strip()][-1:] or [f"exit {code}"]
    return {"error": last[0].strip()[:300]}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def torch() -> dict[str, Any]:
    """Version, and for what it was built."""
    module: Any = importlib.import_module("torch")
    return {
        "version": module.__version__,
        "cuda": module.version.cuda or "",
        "hip": getattr(module.version, "hip", None) or "",
    }


def pyzmq() -> dict[str, Any]:
    """Versions, after a message went through."""
    import zmq  # noqa: PLC0415

    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        push.linger = pull.linger = 0
        pull.bind(address := f"ipc://@handoff-doctor-{os.getpid()}")
        push.connect(address)
        push.send(b"x")
        if not pull.poll(10_000):
            raise TimeoutError("a message over a Unix socket did not arrive within 10 s")
    return {"version": zmq.pyzmq_version(), "libzmq": zmq.zmq_version()}


def real_time() -> dict[str, Any]:
    """Whether a thread may ask for SCHED_RR."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return {"permitted": False}
    return {"permitted": True}


def gloo() -> dict[str, Any]:
    """A group of one rank."""
    dist: Any = importlib.import_module("torch.distributed")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return {}


def ibverbs() -> dict[str, Any]:
    """Where libibverbs comes from."""
    import ctypes  # noqa: PLC0415

    from harness.releases import ibverbs as library  # noqa: PLC0415

    with contextlib.suppress(OSError):
        ctypes.CDLL(library.LIBRARIES[-1])
        return {"source": "system"}
    library.load()
    return {"source": "cache"}


def mooncake(version: str) -> dict[str, Any]:
    """Load a release from the cache."""
    from harness.releases import engines  # noqa: PLC0415

    engines.load("mooncake", version)
    return {}


def nixl(version: str) -> dict[str, Any]:
    """Load a release from the cache and start its UCX backend."""
    from harness.transport import nixl as transport  # noqa: PLC0415

    transport.make_agent(version, transport.NAME)
    return {}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    probe.__name__: probe for probe in (torch, pyzmq, real_time, gloo, ibverbs, mooncake, nixl)
}


def main(arguments: list[str]) -> None:
    """Print what the probe saw, and end at once: native threads may never end by themselves."""
    try:
        seen = PROBES[arguments[0]](*arguments[1:])
    except Exception as error:  # noqa: BLE001  whatever a native library raises is the answer
        seen = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    print("\n" + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
