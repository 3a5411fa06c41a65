"""A process that has imported what every node imports, and forks nodes from itself: a killed node is back in a fraction of a second.

A new interpreter needs seconds until torch is there. Forking is safe here because nothing was started before it: the nursery has one
thread (it says how many), no ZMQ context, no socket but the one to the process that asked for it. It ends, and its nodes with it, when
the other end of that socket is closed, however its owner died.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from multiprocess import get_context

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Numpy's OpenBLAS starts its threads when it is imported: so nothing that imports numpy may be imported here before these are set."""


class Order(NamedTuple):
    """Fork a node, as `harness.node.entry.launch` says: answered with its process id. A process id alone asks to reap it: answered with its exit code."""

    name: str
    module: str
    arguments: list[str]
    log: str
    beside: int = 0


def serve(line: Any, modules: Sequence[str], log: str, *, die_with_thread: bool) -> None:
    """Target of a `multiprocess` child: import `modules`, say how many threads there are, and fork until `line` is closed."""
    os.environ.update(ONE_THREAD)
    from harness.node import entry  # noqa: PLC0415

    entry.settle(log, die_with_thread=die_with_thread)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # both may go to the whole group; the driver decides
    entry.title("handoff nursery")
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a node would copy every page that it looks at
    line.send(sum(1 for _ in Path("/proc/self/task").iterdir()))
    nodes: dict[int, Any] = {}
    try:
        while True:
            _obey(line, line.recv(), nodes)
    except (EOFError, OSError):
        for node in nodes.values():
            node.kill()


def _obey(line: Any, order: Order | int, nodes: dict[int, Any]) -> None:
    if isinstance(order, int):
        node = nodes.pop(order)
        node.join()
        line.send(node.exitcode)
        node.close()
        return
    node = get_context("fork").Process(target=_node, args=(line, order), name=f"handoff {order.name}")
    node.start()
    nodes[node.pid] = node
    line.send(node.pid)


def _node(line: Any, order: Order) -> None:
    line.close()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    from harness.node import entry  # noqa: PLC0415

    entry.launch(order.module, order.arguments, order.log, order.beside, die_with_thread=True)
