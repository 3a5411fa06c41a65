"""What the checker is asked to hold a run to, and what it answers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from harness.errors import FieldError

Verdict = Literal["valid", "invalid", "unknown"]

_ALLOWED = {"int": "a whole number of at least", "float": "a number of at least", "bool": "true or false"}


@dataclass(frozen=True)
class Expectations:
    """What a run must have done for its verdict to mean something, and what its engine promises."""

    slots: int
    """Metadata slots of each decode node."""
    hang_bound_s: float
    """A hand-off that took longer than this from its invoke hung."""
    clean_slot: bool
    """The engine promises that the room word is 0 when a slot is given out."""
    drained_release: bool
    """The engine promises that no write begins in a slot after its FREE."""
    min_reuse: int = 2
    """Each slot had at least so many tenures."""
    min_window: int = 10
    """At least so many hand-offs saw their status before their data."""
    min_committed: int = 1
    """At least so many hand-offs were committed."""
    min_rate_per_s: float = 0.0
    """Hand-offs that ended well a second, during the load."""
    faults: tuple[str, ...] = ()
    """Armed faults as in the scenario: each must have fired."""
    aborts_allowed: bool = False
    """Faults abort requests on purpose."""
    expected_exit: bool = False
    """Node processes may end without anybody's asking: no `crash`."""
    prefill_tp: int = 1
    """Ranks of each instance: prefill has so many in each of `prefill_pp` stages; of it and decode's `decode_tp` one is a multiple of the other."""
    prefill_pp: int = 1
    decode_tp: int = 1

    def __post_init__(self) -> None:
        """Raise FieldError for a value that is not allowed."""
        for entry in dataclasses.fields(self):
            _require(entry.name, str(entry.type), getattr(self, entry.name))
        if self.prefill_tp % self.decode_tp and self.decode_tp % self.prefill_tp:
            allowed = f"a multiple of decode_tp ({self.decode_tp}), or a number that divides it"
            raise FieldError("prefill_tp", self.prefill_tp, allowed)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from `to_dict`'s result; raises FieldError that names the field at fault."""
        names = {entry.name: entry for entry in dataclasses.fields(cls)}
        for name, value in values.items():
            if name not in names:
                raise FieldError(name, value, f"one of the fields {', '.join(names)}")
        for name, entry in names.items():
            if entry.default is dataclasses.MISSING and name not in values:
                raise FieldError(name, None, "a value: this field has no default")
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**plain)


def _require(name: str, kind: str, value: object) -> None:
    """Raise FieldError unless `value` is of `kind` and not too small."""
    if kind.startswith("tuple"):
        if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            return
        raise FieldError(name, value, "a list of texts")
    least = 1 if name in {"slots", "prefill_tp", "prefill_pp", "decode_tp"} else 0
    allowed = _ALLOWED[kind] + ("" if kind == "bool" else f" {least}")
    if kind == "bool":
        if isinstance(value, bool):
            return
        raise FieldError(name, value, allowed)
    kinds = (int,) if kind == "int" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
        raise FieldError(name, value, allowed)


@dataclass
class Anomaly:
    """One kind of finding: how often, out of how many, and a few cases to look at."""

    name: str
    meaning: str
    count: int
    of: int
    """Denominator, see `harness.check.rules.DENOMINATORS`."""
    rate: float
    interval: tuple[float, float]
    """95 % interval of the rate."""
    detail: dict[str, int] = field(default_factory=dict)
    witnesses: list[list[dict[str, Any]]] = field(default_factory=list)
    """At most 3 cases, each at most 12 events in the order of their times."""


@dataclass
class Coverage:
    """Whether the run did enough of one thing for its silence to mean something."""

    name: str
    seen: float
    needed: float
    met: bool
    meaning: str


def _no_attribution() -> dict[str, int]:
    return {"stale_room": 0, "foreign_write": 0, "unexplained": 0}


@dataclass
class Report:
    """The checker's answer. Counts are of hand-offs unless said otherwise."""

    verdict: Verdict = "unknown"
    requests: int = 0
    committed: int = 0
    mismatch_aborts: int = 0
    false_aborts: int = 0
    other_aborts: int = 0
    wrong_data: int = 0
    """Got a foreign or torn row, or foreign KV."""
    hung: int = 0
    leaked: int = 0
    """Census lines at rest that do not balance."""
    abort_attribution: dict[str, int] = field(default_factory=_no_attribution)
    anomalies: list[Anomaly] = field(default_factory=list)
    unseen: list[Anomaly] = field(default_factory=list)
    """What was looked for and not found, with the rate that this run can exclude."""
    coverage: list[Coverage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    rate_per_s: float = 0.0
    latency_ms: dict[str, float] = field(default_factory=dict)
    slot_occupancy: float = 0.0
    """Share of decode's slots that were held during the load, averaged over time, 0 to 1."""
    slot_wait_ms: dict[str, float] = field(default_factory=dict)
    """From a hand-off's INVOKE at the driver to its ALLOC at decode, during the load: the request's way and the wait for a slot."""
    duration_s: float = 0.0
    """From the first to the last recorded event."""
    window_opened: int = 0
    """Saw the status before the data."""
    reuse_min: int = 0
    reuse_max: int = 0
    unconsumed_stale_fields: dict[str, int] = field(default_factory=dict)
    """Committed rows in which a field that the request does not use holds another request's value, by field."""
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused_writes: int = 0
    late_messages: int = 0
    bad_messages: int = 0
    interrupted: bool = False
    complete: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        values = dataclasses.asdict(self)
        for anomaly in (*values["anomalies"], *values["unseen"]):
            anomaly["interval"] = list(anomaly["interval"])
        return values


def interval95(count: int, of: int) -> tuple[float, float]:
    """95 % interval of a rate: Wilson's score; for none seen, the rule of three."""
    if of <= 0:
        return (0.0, 1.0)
    if count <= 0:
        return (0.0, min(1.0, 3.0 / of))
    z = 1.959963984540054
    share = count / of
    centre = share + z * z / (2 * of)
    reach = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    scale = 1 + z * z / of
    return (max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale))
