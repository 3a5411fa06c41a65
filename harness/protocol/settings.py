"""What a node is told about a run: one record, sent by the driver as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.protocol.guards import Guards
from harness.protocol.layout import LayoutSpec
from harness.protocol.ranks import Ranks

Reorder = Literal["none", "random", "room_first"]


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How blocks travel. Times in microseconds.

    `late_fraction` of the hand-offs have the tail of their blocks held back by `delay_us` plus an exponential jitter with mean `jitter_us`,
    drawn from the seed for each room. `reorder` permutes the blocks first. `ack` sends the status only after the blocks are visible.
    `connections` spreads the blocks of one hand-off (all but shm). `version`: the release of a transfer engine. `writer` tells the writers of
    one slot apart: each is late at times of its own.
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
    writer: int = 0


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whose hand-off a node runs: `reference` is ours, anything else is a released engine's, in the folders named here.

    `side`: which role the engine is hosted for; a reference node of the other role speaks the engine's own protocol.
    `transfer_nice`: niceness of the transfer engine's threads on decode. `first` are put first on the module search path, `last` behind everything else. `backend`: the engine's own transfer backend.
    """

    name: str = "reference"
    first: list[str] = []
    last: list[str] = []
    backend: str = ""
    transfer_nice: int = 0
    side: Literal["both", "prefill", "decode"] = "both"
    own: str = ""
    """A plugin's decode engine, between the reference's nodes."""

    @property
    def hosted(self) -> bool:
        """Whether a released engine takes part at all."""
        return self.name != "reference"

    def hosts(self, role: Literal["prefill", "decode"]) -> bool:
        """Whether nodes of `role` host it."""
        return self.hosted and self.side in {"both", role}


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a node sees it. Times in seconds unless the name says otherwise.

    Of a hosted engine's requests `abort_fraction` are given up by their client at decode, within `hold_ms` of telling prefill where the data
    shall go; prefill's forward passes take up to `hold_ms`.
    """

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
    engine: EngineSettings = EngineSettings()
    abort_fraction: float = 0.0
    hold_ms: float = 0.0
    prefills: int = 1
    decodes: int = 1
    """Processes of each role, all ranks counted."""
    ranks: Ranks = Ranks()
    faults: tuple[str, ...] = ()
    """As in the scenario, all of them: a node carries out those that are its own (`harness.faults`)."""
    plugins: tuple[str, ...] = ()
    """Files that add faults, guards, mutants and engines (`harness.extension`): copies in the run's folder."""
    mutants: tuple[str, ...] = ()
    """Small named changes of the reference (`prefill_stub.mutants`, `decode_node.mutants`)."""
