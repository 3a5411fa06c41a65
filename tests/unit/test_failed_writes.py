"""What is recorded of a write that fails: a time-out is excused where a status had promised what never comes, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from harness.faults.catalogue import parse_all
from harness.faults.writes import Writes
from harness.history.event import KV_BIT, FaultKind, Loss
from harness.history.recorder import NullRecorder
from harness.transport.base import Outcome, Write

EARLY, LATE = "hold-write:fraction=1,ms=1,status=before", "hold-write:fraction=1,ms=1,status=after"


class _Record(NullRecorder):
    def __init__(self) -> None:
        self.lost: list[int] = []

    def event(self, verb: int, room: int = 0, *, flags: int = 0, c: int = 0, **other: Any) -> None:
        del verb, room, other
        if flags >> 16 == FaultKind.FAIL:
            self.lost.append(c)


@pytest.mark.parametrize(
    ("hold", "when", "lost"),
    [
        (EARLY, "short", Loss.NEEDED), (EARLY, "during", Loss.NEEDED), (EARLY, "before", Loss.NEEDED), (EARLY, "after", 0),
        (LATE, "short", 0), (LATE, "during", 0),
    ],
)  # fmt: skip
def test_a_promised_write_that_fails_is_lost(hold: str, when: str, lost: int) -> None:
    record = _Record()
    writes = Writes(parse_all([hold, f"fail:fraction=1,when={when}"]), 1, record, lambda _: Outcome.DONE)
    writes.arm(0.0, armed=True)
    write = Write(decode=0, room=7, slot=0, tenure=1, blocks=[(0, memoryview(bytes(8)), KV_BIT)], key="k")
    writes.begin(write, 0.0)
    assert record.lost == [lost]
