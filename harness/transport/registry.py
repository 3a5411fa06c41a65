"""Transports by name: the built-in ones and those of entry-point group `pd_handoff.transports`."""

from __future__ import annotations

from importlib.metadata import entry_points

from harness.errors import FieldError
from harness.transport.base import Transport
from harness.transport.shm import ShmTransport
from harness.transport.tcp import TcpTransport

GROUP = "pd_handoff.transports"
_BUILT_IN: dict[str, Transport] = {"shm": ShmTransport(), "tcp": TcpTransport()}


def names() -> list[str]:
    """Every transport that can be named in a scenario."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def get(name: str) -> Transport:
    """The transport called `name`; raises FieldError (exit 2) for one that is not registered."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for entry in entry_points(group=GROUP, name=name):
        transport: Transport = entry.load()
        return transport
    raise FieldError("transport.name", name, "one of " + ", ".join(names()))
