"""Free ports for servers that cannot be told to pick one."""

from __future__ import annotations

import socket
import time

from harness.errors import HarnessError


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on. Somebody may take it before the caller does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_served(port: int, timeout_s: float) -> None:
    """Wait until somebody accepts connections on loopback `port`; raises HarnessError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise HarnessError(f"port {port}: nobody serves it within {timeout_s:g} s") from error
            time.sleep(0.01)
        else:
            return
