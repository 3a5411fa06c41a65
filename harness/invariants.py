"""Rules of plugins: after the checker has judged a history, each looks at it too, and what it finds is one more anomaly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness import extension
from harness.check import Anomaly, Report
from harness.check.report import interval95
from harness.check.tally import Tally
from harness.check.witness import witnesses
from harness.history.event import DTYPE, Verb
from harness.history.reader import Records, Stream, open_streams

CHUNK = 65_536
"""Records read at a time."""


class History:
    """A run's history, for a rule. `streams`: one for each thread that recorded, see `harness.history.event`."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        """Nothing read yet."""
        self.streams = streams

    def of(self, verb: Verb, process: str = "") -> Records:
        """All records of `verb`, (n,), of processes whose name starts with `process`, in the order of their times."""
        streams = [stream for stream in self.streams if stream.process.startswith(process)]
        parts = (part for stream in streams for part in stream.chunks(CHUNK))
        together = np.concatenate([np.empty(0, DTYPE), *(part[part["verb"] == verb] for part in parts)])
        ordered: Records = together[np.argsort(together["t_ns"], kind="stable")]
        return ordered


def judge(folder: Path, report: Report) -> None:
    """Add what the active plugins' rules find in the history under `folder` to `report`."""
    rules = extension.active().invariants
    if not rules or not report.requests:
        return
    streams = open_streams(folder)
    tally, history = Tally(), History(streams)
    for name, rule in rules.items():
        rooms = np.array(sorted(set(rule.find(history))), np.uint64)
        tally.add(name, np.zeros(len(rooms), np.uint64), rooms)
    first_ns = min((int(stream.read(0, 1)["t_ns"][0]) for stream in streams if stream.count), default=0)
    shown = defaultdict(list, witnesses(streams, tally, first_ns))
    for name, rule in rules.items():
        count = tally.count(name)
        of = max(report.requests, count)
        anomaly = Anomaly(name, rule.meaning, count, of, count / of, interval95(count, of), witnesses=shown[name])
        (report.anomalies if count else report.unseen).append(anomaly)
    if report.anomalies:
        report.verdict = "invalid"
