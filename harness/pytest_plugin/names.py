"""What a test, the ini file and the command line say of a scenario, in one order of precedence.

A layer maps dotted fields to values. Later layers win: the defaults, the ini setting `handoff_set`, marks (module, then class, then
function), arguments of the fixtures, and, above all, options of the command line: who gives one wants to see it in every test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from harness.errors import FieldError

SHORT: Mapping[str, str] = {
    "guards": "guards",
    "transport": "transport.name",
    "planes": "planes",
    "requests": "workload.requests",
    "duration": "workload.duration_s",
    "concurrency": "workload.concurrency",
    "slots": "engine.slots",
    "seed": "seed",
}
"""Short name, as the options of `handoff stress` have it, to field."""
SCENARIO = "scenario"
"""Keyword that names a scenario file; not a field."""
_OPTION_OF = {field: name for name, field in SHORT.items()}

Layer = Mapping[str, Any]


def layer(keywords: Layer) -> dict[str, Any]:
    """A layer from keywords of a mark or a fixture: short names, `set={"dotted.field": value}`, `dotted__field=value`.

    Raises FieldError where `set` is not a mapping. Names that no scenario has are kept: loading the scenario answers them.
    """
    found: dict[str, Any] = {}
    for name, value in keywords.items():
        if name != "set":
            found[SHORT.get(name, name.replace("__", "."))] = value
        elif isinstance(value, Mapping):
            found |= value
        else:
            raise FieldError("set", value, 'a mapping, for example set={"workload.rate_per_s": 5}')
    return found


def merge(layers: Iterable[Layer]) -> dict[str, Any]:
    """One layer of all, the later ones winning. Fields that are None are as if not given."""
    found: dict[str, Any] = {}
    for each in layers:
        found |= each
    return {field: value for field, value in found.items() if value is not None}


def of_options(options: Mapping[str, str | None]) -> dict[str, Any]:
    """A layer from options of the command line, short name to text. A duration lifts the bound on the number of requests."""
    from harness.scenario import parse_set  # noqa: PLC0415  a suite without a hand-off test does not pay for it

    given = {name: text for name, text in options.items() if text is not None}
    found = dict(parse_set(f"{SHORT[name]}={text}") for name, text in given.items())
    return {"workload.requests": 0, **found} if "duration" in given else found


def of_lines(lines: Iterable[str]) -> dict[str, Any]:
    """A layer from lines `FIELD=VALUE` (the ini setting), where a field may have its short name. Raises FieldError for another line."""
    from harness.scenario import parse_set  # noqa: PLC0415

    parsed = (parse_set(line) for line in lines)
    return {SHORT.get(field, field): value for field, value in parsed}


def command(changes: Layer) -> list[str]:
    """The `handoff stress` that drives the same scenario as `changes`, as an argument list."""
    words = ["handoff", "stress"]
    if SCENARIO in changes:
        words.append(str(changes[SCENARIO]))
    for field, value in changes.items():
        if field in _OPTION_OF:
            words += [f"--{_OPTION_OF[field]}", _text(value)]
        elif field not in {SCENARIO, "name"}:
            words += ["--set", f"{field}={_text(value)}"]
    return words


def _text(value: Any) -> str:
    """As `--set` takes it: TOML, or bare text."""
    return value if isinstance(value, str) else json.dumps(value)


def folder_name(test: str) -> str:
    """A scenario name for a test's name: what a scenario's name may not have becomes '-', and its length is bounded."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in test)
    shown = kept.strip("-.")[:80].rstrip("-.") or "test"
    return "test-latest" if shown == "latest" or not any(map(str.isalnum, shown)) else shown
