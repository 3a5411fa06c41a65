"""When a peer counts as silent: only time in which one could have heard it counts."""

from __future__ import annotations

from typing import TypeVar

STALL_S = 0.5
"""Who comes round later than this was not run: the machine stood still, or all of it went to others."""
Peer = TypeVar("Peer")


def excuse(seen: dict[Peer, float], now: float, late_s: float) -> None:
    """Put off when each peer was last `seen` by the `late_s` that oneself was not run, if that is a stall."""
    if late_s > STALL_S:
        for peer, at in seen.items():
            seen[peer] = min(now, at + late_s)
