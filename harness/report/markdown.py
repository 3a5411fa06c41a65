"""A run as Markdown, for the summary page of a CI job."""

from __future__ import annotations

from typing import Any

from harness.report.words import VERDICTS, events_of, percent


def render(results: dict[str, Any]) -> str:
    """GitHub's Markdown for `results` (the content of results.json), with a final newline."""
    figures = ("requests", "committed", "false_aborts", "wrong_data", "other_aborts", "hung", "leaked")
    lines = [
        f"## Hand-off stress: {results['verdict'].upper()}",
        "",
        VERDICTS[results["verdict"]],
        "",
        f"guards `{results['guards']}`, transport `{results['transport']}`, planes {results['planes']}, seed {results['seed']}",
        "",
        *_table([*(name.replace("_", " ") for name in figures), "rate /s"], [[*(results[name] for name in figures), f"{results['rate_per_s']:.0f}"]]),
    ]  # fmt: skip
    lines += _anomalies(results)
    lines += ["", "### Coverage", ""]
    rows = [
        [c["name"], f"{c['seen']:g}", f"{c['needed']:g}", "met" if c["met"] else "**not met**"]
        for c in results["coverage"]
    ]
    lines += _table(["what", "seen", "needed", ""], rows)
    lines += [f"\nNote: {_plain(note)}" for note in results["notes"]]
    lines += [f"\nNot checked: {_plain(name)}" for name in results["not_checked"]]
    lines += ["", "Repeat with", "", f"    {results['command']}", "", f"Run folder: `{results['folder']}`"]
    return "\n".join(lines) + "\n"


def _anomalies(results: dict[str, Any]) -> list[str]:
    if not results["anomalies"]:
        return []
    rows = [
        [f"`{a['name']}`", a["count"], f"{percent(a['rate'])} ({percent(a['interval'][0])} to {percent(a['interval'][1])})", _plain(a["meaning"])]
        for a in results["anomalies"]
    ]  # fmt: skip
    lines = ["", "### Anomalies", "", *_table(["anomaly", "count", "rate (95 %)", "meaning"], rows)]
    for anomaly in results["anomalies"]:
        if anomaly["witnesses"]:
            lines += ["", f"<details><summary>a witness of {anomaly['name']}</summary>", "", *_witness(anomaly["witnesses"][0]), "", "</details>"]  # fmt: skip
    return lines


def _witness(witness: list[dict[str, Any]]) -> list[str]:
    rows = [
        [event["at"], event["who"], event["request"], event["says"], _plain("; ".join(filter(None, (event["place"], event["details"]))))]
        for event in events_of(witness)
    ]  # fmt: skip
    return _table(["us", "who", "request", "what", "details"], rows)


def _table(heads: list[str], rows: list[list[Any]]) -> list[str]:
    return [_row(heads), _row(["---"] * len(heads)), *map(_row, rows)]


def _row(cells: list[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _plain(text: str) -> str:
    """Keep a cell on its line and in its column."""
    return text.replace("|", "\\|").replace("\n", " ")
