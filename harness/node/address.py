"""ZMQ addresses of this host: `tcp://auto:PORT` stands for the address by which this host reaches the registry."""

from __future__ import annotations

import hashlib
import socket
import time

from harness.errors import HarnessError

AUTO = "auto"
LOOPBACK = "127.0.0.1"
RESOLVE_S = 30.0
"""How long a name is asked for: in a cluster that is just starting, the registry's comes with its container."""


def cluster_tag(name: str) -> int:
    """64 bits for a cluster's name: in every envelope, so that two clusters on one network never mix."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def split(address: str) -> tuple[str, str, str]:
    """(scheme, host, port) of a ZMQ address; host and port are empty where the scheme has none."""
    scheme, _, rest = address.partition("://")
    host, colon, port = rest.rpartition(":")
    return (scheme, host, port) if scheme == "tcp" and colon else (scheme, "", "")


def host_of(address: str) -> str:
    """The host of a tcp address; loopback for any other."""
    return split(address)[1] or LOOPBACK


def is_named(host: str, name: str) -> bool:
    """True if `name` resolves to the address `host`, perhaps among others."""
    try:
        return host in socket.gethostbyname_ex(name)[2]
    except OSError:
        return False


def own(address: str, registry: str) -> str:
    """`address` with the host `auto` replaced by this host's own address on the way to `registry`, which must be `resolved`."""
    scheme, host, port = split(address)
    return f"{scheme}://{towards(registry)}:{port}" if host == AUTO else address


def resolved(address: str, timeout_s: float = RESOLVE_S) -> str:
    """`address` with a numeric host; raises HarnessError when its name still means nothing after `timeout_s`.

    ZMQ would ask for the name at each reconnect, on the thread that moves all messages: when the registry's container is gone, and its
    name with it, that stalls a whole node for seconds.
    """
    scheme, host, port = split(address)
    if host in {"", AUTO, "*"}:
        return address
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return f"{scheme}://{socket.gethostbyname(host)}:{port}"
        except OSError as error:
            if time.monotonic() >= deadline:
                raise HarnessError(f"{address}: {error.strerror or error}") from error
        time.sleep(0.2)


def towards(address: str) -> str:
    """The own IPv4 address on the way to `address`, which must be `resolved`; nothing is sent. Loopback where it is no tcp address.

    Raises HarnessError where there is no way.
    """
    _, host, _ = split(address)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host or LOOPBACK, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise HarnessError(f"{address}: {error.strerror or error}") from error
