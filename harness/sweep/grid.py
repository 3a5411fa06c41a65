"""Axes of a sweep: which fields are varied, and over which values."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from harness import scenario as scenarios
from harness.errors import FieldError, UsageError
from harness.options import OPTION_FIELDS

CELLS_MAX = 2_000
SHORT_OF = {field: option for option, field in OPTION_FIELDS.items()}
NUMBERS = (int, float)


class Axis(msgspec.Struct, frozen=True):
    """A dotted field of the scenario and the values that it takes in turn."""

    field: str
    values: list[Any]

    @property
    def short(self) -> str:
        """The name that a reader sees: the option's, or the last part of the field's."""
        return SHORT_OF.get(self.field, self.field.rpartition(".")[2])

    @property
    def numeric(self) -> bool:
        """All values are numbers and there are at least two: this axis can be drawn as a line."""
        return len(self.values) > 1 and all(isinstance(v, NUMBERS) and not isinstance(v, bool) for v in self.values)


def field_of(name: str) -> str:
    """The dotted field that `name` means: an option's name, a dotted field or the only field with that last part."""
    if name in OPTION_FIELDS:
        return OPTION_FIELDS[name]
    known = scenarios.fields()
    if name in known:
        return name
    ends = [field for field in known if field.rpartition(".")[2] == name]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UsageError(f"--grid {name}: could be any of {', '.join(ends)}; give the dotted name")
    raise UsageError(f"--grid {scenarios.unknown(name)}")


def parse_axis(text: str) -> Axis:
    """`FIELD=V1,V2` of `--grid`; values that hold commas are quoted, separated by `;`, or stand in a TOML list."""
    name, equals, raw = text.partition("=")
    if not equals:
        raise FieldError("--grid", text, "FIELD=V1,V2,..., for example concurrency=1,2,4")
    return axis(name.strip(), _values(raw.strip()))


def axis(name: str, values: Any) -> Axis:
    """An axis from a name and a list of values; raises FieldError and UsageError."""
    field = field_of(name)
    if not isinstance(values, list) or not values:
        raise FieldError(f"grid {name}", values, "a list of at least one value")
    for value in values:
        if isinstance(value, list | dict) or value == "":
            raise FieldError(f"grid {name}", value, "a number, true, false or text")
    if len({repr(value) for value in values}) < len(values):
        raise FieldError(f"grid {name}", values, "each value once")
    return Axis(field, values)


def _values(raw: str) -> list[Any]:
    if raw.startswith("["):
        try:
            listed: list[Any] = tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise FieldError("--grid", raw, 'a TOML list, for example ["a","b,-c"]') from error
        return listed
    if ";" in raw:
        parts = [part.strip() for part in raw.split(";")]
    else:
        parts = next(csv.reader([raw], skipinitialspace=True), [])
    return [scenarios.parse_set(f"value={part}")[1] for part in parts]


def from_table(table: Any) -> list[Axis]:
    """Axes of a scenario file's `[grid]` table; its keys are as `--grid`'s, dotted ones may be tables."""
    if not isinstance(table, dict):
        raise FieldError("grid", table, "a table, for example [grid] and concurrency = [1, 2, 4]")
    axes = []
    for name, values in table.items():
        if isinstance(values, dict):
            axes += [axis(f"{name}.{inner}", content) for inner, content in values.items()]
        else:
            axes.append(axis(name, values))
    return axes


def merge(axes: Iterable[Axis], texts: Sequence[str]) -> list[Axis]:
    """Axes of a file, replaced or followed by those of the command line; raises UsageError."""
    found = {axis.field: axis for axis in axes}
    given = [parse_axis(text) for text in texts]
    fields = [axis.field for axis in given]
    for field in fields:
        if fields.count(field) > 1:
            raise UsageError(f"--grid {field}: given twice; list all its values once")
    found |= {axis.field: axis for axis in given}
    if "name" in found:
        raise FieldError("grid name", found["name"].values, "a field that changes the run")
    if not found:
        raise UsageError("sweep: nothing to vary; give --grid FIELD=V1,V2 or a scenario file with a [grid] table")
    return list(found.values())


def cells(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination, as field to value, the last axis fastest; raises FieldError when there are too many."""
    count = 1
    for one in axes:
        count *= len(one.values)
    if count > CELLS_MAX:
        raise FieldError("grid", f"{count} cells", f"at most {CELLS_MAX}")
    combined: list[dict[str, Any]] = [{}]
    for one in axes:
        combined = [{**cell, one.field: value} for cell in combined for value in one.values]
    return combined


def label(values: Mapping[str, Any]) -> str:
    """A cell in words: `concurrency 4, slots 16`."""
    return ", ".join(f"{Axis(field, []).short} {value}" for field, value in values.items()) or "the scenario"
