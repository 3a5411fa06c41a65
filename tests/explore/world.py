"""Both cores in one process: no socket, clock or thread. Whatever a network, a receive thread or a scheduler would decide is an
action here, so that a caller can try all of them.

Actions: deliver the next control message of one (sender, receiver) pair; land one group of blocks of a write, as the data plane
allows; report a completion to prefill; let decode poll; at most once, let time pass (`Setup.timeout`, `Setup.expire`) or a second prefill
rank report Failed (`Setup.rank_fails`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from decode_node.aux import apply_row
from decode_node.engines.reference import ReferenceEngine
from harness.history.event import KV_BIT, ROOM_BIT, FaultEvent, FaultKind, Refusal, Resource, Role, Verb
from harness.history.recorder import Recorder
from harness.protocol import wire
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.protocol.settings import NodeSettings
from harness.transport.base import Outcome, Ownership, Write
from prefill_stub.machine import PrefillMachine

from .judge import LETTERS, Judge
from .planes import PLANES, Pending, landable
from .saved import dump, restore
from .setup import BY_USE, LATER_S, ROOMS, SPLIT, STEP_S, TRANSFER_TIMEOUT_S, Setup, settings_of

_DRIVER, _DECODE, _PREFILL = "driver", "decode", "prefill"
FEED_PREFILL, FEED_DECODE = f"{_DRIVER}>{_PREFILL}", f"{_DRIVER}>{_DECODE}"
PASS_ON = f"{_PREFILL}>{_PREFILL}1"


def ask(stage: int) -> str:
    """Decode to one stage of prefill."""
    return f"{_DECODE}>{_PREFILL}{stage or ''}"


def tell(stage: int) -> str:
    """One stage of prefill to decode."""
    return f"{_PREFILL}{stage or ''}>{_DECODE}"


Action = tuple[Any, ...]
"""("deliver", pair), ("land", ticket, group), ("complete",), ("poll",), ("step",), ("timeout",), ("expire",), ("rank fails",), ("forget",), ("abort",), ("overtake", pair), ("repeat", pair)."""


class _Tee:
    """An `Observer`: tells the judge, and a recorder where there is one."""

    def __init__(self, world: World, stream: str) -> None:
        self._world, self._stream = world, stream

    def event(
        self, verb: int, room: int = 0, slot: int = -1, tenure: int = 0, kind: int = 0, code: int = 0,
        flags: int = 0, value: int = 0, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0,
    ) -> None:  # fmt: skip
        world = self._world
        world.judge.event(verb, room, tenure, code, value, b)
        if world.tape is not None:
            if verb in {Verb.LANDED, Verb.REFUSED}:
                a = world.tick()  # the world has a clock of its own: begin just before the end
            world.tape[self._stream].event(verb, room, slot, tenure, kind, code, flags, value, a, b, c, d, e)

    def row(
        self, verb: int, room: int, slot: int, tenure: int, code: int, flags: int, value: int, tags: Sequence[int]
    ) -> None:  # fmt: skip
        world = self._world
        world.judge.row(verb, room, world.wants[room], code, flags, tags)
        if world.tape is not None:
            world.tape[self._stream].row(verb, room, slot, tenure, code, flags, value, tags)


class World:
    """One run of `setup`, at some point of its schedule. `save` and `load` move it to any other point."""

    def __init__(self, setup: Setup, tape: Callable[[World], dict[str, Recorder]] | None = None) -> None:
        """At the start. `tape` makes recorders, by stream, for a run whose history shall be checked."""
        self.setup, self.plane = setup, PLANES[setup.plane]
        self.wants = dict(zip(ROOMS, setup.wants, strict=True))
        settings = settings_of(setup)
        self.guards = settings.guards
        self.judge = Judge(clean_slot=self.guards.clear_on_free, drained_release=self.drained_release)
        self.ticks = 0
        self.tape = tape(self) if tape is not None else None
        masks = {sum(1 << field for field in fields): fields for fields in setup.groups}
        self._group_names = {bits: f"fields {fields[0]}-{fields[-1]}" for bits, fields in masks.items()}
        self._group_names |= {KV_BIT: "kv", ROOM_BIT: "room"}
        bits_of_fields = [1 << at for at in range(KV_BIT.bit_length())]
        self._group_of = {bit: bits for bits in self._group_names for bit in bits_of_fields if bits & bit}
        self._build(settings)
        stages = range(setup.stages)
        self.pairs = (FEED_PREFILL, FEED_DECODE, *map(ask, stages), *map(tell, stages), *[PASS_ON][: setup.stages - 1])
        self.queues: dict[str, list[Any]] = {pair: [] for pair in self.pairs}
        self.pending: list[Pending] = []
        self.completions: list[tuple[Any, bool, int]] = []
        self.flags = {"ticket": 0, "timeout": int(setup.timeout), "expire": int(setup.expire)}
        self.flags |= {"rank fails": int(setup.rank_fails), "forget": int(setup.forget)}
        self.flags |= {"abort": int(bool(setup.abort)), "overtake": int(setup.overtake), "repeat": int(setup.repeat)}
        self.now = 0.0
        # The first poll sweeps; from now on one with nothing to look at changes nothing.
        self.engine.poll(self.now)
        for index, room in enumerate(ROOMS):
            request = wire.Request(room, 0, self.wants[room], index, 0, 0)
            self.queues[FEED_PREFILL].append(request)
            self.queues[FEED_DECODE].append(request)
        if setup.arrive == "known":
            for pair in (FEED_PREFILL, FEED_DECODE) * 2:
                self.do(("deliver", pair))
        # What is saved says which parts are one object; that is settled by loading once.
        self.load(self.save())

    def _build(self, settings: NodeSettings) -> None:
        decode, prefill = Layout(settings.decode_layout), Layout(settings.prefill_layout)
        layouts = [decode] + [prefill] * self.setup.stages
        self._memories = [Memory.create("world", layout.size_bytes) for layout in layouts]
        self.buffers = Buffers(self._memories[0], decode)
        self.owners = Ownership(1, enforce=self.guards.tenure_on_writes)
        record, refuses = _Tee(self, _DECODE), self.plane.refuses
        self.engine = ReferenceEngine(0, settings, self.buffers, Payload(decode), self.owners, record, refuses=refuses)
        self.machines = []
        for stage, memory in enumerate(self._memories[1:]):
            source, record = Buffers(memory, prefill), _Tee(self, f"{_PREFILL}{stage or ''}")
            self.machines.append(PrefillMachine(stage, settings, source, Payload(prefill), record))
            self.machines[-1].layouts[0] = decode
        self._plane_record = _Tee(self, "plane")
        # What is written between the fields and the pages is nobody's: no need to save it.
        self.spans = [
            (memory.view, start, start + size)
            for memory, layout in zip(self._memories, layouts, strict=True)
            for start, size in ((0, layout.meta_bytes), (layout.kv_offset, layout.kv_bytes))
        ]

    @property
    def drained_release(self) -> bool:
        """What the guards promise on this plane, as `harness.stress.expectations` reads them."""
        guards = self.guards
        drained = guards.drain_on_commit and guards.drain_on_abort
        return drained or (guards.tenure_on_writes and self.plane.refuses)

    def tick(self) -> int:
        """Time of the next record, in ns."""
        self.ticks += 1
        return self.ticks

    def close(self) -> None:
        """Give the memory back."""
        for memory in self._memories:
            memory.close()

    def save(self) -> bytes:
        """Everything that can differ between two points of two schedules."""
        return dump(self)

    def load(self, saved: bytes) -> None:
        """Go to the point where `saved` was taken."""
        restore(self, saved)

    # Actions ------------------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """What can happen now; polls are listed whether or not they change anything."""
        found: list[Action] = [("deliver", pair) for pair in self.pairs if self.queues[pair]]
        if self.setup.batched and any(machine.out for machine in self.machines):
            found.append(("step",))
        found += [("land", *which) for which in landable(self.plane, self.pending)]
        if self.completions:
            found.append(("complete",))
        if self.engine.ready or self.engine._using:
            found.append(("poll",))
        first = self.engine.open.get(ROOMS[0])
        if self.flags["timeout"] and first is not None and first.slot >= 0:
            found.append(("timeout",))
        if self.flags["rank fails"] and first is not None and first.slot >= 0:
            found.append(("rank fails",))
        if self.flags["expire"] and self.engine.holding:
            found.append(("expire",))
        return found + self._mishaps()

    def _mishaps(self) -> list[Action]:
        """What need not happen, and may once."""
        found: list[Action] = []
        stages = range(self.setup.stages)
        if self.flags["forget"] and self.machines[0].rooms:
            found.append(("forget",))
        if self.flags["abort"] and ROOMS[0] not in self.judge.ended:
            found.append(("abort",))
        if self.flags["overtake"]:
            found += [
                ("overtake", pair) for pair in (*map(ask, stages), *map(tell, stages)) if len(self.queues[pair]) > 1
            ]
        if self.flags["repeat"]:
            found += [("repeat", pair) for pair in (*map(ask, stages), *map(tell, stages)) if self.queues[pair]]
        return found

    def do(self, action: Action) -> str:
        """Carry out one action; returns it in words. What came of it is in the judge and in the queues."""
        kind = action[0]
        if kind == "deliver":
            return self._deliver(action[1])
        if kind in {"overtake", "repeat"}:
            return self._misdeliver(kind, action[1])
        if kind == "land":
            return self._land(action[1], action[2])
        if kind == "complete":
            sender, ok, stage = self.completions.pop(0)
            self.machines[stage].settle(sender, ok=ok)
            self._prefill_step()
            return f"prefill learns that the write of {LETTERS[sender.room]} {'is visible' if ok else 'was refused'}"
        if kind == "poll":
            if self.engine._using:
                self.now += STEP_S
            return self._poll("decode polls")
        return self._once(kind)

    def _misdeliver(self, kind: str, pair: str) -> str:
        self.flags[kind] = 0
        queue = self.queues[pair]
        if kind == "repeat":
            queue.append(queue[0])
            return f"{pair}: the next message will come again"
        queue[0], queue[1] = queue[1], queue[0]
        return f"{pair}: the next message is overtaken"

    def _once(self, kind: str) -> str:
        if kind == "step":
            self._prefill_step()
            return "prefill steps"
        self.flags[kind] = 0
        if kind == "abort":
            return self._give_up()
        if kind == "forget":
            for machine in self.machines:
                machine.sweep(TRANSFER_TIMEOUT_S + 1.0)
            return "much time passes at prefill"
        if kind == "timeout":
            self.now = self.engine.open[ROOMS[0]].deadline
            return self._poll("A's time is over: decode polls")
        if kind == "expire":
            self.now = next(iter(self.engine.holding.values())).deadline
            return self._poll("the hold is over: decode polls")
        self.engine.deliver(wire.Status(ROOMS[0], 0, 1, True))
        self._decode_out()
        return "another prefill rank reports Failed for A"

    def _give_up(self) -> str:
        """The client tells, on the same connections as its requests."""
        room = ROOMS[0]
        self.judge.given_up.append(room)
        if self.tape is not None:
            self.tape[_DRIVER].event(Verb.FAULT, room, code=FaultEvent.HIT, flags=FaultKind.ABORT << 16)
        for side, pair in (("decode", FEED_DECODE), ("prefill", FEED_PREFILL)):
            if self.setup.abort in {"both", side}:
                self.queues[pair].append(wire.Cancel(room))
        return "the client gives A up"

    def _poll(self, words: str) -> str:
        before = len(self.judge.committed), len(self.judge.aborted), dict(self.engine.ready)
        self.engine.poll(self.now)
        self._decode_out()
        ends = [f"commits {LETTERS[room]}" for room in self.judge.committed[before[0] :]]
        ends += [f"aborts {LETTERS[room]}" for room in self.judge.aborted[before[1] :]]
        waits = [LETTERS[room] for room in before[2] if room in self.engine.ready]
        ends += [f"waits for the data of {letter}" for letter in waits]
        return words + (": " if ends else "") + ", ".join(ends)

    def _deliver(self, pair: str) -> str:
        message = self.queues[pair].pop(0)
        named = message[0] if type(message) is tuple else message
        if pair == FEED_DECODE or pair.endswith(f">{_DECODE}"):
            self._to_decode(message)
            self._decode_out()
        else:
            self._to_prefill(message, self.machines[pair.endswith("1")])
            if self.setup.batched:
                self._copy_sources()
            else:
                self._prefill_step()
        status = {4: " Success", 0: " Failed"}[message.status] if type(message) is wire.Status else ""
        return f"{pair}: {type(named).__name__} {LETTERS[named.room]}{status}"

    def _to_decode(self, message: Any) -> None:
        if type(message) is wire.Request:
            self.engine.admit(message, self.now)
        elif type(message) is wire.Cancel:
            self.engine.cancel(message.room, self.now)
        elif type(message) is tuple:
            aux, raw = message
            assert apply_row(self.buffers, self.owners, aux, raw, self.engine.record)
        else:
            self.engine.deliver(message)

    def _to_prefill(self, message: Any, machine: PrefillMachine) -> None:
        if type(message) is wire.Request:
            machine.request(message)
        elif type(message) is wire.RoomExchange:
            machine.exchange(message)
        elif type(message) is wire.Cancel:
            machine.cancel(message)
        else:
            machine.abort(message)

    def _decode_out(self) -> None:
        """Send what the engine wants sent; the client is told at once."""
        for (role, index), message in self.engine.out:
            if role == Role.DRIVER:
                kind = self.judge.result(message.room, message.reason, message.token)
                if self.tape is not None:
                    end = {"kind": kind, "code": message.reason, "value": message.token, "b": message.index}
                    self.tape[_DRIVER].event(Verb.HANDOFF, message.room, **end)
            else:
                self.queues[ask(index)].append(message)
        self.engine.out.clear()

    def _prefill_step(self) -> None:
        """Carry out the machine's actions, those that come of them too, as its node does."""
        for stage, machine in enumerate(self.machines):
            out, at = machine.out, 0
            while at < len(out):
                (role, _), action = out[at]
                at += 1
                if type(action) is not Write:
                    self.queues[PASS_ON if role == Role.PREFILL else tell(stage)].append(action)
                elif machine.may_issue(action.key):  # type: ignore[arg-type]
                    self._write(action, stage)
            out.clear()

    def _copy_sources(self) -> None:
        """Copy what waits to be written, so that it can be saved: its lease is held, nobody changes it in between."""
        for _, action in [action for machine in self.machines for action in machine.out]:
            if type(action) is Write:
                action.blocks = [(offset, bytes(data), bit) for offset, data, bit in action.blocks]  # type: ignore[misc]

    # The data plane -----------------------------------------------------------------------------------------------

    def _write(self, write: Write, stage: int) -> None:
        """Take the blocks over, as they are now: those bytes have left."""
        room = write.room
        stopped = any(type(message) is wire.Abort and message.room == room for message in self.queues[ask(stage)])
        if room in self.judge.aborted and not stopped:
            self.judge.say("write-after-abort", room)
        groups: dict[int, list[tuple[int, bytes]]] = {}
        for offset, data, bit in write.blocks:
            groups.setdefault(self._group_of[bit], []).append((offset, bytes(data)))
        self.flags["ticket"] += 1
        ticket, where = self.flags["ticket"], (room, write.slot, write.tenure)
        parts = [(at, bits, blocks) for at, (bits, blocks) in enumerate(groups.items())]
        self.pending.append([ticket, where, write.key, parts, True, stage])
        outcome = self.plane.outcome
        if LETTERS[room] in self.setup.instant:
            outcome = Outcome.DONE
            for at in range(len(parts)):
                self._land(ticket, at)
        self.machines[stage].wrote(write.key, outcome)  # type: ignore[arg-type]

    def _land(self, ticket: int, group: int) -> str:
        write = next(write for write in self.pending if write[0] == ticket)
        _, (room, slot, tenure), sender, parts, _, stage = write
        part = next(part for part in parts if part[0] == group)
        parts.remove(part)
        _, bits, blocks = part
        refused = self.plane.refuses and self.owners.enforce and self.owners.tenures[slot] != tenure
        if not refused:
            for offset, data in blocks:
                self.buffers.memory.view[offset : offset + len(data)] = data
        verb, code = (Verb.REFUSED, int(Refusal.TENURE)) if refused else (Verb.LANDED, int(bool(parts)))
        write[4] = not refused
        self._plane_record.event(verb, room, slot, tenure, code=code, flags=bits)
        if not parts:
            self.pending.remove(write)
            if self.plane.outcome is not Outcome.DONE and LETTERS[room] not in self.setup.instant:
                self.completions.append((sender, write[4], stage))
        return f"{'refused' if refused else 'lands'}: {self._group_names[bits]} of {LETTERS[room]}"

    # The end ------------------------------------------------------------------------------------------------------

    def held(self) -> dict[str, int]:
        """What is still held once prefill has forgotten the requests whose other half never came. Ends the run."""
        found: dict[str, int] = {}
        for machine in self.machines:
            machine.sweep(self.now + 2 * LATER_S)
        for node, core in ((_DECODE, self.engine), *((_PREFILL, machine) for machine in self.machines)):
            for resource, (held, *_) in core.held().items():
                if resource != Resource.LATE_MESSAGES:
                    found[f"{node} {resource}"] = found.get(f"{node} {resource}", 0) + held
        return found

    def finish(self) -> None:
        """Judge the end: nothing can happen any more."""
        self.judge.rest(ROOMS)
        if any(self.held().values()):
            self.judge.fresh.append("leak")


__all__ = ["BY_USE", "SPLIT", "Action", "Setup", "World", "settings_of"]
