"""The channel that all one-sided engines share, over an engine of ours that can be held, broken and looked at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.history.event import KV_BIT
from harness.history.recorder import NullRecorder
from harness.protocol.settings import TransportSettings
from harness.transport import engine
from harness.transport.base import Outcome, TransportError, Write
from harness.transport.engine import EngineChannel, EngineTarget, Part, PeerGone, Staging

DEADLINE_S = 60.0


class Engine:
    """A mover; `gate` holds its calls back, `fails` makes them say that the peer is gone."""

    def __init__(self, region: bytearray, size_bytes: int = 1 << 16) -> None:
        self.staging = Staging(size_bytes)
        self.region = region
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fails = self.refuses = False
        self.moved: list[Part] = []
        self.closed = threading.Event()

    def move(self, parts: Sequence[Part], gone: Callable[[], bool]) -> bool:
        if gone():
            raise PeerGone
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        if self.fails:
            raise PeerGone
        for offset, start, size in parts if not self.refuses else ():
            self.region[offset : offset + size] = self.staging.view[start : start + size]
            self.moved.append((offset, start, size))
        return not self.refuses

    def close(self) -> None:
        self.closed.set()


class Bench:
    """A channel on engines of ours, and its target's lifeline."""

    def __init__(self, count: int = 1, size_bytes: int = 1 << 16, **settings: Any) -> None:
        self.region = bytearray(1 << 16)
        self.engines = [Engine(self.region, size_bytes) for _ in range(count)]
        self.target = EngineTarget("127.0.0.1", {}, lambda: None)
        line = engine.lifeline("127.0.0.1", self.target._where["port"])  # type: ignore[arg-type]
        plain: dict[str, Any] = {"late_fraction": 0.0, **settings}
        self.channel = EngineChannel(
            TransportSettings(**plain), 1, lambda _: NullRecorder(), self.engines, line, len(self.region), observes=True
        )
        self.done: list[tuple[object, bool]] = []

    def write(self, key: int, size: int = 64, offset: int = 0) -> Outcome:
        data = memoryview(bytes([key % 256]) * size)
        return self.channel.write(Write(key, 0, 1, 0, [(offset, data, KV_BIT)], key))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            self.done += self.channel.completions()
            time.sleep(0.001)

    def close(self) -> None:
        for mover in self.engines:
            mover.gate.set()
        self.channel.close()
        self.target.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_a_full_queue_fails_and_goes_on_once_there_is_room(bench: Bench) -> None:
    mover = bench.engines[0]
    mover.gate.clear()
    outcomes = [bench.write(key, 1 << 14) for key in range(1, 7)]
    assert outcomes == [Outcome.PENDING] * 4 + [Outcome.FAILED] * 2
    mover.gate.set()
    bench.until(lambda: len(bench.done) == 4)
    assert bench.done == [(key, True) for key in range(1, 5)]
    assert bench.write(7) is Outcome.PENDING
    bench.until(lambda: len(bench.done) == 5)


def test_a_share_that_finds_no_room_takes_none_of_the_others() -> None:
    bench = Bench(count=2, size_bytes=1 << 12)
    try:
        for mover in bench.engines:
            mover.gate.clear()
        blocks = [(0, memoryview(bytes(1 << 10)), 1), (1 << 12, memoryview(bytes(1 << 13)), 2)]
        for _ in range(10):
            assert bench.channel.write(Write(1, 0, 1, 0, blocks, 1)) is Outcome.FAILED
        assert not any(mover.staging._taken for mover in bench.engines)
        assert bench.write(2) is Outcome.PENDING
    finally:
        bench.close()


def test_once_the_peer_is_gone_everything_fails_and_its_sources_are_left_alone(bench: Bench) -> None:
    mover = bench.engines[0]
    mover.fails = True
    mover.gate.clear()
    assert [bench.write(key) for key in (1, 2)] == [Outcome.PENDING] * 2
    mover.gate.set()
    bench.until(lambda: len(bench.done) == 2)
    assert bench.done == [(1, False), (2, False)]
    assert bench.write(3) is Outcome.FAILED
    assert next(iter(mover.staging._taken)) == (0, 64)  # a write that was given up may still be read by the engine


def test_a_refused_write_fails_alone(bench: Bench) -> None:
    mover = bench.engines[0]
    mover.refuses = True
    bench.write(1)
    bench.until(lambda: bench.done == [(1, False)])
    mover.refuses = False
    bench.write(2)
    bench.until(lambda: bench.done[1:] == [(2, True)])


def test_the_end_of_the_target_fails_what_waits_and_wakes(bench: Bench) -> None:
    mover = bench.engines[0]
    mover.gate.clear()
    bench.write(1)
    assert mover.entered.wait(DEADLINE_S)
    bench.write(2)
    bench.target.close()
    bench.until(lambda: bench.channel.broken)
    assert bench.write(3) is Outcome.FAILED
    mover.gate.set()
    bench.until(lambda: len(bench.done) == 2)
    assert bench.done[1] == (2, False)
    assert len(mover.moved) == 1
    assert len(bench.channel.descriptors()) == 1


def test_a_call_that_does_not_return_does_not_hold_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 0.05)
    bench = Bench()
    mover = bench.engines[0]
    mover.gate.clear()
    bench.write(1)
    assert mover.entered.wait(DEADLINE_S)
    bench.channel.close()
    assert not mover.closed.is_set()
    mover.gate.set()
    assert mover.closed.wait(DEADLINE_S)
    bench.target.close()


def test_a_lifeline_to_nobody_is_a_transport_error(bench: Bench) -> None:
    port: Any = bench.target._where["port"]
    bench.target.close()
    with pytest.raises(TransportError, match=r"cannot reach 127\.0\.0\.1"):
        engine.lifeline("127.0.0.1", port)


@given(st.lists(st.one_of(st.integers(0, 70), st.just(None)), max_size=200))
def test_staging_never_gives_the_same_bytes_twice(steps: list[int | None]) -> None:
    staging = Staging(100)
    held: list[tuple[int, int]] = []
    for step in steps:
        if step is None:
            if held:
                held.pop(0)
                staging.give()
            continue
        start = staging.take(step)
        if start is None:
            assert held or step > 100
            continue
        assert 0 <= start <= start + step <= 100
        assert all(start + step <= other or other + size <= start for other, size in held if size and step)
        held.append((start, step))
    staging.close()


@given(st.integers(0, 100), st.integers(1, 100))
def test_what_is_undone_is_free_again(first: int, second: int) -> None:
    staging = Staging(200)
    staging.take(first)
    start = staging.take(second)
    assert start is not None
    staging.undo()
    assert staging.take(second) == start
    staging.close()
