"""Transports by name: the built-in ones, transfer engines by release, and those of entry-point group `pd_handoff.transports`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points

from harness.errors import FieldError
from harness.releases import engines
from harness.transport import nixl
from harness.transport.base import Transport
from harness.transport.gloo import GlooTransport
from harness.transport.mooncake import MooncakeTransport
from harness.transport.nixl import NixlTransport
from harness.transport.shm import ShmTransport
from harness.transport.tcp import TcpTransport

GROUP = "pd_handoff.transports"
_BUILT_IN: dict[str, Transport] = {"shm": ShmTransport(), "tcp": TcpTransport(), "gloo": GlooTransport()}
_RELEASED: dict[str, tuple[str, Callable[[str], Transport]]] = {
    "mooncake": ("mooncake", MooncakeTransport),
    **{name: ("nixl", functools.partial(NixlTransport, name)) for name in nixl.PLANES},
}
"""Name to (engine, what makes the transport of a release of it)."""
ONE_SIDED = ("mooncake", *nixl.PLANES)
"""Engines that write by themselves: the harness adds no lateness to theirs unless it is told to."""
REAL = (*ONE_SIDED, "gloo")
"""Whose "done" is measured, not declared."""


def names() -> list[str]:
    """Every transport that can be named in a scenario."""
    return sorted({*_BUILT_IN, *_RELEASED, *(entry.name for entry in entry_points(group=GROUP))})


def engine_of(name: str) -> str | None:
    """The transfer engine behind a transport, a key of `engines.ENGINES`; None for one that has no releases."""
    return _RELEASED[name][0] if name in _RELEASED else None


def version_of(name: str, version: str) -> str:
    """The release of `name` that `version` means, "" for what has no releases; raises FieldError as `get` does."""
    engine = engine_of(name)
    if engine is not None:
        return engines.version_of(engine, version)
    if version:
        raise FieldError("transport.version", version, f"nothing: transport {name} has no releases")
    return ""


def split(text: str) -> tuple[str, str]:
    """(name, version) of `NAME` or `NAME==VERSION`; the version is empty where none is given."""
    name, _, version = text.partition("==")
    return name.strip(), version.strip()


def get(name: str, version: str = "") -> Transport:
    """The transport called `name`, of that release (empty: the default one).

    Raises FieldError (exit 2) for a name that is not registered, and for a version of what has no releases.
    """
    if name in _RELEASED:
        return _RELEASED[name][1](version_of(name, version))
    version_of(name, version)
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for entry in entry_points(group=GROUP, name=name):
        transport: Transport = entry.load()
        return transport
    raise FieldError("transport.name", name, "one of " + ", ".join(names()))
