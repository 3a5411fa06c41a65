"""The grammar of a fault: `name:parameter=value,...`, checked against the kind's parameters."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.errors import FieldError
from harness.history.event import FaultKind

FAULTS_MAX = 64
"""Faults of one scenario."""


class Param(NamedTuple):
    """One parameter: a number from `low` to `high`, or one of `choices`."""

    default: float | str
    doc: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        return "one of " + ", ".join(self.choices) if self.choices else f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `by`: who carries it out. `point`: where in the hand-off. `excuses`: ends of a request it was done to that are no anomaly."""

    name: str
    number: FaultKind
    by: str
    point: str
    doc: str
    params: Mapping[str, Param]
    excuses: str = "nothing"
    act: Callable[..., Any] | None = None
    """Of a plugin's: what is done, see `harness.plugin`."""


FRACTION = Param(0.1, "share of the rooms, drawn from the seed", 0.0, 1.0)
COUNT = Param(0, "at most so many times at each node; 0: no bound", 0, 1e9)
FROM_S = Param(0, "from so many seconds after the load began", 0, 1e6)
UNTIL_S = Param(1e6, "until so many seconds after the load began", 0, 1e6)
WHEN: Mapping[str, Param] = {"count": COUNT, "from_s": FROM_S, "until_s": UNTIL_S}
"""Every fault has these."""


@dataclass(frozen=True)
class Fault:
    """One fault of a scenario. `number`: its place in the scenario's list."""

    number: int
    kind: Kind
    text: str
    values: Mapping[str, float | str]

    def f(self, name: str) -> float:
        """A parameter that is a number."""
        return float(self.values[name])

    def s(self, name: str) -> str:
        """A parameter that is a word."""
        return str(self.values[name])

    @property
    def flags(self) -> int:
        """As in the history's FAULT events."""
        return int(self.kind.number) << 16 | self.number


def parse(text: str, number: int, kinds: Mapping[str, Kind]) -> Fault:
    """Read one fault; raises FieldError naming what is not known or out of its range."""
    name, _, rest = text.partition(":")
    kind = kinds.get(name.strip())
    if kind is None:
        raise FieldError("fault", name, _known(name, tuple(kinds)))
    values: dict[str, float | str] = {key: param.default for key, param in kind.params.items()}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, raw = part.partition("=")
        param = kind.params.get(key)
        if param is None or not equals:
            raise FieldError(f"fault {kind.name}", part, "PARAMETER=VALUE with " + _known(key, tuple(kind.params)))
        values[key] = _value(f"fault {kind.name}: {key}", raw, param)
    return Fault(number, kind, text, values)


def _value(field: str, raw: str, param: Param) -> float | str:
    if param.choices:
        if raw not in param.choices:
            raise FieldError(field, raw, param.allowed)
        return raw
    try:
        number = float(raw)
    except ValueError:
        raise FieldError(field, raw, param.allowed) from None
    if not param.low <= number <= param.high:
        raise FieldError(field, raw, param.allowed)
    return number


def _known(given: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(given, names, 1)
    return "one of " + ", ".join(names) + (f" (did you mean {close[0]}?)" if close else "")
