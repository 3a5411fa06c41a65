"""The end of a run in words: verdict, anomalies with rates and intervals, coverage, where the folder is, how to repeat it."""

from __future__ import annotations

from typing import Any


def render(results: dict[str, Any]) -> str:
    """Text of `results` (the content of results.json), without a final newline."""
    lines = [f"verdict: {results['verdict'].upper()}", *_figures(results), ""]
    lines += _anomalies(results)
    lines += _coverage(results)
    if results["interrupted"]:
        lines.append("interrupted: the load was ended early; what had been driven until then is judged")
    lines += [
        f"crash of {crash['node']}: thread {crash['thread']!r} died: {crash['error']}"
        for crash in results.get("crashes", [])
    ]
    lines += [f"note: {note}" for note in results["notes"]]
    lines += [f"not checked: {name}" for name in results["not_checked"]]
    lines += ["", f"run folder: {results['folder']} (report.html there, or: handoff report {results['folder']})"]
    if results["verdict"] != "valid":
        lines.append(f"repeat with: {results['command']}")
    return "\n".join(lines)


def _figures(results: dict[str, Any]) -> list[str]:
    latency = results["latency_ms"]
    figures = [
        f"{_engine(results)}, transport {_transport(results)}, planes {results['planes']}, seed {results['seed']}",
        (
            f"{results['requests']} hand-offs, {results['committed']} committed, {results['mismatch_aborts']} mismatch aborts "
            f"({results['false_aborts']} false), {results['other_aborts']} other aborts, {results['wrong_data']} wrong data, "
            f"{results['hung']} hung, {results['leaked']} leaked"
        ),
        f"{results['rate_per_s']:.0f} hand-offs/s",
    ]
    if latency:
        figures[-1] += "; latency ms " + ", ".join(f"{name} {value:.2f}" for name, value in latency.items())
    return figures


def _transport(results: dict[str, Any]) -> str:
    """Name, release, and what done means where that was measured."""
    version, done = results.get("transport_version"), results.get("transport_done") or {}
    name = f"{results['transport']}=={version}" if version else str(results["transport"])
    if done.get("how") != "measured":
        return name
    return name + (" (done = bytes left)" if done["means"] == "left" else " (done = visible)")


def _engine(results: dict[str, Any]) -> str:
    name = results.get("engine", "reference")
    if name == "reference":
        return f"guards {results['guards']}"
    return f"engine {name}" + (f", guards {results['guards']}" if name.startswith("prefill=") else "")


def _anomalies(results: dict[str, Any]) -> list[str]:
    if not results["anomalies"]:
        return ["anomalies: none"]
    lines = ["anomalies:"]
    for anomaly in results["anomalies"]:
        low, high = anomaly["interval"]
        lines.append(
            f"  {anomaly['name']}: {anomaly['count']} of {anomaly['of']} = {_percent(anomaly['rate'])} "
            f"(95 %: {_percent(low)} to {_percent(high)}): {anomaly['meaning']}"
        )
        if anomaly["detail"]:
            lines.append("    " + ", ".join(f"{name} {count}" for name, count in anomaly["detail"].items()))
    return lines


def _coverage(results: dict[str, Any]) -> list[str]:
    lines = ["coverage:"]
    for item in results["coverage"]:
        state = "met" if item["met"] else "NOT MET"
        lines.append(f"  {item['name']}: {item['seen']:g} (needs {item['needed']:g}) {state}")
    return lines


def _percent(rate: float) -> str:
    return f"{rate * 100:.3g} %"
