"""Faults of the data plane, between a prefill node and its channels: hold a write, fail it, flip a bit in it.

A write goes in stages. The machine hears of it when the last stage is over, as it would of a transfer call that takes long or fails.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from harness.faults.plan import Rule
from harness.faults.spec import Fault
from harness.history.event import KV_BIT, ROOM_BIT, FaultKind, Loss
from harness.history.recorder import Observer
from harness.transport.base import Block, Outcome, Write

HELD_MAX = 65_536
_KINDS = (FaultKind.HOLD_WRITE, FaultKind.FAIL, FaultKind.CORRUPT)
Issue = Callable[[Write], Outcome]


class _Staged:
    """One write in stages: (seconds to wait, blocks). `fails`: FAILED is reported after the last; `posted`: POSTED before the first."""

    __slots__ = ("fails", "pending", "posted", "stages", "write")

    def __init__(self, write: Write) -> None:
        self.write = write
        self.stages: deque[tuple[float, Sequence[Block]]] = deque([(0.0, write.blocks)])
        self.fails = self.posted = False
        self.pending = False


class Writes:
    """What the scenario's faults do to the writes of one prefill node. `issue` really writes."""

    def __init__(self, faults: Iterable[Fault], seed: int, record: Observer, issue: Issue) -> None:
        """Not armed."""
        mine = [fault for fault in faults if fault.kind.number in _KINDS and fault.values.get("when") != "silent"]
        self._rules = [Rule(fault, seed, record) for fault in mine]
        self._issue = issue
        self._due: list[tuple[float, int, _Staged]] = []
        self._serial = 0
        self.fails_early = False
        """A mutant: the failure of a write is reported while the rest of it is still under way."""

    @property
    def any(self) -> bool:
        """Whether there is anything to do at all."""
        return bool(self._rules)

    def arm(self, now: float, *, armed: bool) -> None:
        """The load begins, or the faults heal."""
        for rule in self._rules:
            rule.arm(now, armed=armed)

    def begin(self, write: Write, now: float) -> Outcome:
        """Write, or begin a staged write, which is PENDING (or POSTED, where its status shall not wait)."""
        picked = [rule for rule in self._rules if rule.picks(write.room, now)]
        if not picked or len(self._due) >= HELD_MAX:
            return self._issue(write)
        staged = _Staged(write)
        # A write is held first and fails last, whatever order the scenario names them in.
        for rule in sorted(picked, key=lambda rule: rule.fault.kind.number is FaultKind.FAIL):
            (_own if rule.fault.kind.act is not None else _APPLY[rule.fault.kind.number])(rule, staged)
        if staged.fails and not staged.stages:
            return Outcome.FAILED
        early = staged.fails and self.fails_early
        if staged.posted or early:
            _copy(staged)
        self._push(now + staged.stages[0][0], staged)
        if early:
            staged.write = dataclasses.replace(staged.write, key=None)
            return Outcome.FAILED
        return Outcome.POSTED if staged.posted else Outcome.PENDING

    def _push(self, due: float, staged: _Staged) -> None:
        self._serial += 1
        heapq.heappush(self._due, (due, self._serial, staged))

    def completed(self, key: object) -> bool:
        """True if `key` is a stage's, not a write's; the stage is over."""
        if not isinstance(key, _Staged):
            return False
        key.pending = False
        return True

    def flush(self, now: float) -> tuple[list[tuple[object, Outcome, bool]], float]:
        """Go on with what is due: (key, outcome, whether the machine had been told POSTED) of each write that is over, seconds to wait."""
        over: list[tuple[object, Outcome, bool]] = []
        while self._due and self._due[0][0] <= now:
            _, _, staged = heapq.heappop(self._due)
            if staged.pending:
                self._push(now + 0.0005, staged)
                continue
            outcome = self._advance(staged, now)
            if outcome is not None and staged.write.key is not None:
                over.append((staged.write.key, outcome, staged.posted))
        return over, min(max(self._due[0][0] - now, 0.0), 0.05) if self._due else 0.05

    def _advance(self, staged: _Staged, now: float) -> Outcome | None:
        """Carry out the next stage; the write's outcome once it has one."""
        if not staged.stages:
            return Outcome.FAILED if staged.fails else Outcome.DONE
        _, blocks = staged.stages.popleft()
        last = not staged.stages and not staged.fails and not staged.posted
        write = dataclasses.replace(staged.write, blocks=blocks, key=staged.write.key if last else staged)
        outcome = self._issue(write) if blocks else Outcome.DONE
        if last or outcome is Outcome.FAILED:
            return outcome
        staged.pending = outcome is not Outcome.DONE
        self._push(now + (staged.stages[0][0] if staged.stages else 0.0), staged)
        return None

    def forget(self, decode: int) -> None:
        """A decode node is gone, and what was to be written there."""
        self._due = [entry for entry in self._due if entry[2].write.decode != decode]
        heapq.heapify(self._due)


def _copy(staged: _Staged) -> None:
    """Those bytes have left: the source is given back while they are on their way."""
    staged.stages = deque(
        (wait_s, [(offset, memoryview(bytes(data)), bit) for offset, data, bit in blocks])
        for wait_s, blocks in staged.stages
    )


def _hold(rule: Rule, staged: _Staged) -> None:
    held_s = rule.amount(staged.write.room, rule.fault.f("ms")) * 1e-3
    rule.hit(staged.write.room, held_s=held_s)
    staged.posted = rule.fault.s("status") == "before"
    wait_s, blocks = staged.stages.popleft()
    early = [block for block in blocks if block[2] == KV_BIT] if rule.fault.s("where") == "row" else []
    late = [block for block in blocks if block not in early] if early else blocks
    staged.stages.appendleft((wait_s + held_s, late))
    if early:
        staged.stages.appendleft((0.0, early))


def _own(rule: Rule, staged: _Staged) -> None:
    """A plugin's: it says in which stages the blocks move."""
    assert rule.fault.kind.act is not None
    if not staged.stages:
        return
    wait_s, blocks = staged.stages.popleft()
    stages = [(float(pause_s), list(part)) for pause_s, part in rule.fault.kind.act(rule, staged.write, blocks)]
    rule.hit(staged.write.room, held_s=sum(pause_s for pause_s, _ in stages))
    staged.stages.extendleft(reversed([(wait_s, []), *stages]))


def _fail(rule: Rule, staged: _Staged) -> None:
    when = rule.fault.s("when")
    if not staged.stages:
        return  # another fault has failed it before it began
    # A status that went before has promised what now never comes, and is not taken back.
    lost = staged.posted and when != "after"
    rule.hit(staged.write.room, c=Loss.NEEDED if lost else 0)
    staged.fails = True
    if when == "before":
        staged.stages.clear()
    elif when == "during":
        wait_s, blocks = staged.stages[0]
        staged.stages = deque([(wait_s, blocks[: len(blocks) // 2])])
    elif when == "short":
        wait_s, blocks = staged.stages.popleft()
        pages = [block for block in blocks if block[2] == KV_BIT]
        staged.stages.appendleft((wait_s, [block for block in blocks if block not in pages[len(pages) // 2 :]]))


def _corrupt(rule: Rule, staged: _Staged) -> None:
    where, room = rule.fault.s("where"), staged.write.room
    for at, (wait_s, blocks) in enumerate(staged.stages):
        fits = [i for i, block in enumerate(blocks) if _part(block[2]) == where]
        if fits:
            rule.hit(room, c=Loss.NEEDED)
            changed = list(blocks)
            which = fits[int(rule.amount(room, len(fits))) % len(fits)]
            offset, data, bit = changed[which]
            # The room's own word; of a row or a page a byte that its content decides.
            place = int(rule.amount(room, 8 if where == "room" else len(data))) % len(data)
            flipped = bytearray(data)
            flipped[place] ^= 1 << room % 7
            changed[which] = (offset, memoryview(flipped), bit)
            staged.stages[at] = (wait_s, changed)
            return


def _part(bit: int) -> str:
    return "kv" if bit == KV_BIT else "room" if bit == ROOM_BIT else "row"


_APPLY = {FaultKind.HOLD_WRITE: _hold, FaultKind.FAIL: _fail, FaultKind.CORRUPT: _corrupt}
