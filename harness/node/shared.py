"""Companion of the registry: as long as it is registered, this cluster's nodes share memory. `python -m harness.node.shared`.

Containers can share memory only where they were started so; a driver on the network cannot see that. It asks the registry who is there,
and where nobody named a transport, takes shm if this companion is. It ends with the driver, as a node does.
"""

from __future__ import annotations

import sys

from harness.history.event import Role
from harness.node.entry import run
from harness.node.shell import Address, Shell

SHARED: Address = (Role.REGISTRY, 1)
"""What it registers as."""


def main(arguments: list[str] | None = None) -> int:
    """Run the companion."""
    given = sys.argv[1:] if arguments is None else arguments
    return run(
        "harness.node.shared", Role.REGISTRY, Shell, "Says that the nodes share memory.", [*given, "--index", "1"]
    )


if __name__ == "__main__":
    sys.exit(main())
