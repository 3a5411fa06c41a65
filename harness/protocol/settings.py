"""What a node is told about a run: one record, sent by the driver as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.protocol.guards import Guards
from harness.protocol.layout import LayoutSpec

Reorder = Literal["none", "random", "room_first"]


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How blocks travel. Times in microseconds.

    `late_fraction` of the hand-offs have the tail of their blocks held back by `delay_us` plus an exponential jitter with mean `jitter_us`,
    drawn from the seed for each room. `reorder` permutes the blocks first. `ack` sends the status only after the blocks are visible.
    `connections` spreads the blocks of one hand-off (all but shm). `version`: the release of a transfer engine.
    """

    name: str = "shm"
    version: str = ""
    ack: bool = False
    connections: int = 1
    late_fraction: float = 0.02
    delay_us: float = 100.0
    jitter_us: float = 100.0
    reorder: Reorder = "none"
    host: str = "127.0.0.1"


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a node sees it. Times in seconds unless the name says otherwise."""

    history_dir: str
    seed: int
    guards: Guards
    decode_layout: LayoutSpec
    prefill_layout: LayoutSpec
    transport: TransportSettings
    planes: Literal["split", "shared"] = "split"
    slot_policy: str = "fifo"
    page_policy: str = "fifo"
    queue_max: int = 65536
    transfer_timeout_s: float = 5.0
    hold_timeout_s: float = 30.0
    request_timeout_s: float = 15.0
    poll_interval_ms: float = 1.0
    decode_step_ms: float = 5.0
    record: bool = True
    prefills: int = 1
    decodes: int = 1
