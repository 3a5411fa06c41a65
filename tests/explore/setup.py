"""What is explored: guards, data plane, and what may happen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from harness.protocol.guards import parse
from harness.protocol.layout import LayoutSpec
from harness.protocol.ranks import Ranks
from harness.protocol.settings import NodeSettings, TransportSettings

from .judge import LETTERS
from .planes import PLANES

ROOMS = tuple(LETTERS)
TRANSFER_TIMEOUT_S = 5.0
HOLD_TIMEOUT_S = 30.0
STEP_S = 1e-3
"""Decode step: how much later a request that holds a view reads it again."""
LATER_S = 1e6
"""The client's own patience: longer than anything here."""
IDS, REST_OF_ROW = (0,), (1, 2, 3, 4, 5, 6, 7, 8)
SPLIT = (IDS, REST_OF_ROW)
"""Groups of fields that land at once, besides KV (first) and the room (last)."""
BY_USE = ((0, 1), (2, 3, 4, 5, 6, 7, 8))
"""Fields that every request uses, and optional ones."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is explored. `wants` of A and B are `Wants`."""

    guards: str
    plane: str = "ordered-unacked"
    arrive: str = "known"
    """"known": both sides have both requests at the start. "any": each request reaches each side at any time, A before B."""
    timeout: bool = False
    """A's transfer time-out may strike once, at any moment."""
    expire: bool = False
    """The bound on holding a slot may strike once."""
    rank_fails: bool = False
    """A second prefill rank may report Failed for A once, while decode waits for A."""
    forget: bool = False
    """More time than a transfer may take passes at prefill once, at any moment; less than the client's patience."""
    abort: str = ""
    """The client may give A up once, at any moment: "both" sides are told, or "decode" or "prefill"."""
    overtake: bool = False
    """Once, a control message between the two nodes may be overtaken by the one behind it."""
    repeat: bool = False
    """Once, a control message between the two nodes may come twice."""
    instant: str = ""
    """Letters of requests whose blocks all land before `write` returns, which then says DONE."""
    wants: tuple[int, int] = (0, 0)
    groups: tuple[tuple[int, ...], ...] = SPLIT
    prefill_slots: int = 2
    batched: bool = False
    """Prefill carries its actions out at a step of its own, so that several messages may come before."""
    stages: int = 1
    """Pipeline stages: two write one slot, the second one begins after the first."""

    def with_(self, **changes: Any) -> Setup:
        """Return a copy with changes."""
        return dataclasses.replace(self, **changes)


def settings_of(setup: Setup) -> NodeSettings:
    """What both cores are told: 1 layer a stage, pages of 64 bytes, one page a request, one decode slot."""
    shape: dict[str, Any] = {"layers": setup.stages, "page_bytes": 64, "pages_per_request": 1}
    return NodeSettings(
        history_dir="",
        seed=1,
        guards=parse(setup.guards),
        decode_layout=LayoutSpec(slots=1, pages=1, **shape),
        prefill_layout=LayoutSpec(slots=setup.prefill_slots, pages=setup.prefill_slots, **shape),
        transport=TransportSettings(),
        planes="shared" if PLANES[setup.plane].shared else "split",
        transfer_timeout_s=TRANSFER_TIMEOUT_S,
        hold_timeout_s=HOLD_TIMEOUT_S,
        request_timeout_s=LATER_S,
        decode_step_ms=STEP_S * 1e3,
        prefills=setup.stages,
        ranks=Ranks(prefill_pp=setup.stages),
    )
