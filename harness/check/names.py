"""Names of coded values, for people."""

from __future__ import annotations

from enum import IntEnum

from harness.history.event import Resource, Role


def name_of(kind: type[IntEnum], value: int) -> str:
    """Name of `value` in `kind`, or the number itself where it has none."""
    try:
        return kind(value).name
    except ValueError:
        return str(value)


def node_name(value: int) -> str:
    """Name a node, as in `decode-0`, from role << 32 | index."""
    return f"{name_of(Role, value >> 32).lower()}-{value & 0xFFFFFFFF}"


def resource_name(code: int) -> str:
    """Name a `Resource` in lower case."""
    return name_of(Resource, code).lower()
