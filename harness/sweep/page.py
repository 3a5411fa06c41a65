"""One HTML file that works offline: what was varied, heat maps, curves, every cell, and what it ran on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, StrictUndefined, select_autoescape
from markupsafe import Markup

from harness import scenario as scenarios
from harness.sweep import charts
from harness.sweep.grid import Axis, label
from harness.sweep.plan import Job, Plan
from harness.sweep.stats import Summary
from harness.sweep.table import number, percent, span
from harness.sweep.views import LOADS, Line, busy, line_axis, lines, trends

MAPS_MAX = 12
SHOWN = ("guards", "planes", "transport.name", "workload.concurrency", "engine.slots", "transport.late_fraction", "transport.delay_us", "transport.jitter_us", "transport.ack", "workload.arrival", "workload.rate_per_s", "engine.slot_policy", "engine.poll_interval_ms", "topology.prefill", "topology.decode", "seed")  # fmt: skip
"""Fields that a reader wants to know even at their defaults."""


class Square(msgspec.Struct, frozen=True):
    """One field of a heat map: text, how strong its colour is (0 to 1), its verdict and the full text on hover."""

    text: str
    strength: float
    verdict: str
    title: str


class Heat(msgspec.Struct, frozen=True):
    """A heat map: `rows` are (value of `down`, squares along `across`)."""

    title: str
    across: Axis
    down: Axis | None
    rows: list[tuple[Any, list[Square | None]]]


class Metric(msgspec.Struct, frozen=True):
    """What a heat map shows; `value` gives NaN where a cell has none."""

    title: str
    note: str
    value: Callable[[Summary], float]
    text: Callable[[Summary], str]


def _rate_of_false(cell: Summary) -> float:
    return cell.false_aborts.rate if cell.false_aborts.of else math.nan


def _short_percent(rate: float) -> str:
    return "" if math.isnan(rate) else f"{rate * 100:.2g} %"


METRICS = (
    Metric("False aborts", "share of hand-offs; stronger colour is more", _rate_of_false, lambda c: _short_percent(_rate_of_false(c))),
    Metric("Rate", "hand-offs that ended well a second; stronger colour is more", lambda c: c.rate.middle, lambda c: number(c.rate.middle)),
    Metric("p99 latency", "ms, 99 of 100 hand-offs were quicker; stronger colour is slower", lambda c: c.p99.middle, lambda c: number(c.p99.middle)),
    Metric("Slots held", "share of the pool in use, averaged over time", lambda c: c.occupancy.middle, lambda c: "" if math.isnan(c.occupancy.middle) else f"{c.occupancy.middle:.0%}"),
    Metric("Reuse", "tenures in one run of the slot that had the fewest; stronger colour is more", lambda c: c.reuse.middle, lambda c: number(c.reuse.middle)),
)  # fmt: skip
WRONG = Metric("Wrong data", "share of hand-offs that got another request's data and did not notice", lambda c: c.wrong_data.rate, lambda c: _short_percent(c.wrong_data.rate))  # fmt: skip


def render(
    cells: Sequence[Summary], *, manifest: Mapping[str, Any], plan: Plan, left: int, lead: Sequence[str] = (), title: str = "Hand-off sweep",
    search: bool = False,
) -> str:  # fmt: skip
    """The page. `left`: runs that are missing; `lead`: lines that stand before everything else; `search`: the cells are no full grid."""
    axis = line_axis(plan.axes)
    drawn = lines(cells, axis) if axis else []
    curves = _curves(drawn, axis)
    if search:
        drawn = []
        curves = [svg for one in plan.axes for svg in _curves([line for line in lines(cells, one) if len(line.cells) > 2], one, ("rate", "p99"))]  # fmt: skip
    environment = Environment(autoescape=select_autoescape(default=True), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters |= {"percent": percent, "span": span, "label": label}
    template = environment.from_string(files("harness.sweep").joinpath("page.html.j2").read_text())
    return template.render(
        title=title, lead=lead, manifest=manifest, plan=plan, left=left, cells=cells, axis=axis,
        runs=sum(cell.runs for cell in cells), held=held(plan), findings=_findings(cells, [] if search else plan.axes, drawn),
        maps=[] if search else heat_maps(cells, plan.axes), curves=curves, search=search,
        hidden=max(0, len(drawn) - charts.SERIES_MAX), has_knee=axis is not None and axis.field in LOADS,
        widest=max((cell.runs for cell in cells), default=0), verdicts=_verdicts(cells),
    )  # fmt: skip


def held(plan: Plan) -> list[tuple[str, Any]]:
    """Field and value of what was the same in every cell and matters, or is not the default."""
    first = plan.scenario(Job({axis.field: axis.values[0] for axis in plan.axes}, 1))
    window = scenarios.transport_settings(first.transport)
    plain, varied = scenarios.Scenario(), {axis.field for axis in plan.axes}
    found = []
    for field in scenarios.fields():
        if field in varied or field == "name":
            continue
        value = scenarios.get(first, field)
        if value is None and "transport.name" not in varied:
            value = getattr(window, field.rpartition(".")[2], None)
        if field in SHOWN or value != scenarios.get(plain, field):
            found.append((field, value))
    return [
        (field, _plain(value))
        for field, value in found
        if value is not None and (field, value) != ("workload.rate_per_s", 0.0)
    ]


def _plain(value: Any) -> Any:
    """As it is written in TOML, without a fraction of zero."""
    if isinstance(value, bool):
        return str(value).lower()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _verdicts(cells: Sequence[Summary]) -> list[tuple[str, int]]:
    names = ("valid", "invalid", "unknown", "failed")
    counts = [(name, sum(cell.verdict == name for cell in cells)) for name in names]
    return [(name, count) for name, count in counts if count]


def _findings(cells: Sequence[Summary], axes: Sequence[Axis], drawn: Sequence[Line]) -> list[str]:
    known = [cell for cell in cells if not math.isnan(cell.rate.middle)]
    found = []
    if known:
        best = max(known, key=lambda cell: cell.rate.middle)
        found.append(f"Highest rate: {number(best.rate.middle)} hand-offs a second, at {label(best.values)} (p99 {number(best.p99.middle)} ms).")  # fmt: skip
    for line in drawn:
        where = f" with {line.label}" if line.rest else ""
        if line.knee:
            found.append(f"Knee{where}: {number(line.knee.at)} in flight give {number(line.knee.rate)} a second; more load brings less than 5 % more." if _in_flight(axes) else f"Knee{where}: at {number(line.knee.at)}.")  # fmt: skip
    if _in_flight(axes) and (rising := [line for line in drawn if not line.knee and len(line.cells) > 1]):
        where = "" if len(rising) == len(drawn) else f" with {'; '.join(line.label for line in rising)}"
        found.append(f"No knee{where}: the rate still rises at the end of the range.")
    found += [f"{trend.text[0].upper()}{trend.text[1:]}." for trend in trends(cells, axes)]
    found += [f"{text[0].upper()}{text[1:]}." for text in ([] if not axes else busy(cells))]
    wrong = sum(cell.wrong_data.count for cell in cells)
    found.append(
        f"Wrong data, the silent kind: {wrong} hand-offs." if wrong else "Wrong data, the silent kind: none seen."
    )
    return found


def _in_flight(axes: Sequence[Axis]) -> bool:
    """Whether the curves run along the number of hand-offs in flight."""
    axis = line_axis(axes)
    return axis is not None and axis.field == "workload.concurrency"


def heat_maps(cells: Sequence[Summary], axes: Sequence[Axis]) -> list[tuple[Metric, list[Heat]]]:
    """For each metric one map over the two axes that are worth most room, and one for each combination of the others."""
    wide = sorted(axes, key=lambda axis: (axis is line_axis(axes), len(axis.values)), reverse=True)
    if not wide:
        return []
    across, down, others = wide[0], wide[1] if len(wide) > 1 else None, wide[2:]
    metrics = [*METRICS, WRONG] if any(cell.wrong_data.count for cell in cells) else list(METRICS)
    groups: dict[str, dict[str, Any]] = {}
    for cell in cells:
        rest = {axis.field: cell.values[axis.field] for axis in others}
        groups.setdefault(repr(rest), rest)
    found = []
    for metric in metrics:
        top = max((v for cell in cells if not math.isnan(v := metric.value(cell))), default=0.0)
        found.append((metric, [_heat(metric, cells, across, down, rest, top) for rest in list(groups.values())[:MAPS_MAX]]))  # fmt: skip
    return found


def _heat(
    metric: Metric, cells: Sequence[Summary], across: Axis, down: Axis | None, rest: Mapping[str, Any], top: float
) -> Heat:
    at = {(repr(c.values[across.field]), repr(c.values[down.field]) if down else ""): c for c in cells if all(c.values[f] == v for f, v in rest.items())}  # fmt: skip
    rows = []
    for value in down.values if down else [""]:
        found = [at.get((repr(x), repr(value) if down else "")) for x in across.values]
        rows.append((value, [_square(metric, cell, top) if cell else None for cell in found]))
    return Heat(label(rest) if rest else "", across, down, rows)


def _square(metric: Metric, cell: Summary, top: float) -> Square:
    value = metric.value(cell)
    strength = 0.0 if math.isnan(value) or top <= 0 else value / top
    title = f"{label(cell.values)}: {cell.verdict}; {span(cell.rate)} /s, p99 {span(cell.p99)} ms, false aborts {percent(cell.false_aborts)}, wrong data {percent(cell.wrong_data)}"  # fmt: skip
    return Square(metric.text(cell) or cell.verdict, round(strength, 3), cell.verdict, title)


def _curves(drawn: Sequence[Line], axis: Axis | None, names: Sequence[str] = ("rate", "p99", "false_aborts", "p50")) -> list[Markup]:  # fmt: skip
    if axis is None or not drawn:
        return []
    return [Markup(getattr(charts, name)(drawn, axis)) for name in names]  # noqa: S704  made here, with matplotlib's own escaping
