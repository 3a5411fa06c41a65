"""Command line that all node programs share, and the start from a parent by `multiprocess`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence

from harness.errors import EXIT_HARNESS, EXIT_USAGE
from harness.history.event import Role
from harness.node.shell import Shell

_PR_SET_PDEATHSIG = 1
LOCAL_ONLY = "tcp://127.0.0.1:*"


def cluster_tag(name: str) -> int:
    """64 bits for a cluster's name: in every envelope, so that two clusters on one network never mix."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Options of a node that is started by hand."""
    options = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    options.add_argument("--registry", required=True, metavar="ADDRESS", help="ZMQ address of the bootstrap registry")
    options.add_argument(
        "--inbox", default=LOCAL_ONLY, metavar="ADDRESS",
        help="ZMQ address to bind; peers must reach it as written (default %(default)s, loopback only)",
    )  # fmt: skip
    options.add_argument("--index", type=int, default=0, help="number of this node among those of its role (default 0)")
    options.add_argument("--incarnation", type=int, default=1, help="counts restarts of this node (default 1)")
    options.add_argument(
        "--cluster", default="handoff", metavar="NAME", help="name that all processes of a cluster share"
    )
    return options


Maker = Callable[..., Shell]


def run(program: str, role: Role, make: Maker, description: str, arguments: Sequence[str] | None = None) -> int:
    """Parse, build the shell, serve; returns the exit code."""
    options = parser(program, description).parse_args(arguments)
    if options.index < 0 or options.incarnation < 1:
        print(f"{program}: --index must be 0 or more and --incarnation 1 or more", file=sys.stderr)
        return EXIT_USAGE
    _title(f"handoff {program} {options.index} registry={options.registry}")
    import zmq  # noqa: PLC0415  after the title, so that a slow import already shows under its name

    try:
        shell = make(
            role, options.index, registry=options.registry, inbox=options.inbox,
            cluster=cluster_tag(options.cluster), incarnation=options.incarnation, parent_fd=_parent_fd(),
        )  # fmt: skip
    except zmq.ZMQError as error:
        print(f"{program}: inbox {options.inbox}: {error}", file=sys.stderr)
        return EXIT_HARNESS
    shell.serve()
    return 0


def _title(text: str) -> None:
    try:
        from setproctitle import setproctitle  # noqa: PLC0415  optional beside a hosted engine
    except ImportError:
        return
    setproctitle(text)


def _parent_fd() -> int | None:
    """Sentinel of the `multiprocess` parent: readable when it has died, however it died."""
    from multiprocess.process import parent_process  # noqa: PLC0415  not the standard library's: another parent

    parent = parent_process()
    return None if parent is None else int(parent.sentinel)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def launch(module: str, arguments: list[str], log: str, *, die_with_thread: bool) -> None:
    """Target of a `multiprocess` child: run a node program as `python -m` would, its output appended to `log`.

    Nodes run under SCHED_BATCH: on few cores a process that a message wakes shall not push the one that sends to it off its core after
    each message (12 % of the rate on two cores). `die_with_thread` has the kernel kill the child when the parent's starting thread ends: even a stopped child leaves no orphan.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if die_with_thread:
        die_with_parent()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=False)
