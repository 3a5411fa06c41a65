"""What a check says about one item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "limited", "missing"]
MIB = 1 << 20
Seen = Mapping[str, Any]
"""What a probe saw. `error`, where there is one, says why it saw nothing else."""


@dataclass(frozen=True)
class Finding:
    """One line. `means`: what the user gets or loses; `help`: the command that mends it; both empty where there is nothing to say."""

    item: str
    state: State
    seen: str
    means: str = ""
    help: str = ""
    needed: bool = False
    """`handoff stress` cannot run without it."""

    def to_dict(self) -> dict[str, Any]:
        """Every field by name."""
        return asdict(self)


def can_stress(findings: Iterable[Finding]) -> bool:
    """Whether the main job runs: nothing that it needs is missing."""
    return not any(found.needed and found.state == "missing" for found in findings)


def size(size_bytes: float) -> str:
    """A size as people read it: 223 MiB, 1.5 GiB."""
    return f"{size_bytes / MIB:.0f} MiB" if size_bytes < 1024 * MIB else f"{size_bytes / MIB / 1024:.1f} GiB"
