"""Command line that all node programs share, and the start from a parent by `multiprocess`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.errors import EXIT_HARNESS, EXIT_USAGE, HandoffError
from harness.history.event import Role
from harness.node import namespace
from harness.node.address import AUTO, cluster_tag, own, resolved
from harness.node.ask import claim_index
from harness.node.shell import Shell

__all__ = ["cluster_tag", "launch", "parser", "run", "settle", "title"]
CLAIM_TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1
LOCAL_ONLY = "tcp://127.0.0.1:*"


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Options of a node that is started by hand."""
    options = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    options.add_argument("--registry", required=True, metavar="ADDRESS", help="ZMQ address of the bootstrap registry")
    options.add_argument(
        "--inbox", default=LOCAL_ONLY, metavar="ADDRESS",
        help="ZMQ address to bind; peers must reach it as written (default %(default)s, loopback only). "
        "tcp://auto:PORT is the address by which this host reaches the registry",
    )  # fmt: skip
    options.add_argument(
        "--data-host", metavar="HOST", help="address for data connections; peers must reach it (default: the inbox's)"
    )
    options.add_argument(
        "--shm-dir", type=Path, metavar="DIR",
        help="where memory that peers map gets a name, for peers in another pid namespace, for example /dev/shm (default: none)",
    )  # fmt: skip
    options.add_argument(
        "--index", type=_index, default=0, metavar="N",
        help="number of this node among those of its role (default 0); auto: the registry gives out the lowest that is free",
    )  # fmt: skip
    options.add_argument("--incarnation", type=int, default=1, help="counts restarts of this node (default 1)")
    options.add_argument(
        "--cluster", default="handoff", metavar="NAME", help="name that all processes of a cluster share"
    )
    return options


def _index(text: str) -> int | str:
    return text if text == AUTO else int(text)


Maker = Callable[..., Shell]


def run(program: str, role: Role, make: Maker, description: str, arguments: Sequence[str] | None = None) -> int:
    """Parse, build the shell, serve; returns the exit code."""
    options = parser(program, description).parse_args(arguments)
    if (options.index != AUTO and options.index < 0) or options.incarnation < 1:
        print(f"{program}: --index must be 0 or more (or auto) and --incarnation 1 or more", file=sys.stderr)
        return EXIT_USAGE
    title(f"handoff {program} {options.index} registry={options.registry}")
    import zmq  # noqa: PLC0415  after the title, so that a slow import already shows under its name

    cluster = cluster_tag(options.cluster)
    try:
        registry, index = resolved(options.registry), options.index
        inbox = own(options.inbox, registry)
        if index == AUTO:
            index = claim_index(registry, cluster, role, CLAIM_TIMEOUT_S)
        shell = make(
            role, index, registry=registry, inbox=inbox, cluster=cluster, incarnation=options.incarnation,
            parent_fd=_parent_fd(), data_host=options.data_host, shm_dir=options.shm_dir,
        )  # fmt: skip
    except zmq.ZMQError as error:
        print(f"{program}: inbox {options.inbox}: {error}", file=sys.stderr)
        return EXIT_HARNESS
    except HandoffError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    shell.serve()
    if shell.abrupt:  # threads of a hosted engine never end by themselves, and would keep the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def title(text: str) -> None:
    """What `ps` shows of this process, where the package for that is there."""
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


def _show_stacks(*_: object) -> None:
    """A node that hangs can be asked where; it answers into its log.

    Under the GIL, so that no other thread is in the middle of its frames: `faulthandler.register` looks at once, and a process can die of that.
    """
    faulthandler.dump_traceback()


def settle(log: str, *, die_with_thread: bool) -> None:
    """Prepare a child process of the harness: how it is scheduled, when it dies, and that its output is appended to `log`.

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
    signal.signal(signal.SIGUSR1, _show_stacks)


def launch(module: str, arguments: list[str], log: str, beside: int = 0, *, die_with_thread: bool) -> None:
    """Target of a `multiprocess` child: run a node program as `python -m` would, its output appended to `log`.

    `beside`: the process in whose network namespace it runs; 0: in that of its parent.
    """
    settle(log, die_with_thread=die_with_thread)
    if beside:
        namespace.enter_that_of(beside)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=False)
