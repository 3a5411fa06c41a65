"""Asks a node or the registry whether it serves: `python -m harness.node.health`. Exit 0 if it does, else 1, and a line why not.

It sends a message to the node's own inbox and waits for the answer, so a process that hangs is found, not only one that ended. It
loads neither torch nor numpy: it is run again and again beside the node.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from harness.errors import HandoffError
from harness.node.address import cluster_tag, own, resolved
from harness.node.ask import ping

ROLES = ("driver", "prefill", "decode", "registry")
"""As in `harness.history.event.Role`, which needs numpy."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, say what came, return the exit code."""
    options = argparse.ArgumentParser(prog="python -m harness.node.health", description=__doc__.split("\n")[0])
    options.add_argument(
        "--registry", metavar="ADDRESS", help="the node's --registry; needed for --inbox tcp://auto:PORT"
    )
    options.add_argument("--inbox", required=True, metavar="ADDRESS", help="the node's --inbox, with a port")
    options.add_argument("--cluster", default="handoff", metavar="NAME", help="the node's --cluster")
    options.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS", help="default %(default)s")
    given = options.parse_args(arguments)
    try:
        address = own(given.inbox, resolved(given.registry or given.inbox, given.timeout))
        pong = ping(address, cluster_tag(given.cluster), given.timeout)
    except HandoffError as error:
        print(f"health: {error}", file=sys.stderr)
        return 1
    state = "registered" if pong.registered else "not registered"
    print(f"{ROLES[pong.role]}-{pong.index}: {state}, knows {len(pong.peers)}")
    return 0 if pong.registered else 1


if __name__ == "__main__":
    sys.exit(main())
