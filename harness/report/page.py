"""A run as one HTML file that works offline: verdict, figures, anomalies with their witnesses, coverage, charts."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from harness.check.rules import DENOMINATORS
from harness.report.series import Series, series
from harness.report.words import LANES, VERDICTS, events_of, percent

NO_CHARTS = "Charts need matplotlib: install pd-handoff[report] and run handoff report again."


def render(results: dict[str, Any], history: Path | None) -> str:
    """The page for `results` (the content of results.json); without `history` it has no charts."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("harness.report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["percent"] = percent
    found = series(history) if history is not None else None
    drawable = find_spec("matplotlib") is not None
    return environment.get_template("run.html.j2").render(
        r=results,
        says=VERDICTS[results["verdict"]],
        anomalies=[{**_anomaly(anomaly), "first": not number} for number, anomaly in enumerate(results["anomalies"])],
        lanes=LANES,
        of=DENOMINATORS,
        charts=_charts(found) if found is not None and drawable else [],
        no_charts="" if drawable or found is None else NO_CHARTS,
    )


def _anomaly(anomaly: dict[str, Any]) -> dict[str, Any]:
    return {**anomaly, "witnesses": [events_of(witness) for witness in anomaly["witnesses"]]}


def _charts(found: Series) -> list[tuple[str, str]]:
    """(caption, SVG) of each chart."""
    charts = [("Hand-offs that ended a second, over the run", _over_time(found))]
    if len(found.latency_ms) > 1:
        charts.append(("Latency of committed hand-offs: share that took at most so long", _latency(found)))
    return charts


def _over_time(found: Series) -> str:
    figure = _figure()
    axes = figure.subplots()
    axes.plot(found.t_s, found.ok_per_s, color="#2563ab", linewidth=1.2, label="committed")
    if found.other_per_s.any():
        axes.plot(found.t_s, found.other_per_s, color="#b3261e", linewidth=1.2, label="ended otherwise")
        axes.legend(frameon=False, fontsize=8)
    axes.set(xlabel="seconds since the first hand-off", ylabel="a second", ylim=(0, None))
    return _svg(figure)


def _latency(found: Series) -> str:
    figure = _figure()
    axes = figure.subplots()
    share = np.linspace(0, 100, len(found.latency_ms))
    axes.plot(np.maximum(found.latency_ms, 1e-3), share, color="#2563ab", linewidth=1.2)
    axes.set(xscale="log", xlabel="ms", ylabel="% of hand-offs", ylim=(0, 101))
    return _svg(figure)


def _figure() -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415  half a second, and optional

    return Figure(figsize=(7.2, 2.6), layout="constrained")


def _svg(figure: Any) -> str:
    for axes in figure.axes:
        axes.grid(visible=True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    out = io.StringIO()
    # No date and fixed ids: the same run gives the same page.
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "handoff", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue().partition("<svg")[1] + out.getvalue().partition("<svg")[2]
