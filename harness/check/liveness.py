"""Hand-offs end within their bound; and how fast those ended that the load made."""

from __future__ import annotations

import numpy as np

from harness.check.arrays import U64, Counts, Mask, Rows, take
from harness.check.faults import Faults
from harness.check.report import Expectations
from harness.check.tally import Tally
from harness.history.event import Kind, Phase, Reason, Verb
from harness.history.reader import Records

_PER_OCTAVE = 70
"""Buckets for each doubling: a bucket's middle is within 0.5 % of what is in it."""
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class Liveness:
    """Judges how long hand-offs took."""

    def __init__(self, expect: Expectations, tally: Tally, faults: Faults) -> None:
        """Nothing judged yet. `faults` knows what was injected."""
        self._faults = faults
        self._bound_ns = np.uint64(min(expect.hang_bound_s * 1e9, 2**63))
        self._tally = tally
        self.latencies = Latencies()

    def judge(self, rows: Rows) -> None:
        """Judge `rows` of a `Table`."""
        ended = rows["ends"] > 0
        kind, code = rows["end_kind"], rows["end_code"]
        tests = {
            "driver stopped waiting": (kind == Kind.INFO) & (code == Reason.DRIVER_TIMEOUT),
            "engine's time-out": ((rows["aborts"] > 0) & (rows["abort_code"] == Reason.TIMEOUT))
            | ((kind == Kind.FAIL) & (code == Reason.TIMEOUT)),
            "ended late": ended & (rows["end_t"] - rows["invoke_t"] > self._bound_ns),
        }
        hung = np.zeros(len(rows), np.bool_)
        detail: dict[str, int] = {}
        if rows["faults"].any() or self._faults.windows:
            self._excuse(rows, tests)
        if self._faults.stalls:
            self._doubt(rows, tests)
        for what, which in tests.items():
            detail[what] = int((which & ~hung).sum())
            hung |= which
        astray = hung & (rows["allocs"] > 0) & (rows["asked"] != rows["prefill"])
        detail["decode asked another prefill than the router chose"] = int(astray.sum())
        found = take(rows, hung)
        detail = {what: count for what, count in detail.items() if count}
        self._tally.add("hang", found["invoke_t"], found["room"], found["prev"], detail=detail)
        good = ended & rows["load"] & (kind == Kind.OK) & (rows["end_t"] > rows["start_t"])
        self.latencies.add(rows["end_t"][good] - rows["start_t"][good])

    def _excuse(self, rows: Rows, tests: dict[str, Mask]) -> None:
        """Leave out of `tests` (n,) what a fault explains."""
        engine, driver = (self._faults.excused(rows, reason) for reason in (Reason.TIMEOUT, Reason.DRIVER_TIMEOUT))
        tests["driver stopped waiting"] &= ~driver
        tests["engine's time-out"] &= ~engine
        tests["ended late"] &= ~(engine | driver)

    def _doubt(self, rows: Rows, tests: dict[str, Mask]) -> None:
        """Take out of `tests` (n,), and count, what timed out while the driver itself stood still."""
        stalls = self._faults.stalls
        stood = stalls.explain(rows)
        stalls.timeouts += int((np.logical_or.reduce(list(tests.values())) & stood).sum())
        for what in tests:
            tests[what] &= ~stood


class Latencies:
    """A histogram of ns with buckets of 1 %: memory does not grow."""

    def __init__(self) -> None:
        """No value yet."""
        self._counts: Counts = np.zeros(64 * _PER_OCTAVE + 1, np.int64)
        self._most = 0

    def add(self, latency_ns: U64) -> None:
        """Count values (n,), each above 0."""
        if len(latency_ns):
            buckets = (np.log2(latency_ns.astype(np.float64)) * _PER_OCTAVE).astype(np.int64)
            self._counts += np.bincount(buckets, minlength=len(self._counts))
            self._most = max(self._most, int(latency_ns.max()))

    def in_ms(self) -> dict[str, float]:
        """Quantiles, within 1 %, and the exact maximum; empty when nothing was counted."""
        upto = np.cumsum(self._counts)
        if not upto[-1]:
            return {}
        most = self._most / 1e6
        result = {}
        for name, share in _QUANTILES.items():
            bucket = int(np.searchsorted(upto, np.ceil(share * upto[-1])))
            result[name] = min(float(2 ** ((bucket + 0.5) / _PER_OCTAVE)) / 1e6, most)
        return result | {"max": most}


class Load:
    """The stretch of the driver's stream from PHASE LOAD to PHASE DRAIN, and what ended well in it."""

    def __init__(self) -> None:
        """Before the load."""
        self._from_ns: int | None = None
        self._to_ns: int | None = None
        self._ended = 0

    def take(self, driver: Records) -> Mask:
        """Look at a step's driver records (n,); returns which of them belong to the load."""
        inside = np.zeros(len(driver), np.bool_)
        start = 0 if self._running else len(driver)
        for i in np.flatnonzero(driver["verb"] == Verb.PHASE):
            if driver["code"][i] == Phase.LOAD and self._from_ns is None:
                self._from_ns, start = int(driver["t_ns"][i]), int(i)
            elif driver["code"][i] == Phase.DRAIN and self._running:
                self._to_ns = int(driver["t_ns"][i])
                inside[start:i] = True
        if self._running:
            inside[start:] = True
        ends = inside & (driver["verb"] == Verb.HANDOFF) & (driver["kind"] == Kind.OK)
        self._ended += int(ends.sum())
        return inside

    def window(self, low_ns: int, high_ns: int) -> tuple[int, int]:
        """The part of the stretch `low_ns` to `high_ns` that is known to belong to the load, ns; empty where begin >= end."""
        if self._from_ns is None:
            return 0, 0
        return max(low_ns, self._from_ns), min(high_ns, self._to_ns if self._to_ns is not None else high_ns)

    @property
    def _running(self) -> bool:
        return self._from_ns is not None and self._to_ns is None

    def rate_per_s(self, last_ns: int) -> float:
        """Hand-offs that ended well a second; a load that did not end ends at `last_ns`."""
        if self._from_ns is None:
            return 0.0
        length_ns = (self._to_ns if self._to_ns is not None else last_ns) - self._from_ns
        return self._ended * 1e9 / length_ns if length_ns > 0 else 0.0
