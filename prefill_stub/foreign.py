"""The prefill machine beside a decode that is a released engine's: its memory is laid out as that release does it."""

from __future__ import annotations

from typing import Any

from harness.errors import HarnessError
from harness.hosting.sglang.frames import Registration
from harness.hosting.sglang.meeting import Meeting
from harness.hosting.sglang.request import Request
from harness.protocol.layout import Layout
from harness.transport.base import Block
from prefill_stub.machine import PrefillMachine, Sender

NOWHERE = -1


class RemoteLayout:
    """Where a hosted decode's rows and pages are, as addresses of its process; stands for a `Layout` of our own."""

    def __init__(self, own: Layout, meeting: Meeting, registered: Registration) -> None:
        """`own`: of the memory that is sent from. Raises HarnessError where the release's row has other sizes."""
        places = {field.name: (at, field.row_bytes) for at, field in enumerate(meeting.fields)}
        self._bases: list[tuple[int, int]] = []
        for field in own.fields:
            at, size = places.get(field.name, (NOWHERE, field.row_bytes))
            if size != field.row_bytes:
                raise HarnessError(f"{field.name}: a row has {size} bytes in this release, {field.row_bytes} here")
            self._bases.append((registered.aux[at] if at >= 0 else NOWHERE, size))
        if len(registered.kv) != own.spec.layers:
            raise HarnessError(f"the release registered {len(registered.kv)} KV tensors, not {own.spec.layers}")
        self.layer_offsets = registered.kv

    def row_offsets(self, slot: int) -> list[int]:
        """Address of each field's row of `slot`, in our order; NOWHERE for a field that the release's rows do not have."""
        return [base + slot * size if base != NOWHERE else NOWHERE for base, size in self._bases]


class ForeignMachine(PrefillMachine):
    """`cached[d]`: how many cached-token counts decode node d's release carries over."""

    cached: dict[int, int]

    def _row_blocks(self, layout: Any, lease: int, decode: int, slot: int) -> list[Block]:
        """Without the fields that the release does not have: up to 0.5.8 a row has no room."""
        return [block for block in super()._row_blocks(layout, lease, decode, slot) if block[0] != NOWHERE]

    def _tags(self, sender: Sender, row: Any, sums: list[int]) -> list[int]:
        """Of what a request takes out of its row: a release copies no more than that."""
        del sums
        assert sender.wants is not None
        request = Request(sender.room, sender.attempt, sender.wants, host="", port=0)
        request.fill(row, self.payload.layout)
        return request.tags(self.cached[sender.decode])
