"""planes = shared: a metadata row that travels on the control socket, as SGLang's SEND_AUX_TCP does."""

from __future__ import annotations

import time

from harness.history.event import Refusal, Verb
from harness.history.recorder import Observer
from harness.protocol import wire
from harness.protocol.memory import Buffers
from harness.transport.base import Ownership

ROW_MASK = (1 << 10) - 1


def apply_row(buffers: Buffers, owners: Ownership, message: wire.AuxData, raw: bytes, record: Observer) -> bool:
    """Put `raw` (a row, field after field) into the slot that the frame names; False when it is not a row for this memory.

    Released engines apply it without asking who owns the slot now; with `tenure_on_writes` it must be the current owner's.
    """
    layout = buffers.layout
    if message.slot >= layout.spec.slots or len(raw) != layout.row_bytes:
        return False
    begin = time.monotonic_ns()
    if owners.enforce and owners.tenures[message.slot] != message.tenure:
        record.event(Verb.REFUSED, message.room, message.slot, message.tenure, code=Refusal.TENURE, a=begin)
        return True
    at = 0
    for view in buffers.row_views(message.slot):
        view[:] = raw[at : at + len(view)]
        at += len(view)
    record.event(Verb.LANDED, message.room, message.slot, message.tenure, flags=ROW_MASK, a=begin)
    return True
