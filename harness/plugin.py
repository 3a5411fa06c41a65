"""For those who write a plugin: decorators that add a fault, a guard, a mutant, an invariant, an engine, and `bug` for a record of the catalogue.

docs/extending.md has an example of each. All raise FieldError for a name that is taken or not one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness import extension
from harness.bugs.record import KINDS as BUG_KINDS
from harness.bugs.record import Bug
from harness.check import ANOMALIES
from harness.errors import FieldError
from harness.extension import Change, Invariant
from harness.faults.catalogue import KINDS, MESSAGE
from harness.faults.plan import Rule
from harness.faults.spec import FRACTION, WHEN, Kind, Param
from harness.history.event import FaultKind
from harness.protocol.guards import PREVENTS
from harness.protocol.mutants import MUTANTS
from harness.transport.base import Block, Write

__all__ = [
    "Block",
    "Param",
    "Rule",
    "Write",
    "bug",
    "engine",
    "guard",
    "invariant",
    "message_fault",
    "mutant",
    "write_fault",
]

SIDES = ("prefill", "decode")
Function = Callable[..., Any]


def message_fault(name: str, doc: str, **params: Param) -> Callable[[Function], Function]:
    """Add a fault of messages: `act(rule, message)` returns the seconds by which the message leaves later, or None: it is lost.

    It is recorded, and excuses what it leads to, as `delay`, or `drop` where it is lost; it has the parameters `message`, `fraction` and
    those that every fault has, beside `params`. `rule.amount(message.room, most)` draws from the seed.
    """
    return _fault(name, FaultKind.DELAY, "sender", "a message", doc, {"message": MESSAGE, **params})


def write_fault(name: str, doc: str, **params: Param) -> Callable[[Function], Function]:
    """Add a fault of writes: `act(rule, write, blocks)` returns stages: (seconds to wait, blocks), in order; blocks left out are not written.

    It is recorded, and excuses what it leads to, as `hold-write`.
    """
    return _fault(name, FaultKind.HOLD_WRITE, "prefill", "the write", doc, params)


def _fault(
    name: str, number: FaultKind, by: str, point: str, doc: str, params: dict[str, Param]
) -> Callable[[Function], Function]:
    def add(act: Function) -> Function:
        every = {"fraction": FRACTION, **params, **WHEN}
        kind = Kind(name, number, by, point, doc, every, "as " + _LIKE[number], act=extension.guarded(act))
        _put("fault", name, KINDS, extension.loading().faults, kind)
        return act

    return add


_LIKE = {FaultKind.DELAY: "delay and drop", FaultKind.HOLD_WRITE: "hold-write"}


def guard(name: str, prevents: str, *, side: str = "decode") -> Callable[[Function], Function]:
    """Add a guard, on where the guards say `+name`: the function changes the decode engine, or the prefill node, before its run.

    Without it is its mutant. Replace methods of the engine, or of the node's `machine`: both are new for each run.
    """
    return _change("guard", name, prevents, side)


def mutant(name: str, doc: str, *, side: str = "decode") -> Callable[[Function], Function]:
    """Add a mutant, on where `mutants` names it; the function is as a guard's."""
    return _change("mutant", name, doc, side)


def _change(what: str, name: str, doc: str, side: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        if side not in SIDES:
            raise FieldError(f"{what} {name}: side", side, "prefill or decode")
        mine = extension.loading()
        _put(what, name, {**PREVENTS, **MUTANTS}, {**mine.guards, **mine.mutants}, None)
        table = mine.guards if what == "guard" else mine.mutants
        table[name] = Change(doc, side, extension.guarded(function))
        return function

    return add


def invariant(name: str, meaning: str) -> Callable[[Function], Function]:
    """Add an anomaly: `find(history)`, see `harness.invariants.History`, yields the rooms that break the rule."""

    def add(find: Function) -> Function:
        rooms = extension.guarded(lambda history: [int(room) for room in find(history)], find.__module__)
        _put("invariant", name, ANOMALIES, extension.loading().invariants, Invariant(meaning, rooms))
        return find

    return add


def engine(name: str) -> Callable[[Function], Function]:
    """Add a decode engine, as `engine.name`: `make(*arguments, **options)` is called in the node as `ReferenceEngine` would be.

    Decode nodes with one rank only. The checker holds it to what the guards promise.
    """

    def add(make: Function) -> Function:
        _put("engine", name, {"reference": None}, extension.loading().engines, extension.guarded(make))
        return make

    return add


def bug(
    name: str, *, kind: str, anomaly: str, mechanism: str, seen: str = "", url: str = "", guards: str = "hardened",
    mutants: Sequence[str] = (), faults: Iterable[str] = (), **changes: Any,
) -> None:  # fmt: skip
    """Add a record for `handoff bugs`: its mutant must show `anomaly`; `changes` are fields of the scenario, `engine__slots=4` for engine.slots."""
    if kind not in BUG_KINDS:
        raise FieldError(f"bug {name}: kind", kind, "one of " + ", ".join(BUG_KINDS))
    record = Bug(
        id=name, kind=kind, url=url, seen=seen, mechanism=mechanism, anomaly=anomaly, guards=guards,
        mutants=tuple(mutants), faults=tuple(faults),
        changes={field.replace("__", "."): value for field, value in changes.items()},
    )  # fmt: skip
    _put("bug", name, {}, extension.loading().bugs, record)


def _put(what: str, name: str, taken: Any, table: dict[str, Any], value: Any) -> None:
    if name in taken or name in table:
        raise FieldError(what, name, "a name that nothing else of its kind has")
    if not name or set(name) & set(" ,:=+#\"'"):
        raise FieldError(what, name, "a name without blanks, quotes and any of , : = + #")
    if value is not None:
        table[name] = value
