"""What a run looked like over time, from the driver's stream alone: hand-offs that ended a second, and their latency."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.errors import HistoryError
from harness.history.event import Kind, Verb
from harness.history.reader import open_streams

CHUNK = 1 << 16
BINS = 120


@dataclasses.dataclass
class Series:
    """Arrays over `BINS` equal spans of time, and a histogram of latencies.

    `t_s`: float64 (n,), begin of each span, from the first hand-off; `ok_per_s`, `other_per_s`: float64 (n,), ends a second, committed and
    not; `latency_ms`: float64 (m,), the latencies of committed hand-offs at evenly spaced ranks, sorted.
    """

    t_s: npt.NDArray[np.float64]
    ok_per_s: npt.NDArray[np.float64]
    other_per_s: npt.NDArray[np.float64]
    latency_ms: npt.NDArray[np.float64]


def series(history: Path) -> Series | None:
    """The series of a recorded run; None where no hand-off ended. Raises HistoryError when there is no driver's stream."""
    begun, ended = _events(history)
    if not len(ended["index"]):
        return None
    start = begun["t_ns"].min() if len(begun["t_ns"]) else ended["t_ns"].min()
    t_s = (ended["t_ns"] - start) * 1e-9
    span = max(float(t_s.max()), 1e-9)
    edges = np.linspace(0.0, span, BINS + 1)
    ok = ended["kind"] == Kind.OK
    width = span / BINS
    return Series(
        t_s=edges[:-1],
        ok_per_s=np.histogram(t_s[ok], edges)[0] / width,
        other_per_s=np.histogram(t_s[~ok], edges)[0] / width,
        latency_ms=_latency(begun, ended, ok),
    )


def _latency(begun: dict[str, npt.NDArray[np.int64]], ended: dict[str, npt.NDArray[np.int64]], ok: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:  # fmt: skip
    order = np.argsort(begun["index"], kind="stable")
    index, t_ns = begun["index"][order], begun["t_ns"][order]
    place = np.searchsorted(index, ended["index"][ok])
    known = place < len(index)
    known[known] = index[place[known]] == ended["index"][ok][known]
    found = np.sort((ended["t_ns"][ok][known] - t_ns[place[known]]) * 1e-6)
    return found[np.linspace(0, len(found) - 1, min(len(found), 2000)).astype(np.int64)] if len(found) else found


def _events(history: Path) -> tuple[dict[str, npt.NDArray[np.int64]], dict[str, npt.NDArray[np.int64]]]:
    """(begins, ends) of hand-offs: index, time in ns and kind of each; 24 bytes a hand-off stay in memory."""
    parts: tuple[list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]] = ([], [])
    streams = [stream for stream in open_streams(history) if stream.process.startswith("driver")]
    if not streams:
        raise HistoryError(f"{history}: no driver's stream here")
    for stream in streams:
        for records in stream.chunks(CHUNK):
            mine = records[records["verb"] == Verb.HANDOFF]
            for invoked, found in ((True, parts[0]), (False, parts[1])):
                some = mine[(mine["kind"] == Kind.INVOKE) == invoked]
                intended = some["a"] if invoked else np.zeros(len(some), np.uint64)
                t_ns = np.where(intended > 0, intended, some["t_ns"]).astype(np.int64)
                found.append(np.stack([some["b"].astype(np.int64), t_ns, some["kind"].astype(np.int64)]))
    begun, ended = (dict(zip(("index", "t_ns", "kind"), np.concatenate(part, axis=1), strict=True)) for part in parts)
    return begun, ended
