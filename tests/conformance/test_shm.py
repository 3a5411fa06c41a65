"""What only shm has: a thread that moves late blocks and an event that says so."""

from __future__ import annotations

import os
import threading

import pytest

from harness.transport import registry, shm
from harness.transport.base import Outcome
from harness.transport.conformance import Rig, readable

DEADLINE_S = 30.0


def test_a_signal_that_comes_after_its_key_was_taken_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    signalling, go = threading.Event(), threading.Event()
    write = os.eventfd_write

    def slow(descriptor: int, value: int) -> None:
        signalling.set()
        assert go.wait(DEADLINE_S)
        write(descriptor, value)

    monkeypatch.setattr(shm.os, "eventfd_write", slow)
    with Rig(registry.get("shm"), DEADLINE_S, late_fraction=1.0, delay_us=100.0) as rig:
        try:
            assert rig.write(1) is Outcome.POSTED
            assert signalling.wait(DEADLINE_S)
            rig.pump()
            assert rig.done == [(1, True)]
        finally:
            go.set()
        assert readable(rig.channel, int(DEADLINE_S * 1e3))
        rig.pump()
        assert not readable(rig.channel, 0)


def test_the_outcome_says_whether_something_is_late() -> None:
    for ack, late, outcome in (
        (False, 0.0, Outcome.DONE), (True, 0.0, Outcome.DONE),
        (False, 1.0, Outcome.POSTED), (True, 1.0, Outcome.PENDING),
    ):  # fmt: skip
        with Rig(registry.get("shm"), DEADLINE_S, ack=ack, late_fraction=late, delay_us=10.0) as rig:
            assert rig.write(1) is outcome
            assert rig.whole(1) or outcome is not Outcome.DONE
            rig.settle()


def test_late_blocks_that_have_not_landed_when_the_channel_closes_never_will() -> None:
    with Rig(registry.get("shm"), DEADLINE_S, late_fraction=1.0, delay_us=3.6e9) as rig:
        rig.burst(range(1, 9))
        rig.channel.close()
        rig.channel = rig.connect(rig.target.descriptor())
        assert not any(map(rig.whole, rig.sent))
        assert not [thread for thread in threading.enumerate() if thread.name == "mover"]
