"""What `harness.transport.base` promises, as one suite that every transport must pass; third parties run it on theirs.

`@pytest.mark.parametrize("name", conformance.PROPERTIES)` over `conformance.check(MyTransport(), name)` is all that it needs.
Each property opens both ends in the calling process, on real memory, and raises `Violation` with what it saw. Nothing is timed:
a property waits for a condition, and fails only when that has not come by the deadline.
"""

from __future__ import annotations

import functools
import gc
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.history.event import KV_BIT, ROOM_BIT, Refusal, Verb
from harness.transport.base import Block, Lack, Outcome, Transport, TransportError, Write
from harness.transport.rig import (
    BITS,
    JUNK,
    LAST,
    MIB,
    QUEUE_BYTES_MAX,
    SLOTS,
    STRIDE,
    Rig,
    Violation,
    blocks_of,
    readable,
    require,
)

Opener = Callable[..., Rig]
PROPERTIES: dict[str, Callable[[Opener], None]] = {}
"""Every property by name; the docstring says what must hold."""


def _property(function: Callable[[Opener], None]) -> Callable[[Opener], None]:
    PROPERTIES[function.__name__] = function
    return function


NEEDS: dict[str, frozenset[Lack]] = {
    "visible_when_reported": frozenset({Lack.ACK}),
    "ordered": frozenset({Lack.ORDER, Lack.RECORDS}),
    "room_first": frozenset({Lack.ORDER, Lack.RECORDS}),
    "late_draws": frozenset({Lack.RECORDS}),
    "records": frozenset({Lack.RECORDS}),
}
"""Properties that are not asked of a transport which says that it lacks one of these."""


def lacking(transport: Transport, name: str) -> list[str]:
    """What `transport` says that it lacks and the property `name` needs: empty where the property is asked of it."""
    return sorted(lack.value for lack in NEEDS.get(name, frozenset()) & transport.lacks)


def check(transport: Transport, *names: str, deadline_s: float = 30.0) -> list[str]:
    """Check `names` (none: all of PROPERTIES); raises Violation for the first that does not hold.

    Returns the names that are not asked of this transport, by its own `lacks`.
    """
    wanted = names or tuple(PROPERTIES)
    opener = functools.partial(Rig, transport, deadline_s)
    for name in [name for name in wanted if not lacking(transport, name)]:
        try:
            PROPERTIES[name](opener)
        except Violation as violation:
            raise Violation(f"{transport.name}: {name}: {violation}") from violation
    return [name for name in wanted if lacking(transport, name)]


_LATE = {"late_fraction": 1.0, "delay_us": 20_000.0}
_HALF = {"late_fraction": 0.5, "delay_us": 500.0}
_SPREAD = {"connections": 3, "reorder": "random", **_HALF}
_MODES: tuple[dict[str, Any], ...] = (
    {},
    {"ack": True},
    _LATE,
    {"ack": True, **_HALF},
    _SPREAD,
    {"ack": True, **_SPREAD},
)


@_property
def lands(opener: Opener) -> None:
    """Every block lands with exactly its bytes, and nothing outside of the blocks changes."""
    for mode in _MODES:
        with opener(**mode) as rig:
            rig.burst(range(100, 100 + SLOTS))
            rig.settle()


@_property
def sources_reused(opener: Opener) -> None:
    """Sources may be reused as soon as `write` returned: also of late blocks, and of what waits for a busy target."""
    for mode in ({}, _LATE, {"ack": True, **_LATE}):
        with opener(**mode) as rig:
            for slot in range(8):
                blocks = blocks_of(200 + slot, slot)
                rig.write(200 + slot, slot, blocks=blocks)
                for _, data, _ in blocks:
                    data[:] = bytes(len(data))
            rig.settle()
    source = memoryview(bytearray(MIB))
    with opener(size=24 * MIB) as rig:
        with rig.owners.lock:
            for number in range(24):
                source[:] = random.Random(number).randbytes(MIB)
                rig.write(300 + number, blocks=[(number * MIB, source, KV_BIT)])
        source[:] = bytes(MIB)
        rig.settle()


@_property
def completes_once(opener: Opener) -> None:
    """A key completes exactly once after POSTED or PENDING, and never after DONE or FAILED."""
    for mode in _MODES:
        with opener(**mode) as rig:
            rig.burst(range(400, 400 + SLOTS))
            count = len(rig.open) + len(rig.done)
            rig.settle()
            require(len(rig.done) == count, f"{len(rig.done)} of {count} open keys completed")


@_property
def visible_when_reported(opener: Opener) -> None:
    """With `ack` nothing is reported, as DONE or by a completion, before it is visible at the target."""
    for connections in (1, 3):
        with opener(ack=True, connections=connections, **_LATE) as rig:
            for room in range(500, 504):
                done = rig.write(room, room - 500) is Outcome.DONE
                require(
                    not done or rig.whole(room),
                    f"DONE with ack, but only blocks {rig.visible(room):b} are there",
                )
                rig.pump()
            rig.settle()


@_property
def wakes(opener: Opener) -> None:
    """A descriptor is readable when `completions` has something, and at rest when it has not."""
    with opener(ack=True, **_LATE) as rig:
        rig.burst(range(600, 606))
        while rig.open:
            busy = rig.channel.busy
            woken = readable(rig.channel, 1 if busy else int(rig.deadline_s * 1e3))
            require(woken or busy, f"{len(rig.open)} keys are open and no descriptor woke the caller")
            rig.pump()
        rig.until(lambda: not readable(rig.channel, 0), "descriptors at rest once everything has been taken")


@_property
def ordered(opener: Opener) -> None:
    """On one connection and without reordering, whoever sees the room, the last block, sees every block before it."""
    with opener(**_LATE) as rig:
        rig.burst(range(700, 708))

        def look() -> bool:
            for room in rig.sent:
                there = rig.visible(room) >> LAST  # looked at first; the others must be there by the next look
                require(not there or rig.whole(room), f"room {room} visible before blocks issued before it")
            return all(map(rig.whole, rig.sent))

        rig.until(look, "all blocks visible")
        rig.until(lambda: all(map(rig.events.ended, range(700, 708))), "every write recorded to its end")
        parts = [len(rig.events.of(Verb.LANDED, room)) for room in range(700, 708)]
        require(max(parts) > 1, "blocks of eight rooms, all to be late, landed in one go")


@_property
def room_first(opener: Opener) -> None:
    """With reorder = room_first the room is there before any other block of its hand-off."""
    with opener(reorder="room_first", **_LATE) as rig:
        rig.burst(range(800, 808))

        def look() -> bool:
            for room in rig.sent:
                some = rig.visible(room)
                require(not some or rig.visible(room) >> LAST == 1, f"blocks {some:b} of {room} without the room")
            return all(map(rig.whole, rig.sent))

        rig.until(look, "all blocks visible")
        rig.until(lambda: all(map(rig.events.ended, range(800, 808))), "every write recorded to its end")
        first = [rig.events.of(Verb.LANDED, room)[0].flags & ROOM_BIT for room in range(800, 808)]
        require(all(first), "the first record of a write is without the room")


def _draws(opener: Opener, seed: int, rooms: Sequence[int]) -> dict[int, list[int]]:
    """Return how the blocks of each room landed: the masks of its records, in order."""
    with opener(seed=seed, late_fraction=0.5, delay_us=100.0, size=len(rooms) * STRIDE) as rig:
        for room in rooms:
            rig.write(room, room - min(rooms))
            rig.until(functools.partial(rig.events.ended, room), "a write recorded to its end")
        return {room: [event.flags for event in rig.events.of(Verb.LANDED, room)] for room in rooms}


@_property
def late_draws(opener: Opener) -> None:
    """Which rooms have late blocks, and where they are cut, depends on (seed, room) alone."""
    rooms = range(900, 940)
    first = _draws(opener, 7, rooms)
    late = sum(len(masks) > 1 for masks in first.values())
    require(0 < late < len(rooms), f"{late} of {len(rooms)} rooms were late although about half were to be")
    require(
        first == _draws(opener, 7, rooms[::-1]),
        "the same seed and rooms, in another order, landed in another way",
    )
    require(first != _draws(opener, 8, rooms), "another seed, the same draws")


_TENURES = (
    (None, 1, False),
    (1, 1, True),
    (1, 2, False),
    (2, 1, False),
    (2, 2, True),
    (0, 2, False),
    (0, 0, False),
)
"""(owner to be set, tenure of the write, allowed), in sequence."""


@_property
def tenures(opener: Opener) -> None:
    """Who can refuse applies a write only under its slot's tenure, and counts the others; who cannot says so."""
    for enforce in (True, False):
        with opener(enforce=enforce, ack=True) as rig:
            refuses = enforce and rig.transport.refuses
            for room, (owner, tenure, allowed) in enumerate(_TENURES, 1000):
                if owner is not None:
                    rig.owners.grant(3, owner) if owner else rig.owners.revoke(3)
                done = rig.write(room, 3, tenure, lands=allowed or not refuses) is Outcome.DONE
                rig.until(lambda: not rig.open, "completion of a write")
                ok = done or (room, True) in rig.done
                require(ok is (allowed or not refuses), f"tenure {tenure} while {owner} owned: landed {ok}")
                rig.compare(f"write of tenure {tenure} while {owner} owned, enforce {enforce}")
            counted, wanted = rig.target.counters()["refused"], 5 * refuses
            require(counted == wanted, f"{counted} counted as refused, {wanted} were")
            for event in rig.events.of(Verb.REFUSED, 1002):
                named = (event.slot, event.tenure, event.code, event.flags)
                require(named == (3, 2, Refusal.TENURE, KV_BIT | 1023), f"recorded {event}")


class _Tenures(list[int]):
    """Counts looks at the tenures that were taken without the lock."""

    unlocked = 0
    lock: threading.Lock

    def __getitem__(self, slot: Any) -> Any:
        self.unlocked += not self.lock.locked()
        return super().__getitem__(slot)


@_property
def revoke_is_final(opener: Opener) -> None:
    """Once `revoke` returned no block of that tenure lands any more: a tenure is looked up and used under the lock."""
    with opener(enforce=True, **_LATE) as rig:
        looked = rig.owners.tenures = _Tenures(rig.owners.tenures)
        looked.lock = rig.owners.lock
        for slot in range(8 * rig.transport.refuses):
            rig.owners.grant(slot, 40 + slot)
        rig.burst(range(1100, 1100 + 8 * rig.transport.refuses))
        rig.until(lambda: any(map(rig.visible, rig.sent)) or not rig.sent, "a write to begin")
        for slot in range(8):
            rig.owners.revoke(slot)
        rig.image[:] = bytes(rig.memory.view)

        def ended(room: object) -> bool:
            return any(event.verb == Verb.REFUSED or not event.code for event in rig.events[:] if event.room == room)

        rig.until(lambda: all(map(ended, rig.sent)), "an end of each write")
        rig.compare("a block landed after its tenure had been revoked")
        require(not looked.unlocked, "a tenure was looked up without the owners' lock")


@_property
def bounds(opener: Opener) -> None:
    """A block out of bounds is refused, or FAILED where no target can refuse, and everything goes on."""
    for mode in ({}, _LATE):
        with opener(ack=True, **mode) as rig:
            size = rig.memory.size_bytes
            places = ((size - 8, 16), (size, 8), (1 << 40, 8), ((1 << 64) - 8, 16))
            for room, (offset, length) in enumerate(places, 1200):
                block: Block = (offset, memoryview(bytes(length)), 1)
                outcome = rig.write(room, blocks=[block], lands=False)
                require(outcome is not Outcome.DONE, f"{length} bytes at {offset} of {size}: DONE")
            rig.until(lambda: not rig.open, "an answer to each write out of bounds")
            require(not any(ok for _, ok in rig.done), f"reported as landed: {rig.done}")
            rig.compare("a write out of bounds changed the memory")
            codes = [event.code for room in range(1200, 1204) for event in rig.events.of(Verb.REFUSED, room)]
            require(codes == [Refusal.BOUNDS] * 4 * rig.transport.refuses, f"recorded as refused: {codes}")
            rig.sent.clear()
            rig.done.clear()
            rig.burst(range(1210, 1214))
            rig.settle()


@_property
def big_blocks(opener: Opener) -> None:
    """Blocks of 8 MiB land whole."""
    with opener(size=16 * MIB, ack=True) as rig:
        data = memoryview(random.Random(1).randbytes(16 * MIB))
        rig.write(1300, blocks=[(0, data[: 8 * MIB], KV_BIT), (8 * MIB, data[8 * MIB :], KV_BIT)])
        rig.settle()


@_property
def many_blocks(opener: Opener) -> None:
    """One hand-off may have many thousands of blocks: layers x pages of a request, and its row."""
    for count in (3000, 70_000):
        with opener(size=count * 16, ack=True) as rig:
            data = memoryview(random.Random(4).randbytes(count * 8))
            rig.write(1400, blocks=[(i * 16, data[i * 8 : i * 8 + 8], KV_BIT) for i in range(count)])
            rig.settle()


@_property
def many_writes(opener: Opener) -> None:
    """Thousands of small writes in a row: each completes, and of each slot the last one stays."""
    for ack in (False, True):
        with opener(ack=ack) as rig:
            for number in range(3000):
                rig.sent.pop(1500 + number - SLOTS, None)  # overwritten from here on
                rig.write(1500 + number, number % SLOTS)
                rig.pump()
            rig.settle()


@_property
def never_blocks(opener: Opener) -> None:
    """A target that does not read blocks no writer, and what is queued for it is bounded: then writes fail."""
    block: Block = (0, memoryview(random.Random(5).randbytes(MIB)), KV_BIT)
    with opener(size=MIB) as rig:
        outcomes = [Outcome.DONE]

        def fill() -> None:
            while len(outcomes) * MIB <= QUEUE_BYTES_MAX and outcomes[-1] is not Outcome.FAILED:
                outcomes.append(rig.channel.write(Write(1600, 0, 1, 0, [block], None)))

        writer = threading.Thread(target=fill)
        with rig.owners.lock:
            writer.start()
            writer.join(rig.deadline_s)
            blocked = writer.is_alive()
            rig.sent[1600] = [(0, bytes(block[1]), KV_BIT)]
            if not blocked and outcomes[-1] is not Outcome.FAILED:
                rig.until(
                    lambda: rig.whole(1600),
                    f"FAILED; {QUEUE_BYTES_MAX >> 20} MiB are queued and none applied",
                )
        writer.join()
        require(not blocked, "a write blocked while the target did not read")


@_property
def peer_gone(opener: Opener) -> None:
    """After the target's close nothing lands and writes FAIL, without an exception; only one-sided memory cannot know."""
    with opener(ack=True, **_LATE) as rig:
        rig.burst(range(1700, 1704))
        rig.target.close()
        frozen, rooms = bytes(rig.memory.view), iter(range(1704, 10**6))
        if rig.transport.refuses:
            rig.until(lambda: rig.write(next(rooms), lands=False) is Outcome.FAILED, "FAILED as the target is gone")
        rig.until(lambda: not rig.open, "an end of every write that was open")
        rig.pump()
        require(
            not rig.transport.refuses or frozen == rig.memory.view,
            "a write was applied after the target's close",
        )
        rig.memory.close()
        _refuses_to_open(rig, rig.target.descriptor())


@_property
def opens_or_raises(opener: Opener) -> None:
    """A descriptor that is none raises TransportError, and nothing else."""
    with opener() as rig:
        for descriptor in JUNK:
            _refuses_to_open(rig, descriptor)
        rig.write(1750)
        rig.settle()


def _refuses_to_open(rig: Rig, descriptor: bytes) -> None:
    try:
        channel = rig.connect(descriptor)
    except TransportError:
        return
    except Exception as error:
        raise Violation(f"descriptor {descriptor!r} raised {error!r} instead of TransportError") from error
    channel.close()
    raise Violation(f"a channel opened on {descriptor!r}")


@_property
def closes(opener: Opener) -> None:
    """Closing, in either order and with writes outstanding, ends all threads, closes their streams and gives all descriptors back."""
    before: tuple[set[threading.Thread], int] | None = None
    for target_first in (False, False, True):
        with opener(ack=True, connections=3, **_LATE) as rig:
            others = [rig.connect(rig.target.descriptor()) for _ in range(3)]
            rig.burst(range(1800, 1804))
            for channel in others:
                channel.close()
            if target_first:
                rig.target.close()
        require(not rig.events.streams, f"streams left open by threads that ended: {rig.events.streams}")
        del rig, others, channel
        gc.collect()
        now = set(threading.enumerate()), len(list(Path("/proc/self/fd").iterdir()))
        before = before or now  # the first turn: what libraries open once
        require(now[0] <= before[0], f"left running: {[thread.name for thread in now[0] - before[0]]}")
        require(now[1] <= before[1], f"{now[1] - before[1]} descriptors left open")


@_property
def records(opener: Opener) -> None:
    """LANDED names author, slot, tenure and fields, begin <= end, once the blocks are there; code 0 once, at the end."""
    for mode in ({}, _LATE, {"connections": 3, **_LATE}):
        with opener(**mode) as rig:
            began = time.monotonic_ns()
            rig.burst(range(1900, 1908))
            rig.settle()
            for slot, room in enumerate(range(1900, 1908)):
                rig.until(functools.partial(rig.events.ended, room), "records of all blocks")
                landed = rig.events.of(Verb.LANDED, room)
                for event in landed:
                    fields = sum(1 << i for i, bit in enumerate(BITS) if bit & event.flags and bit != KV_BIT)
                    require(
                        (event.slot, event.tenure) == (slot, 40 + slot),
                        f"{slot}, {40 + slot} recorded as {event}",
                    )
                    require(
                        began <= event.begin_ns <= event.end_ns,
                        f"begin and end of {event}, sent after {began}",
                    )
                    require(event.seen & fields == fields, f"blocks {fields:b} recorded, {event.seen:b} visible")
                codes = [event.code for event in landed]
                require(codes.count(0) == 1, f"codes {codes}: exactly one record has no more to come")
                require("connections" in mode or codes[-1] == 0, f"codes {codes} on one connection")
