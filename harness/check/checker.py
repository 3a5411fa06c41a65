"""From a folder of recorded streams to a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.check import limits
from harness.check.assumptions import BrokenAssumption, Survey, role, survey
from harness.check.coverage import coverage
from harness.check.faults import Faults
from harness.check.faults import coverage as fault_coverage
from harness.check.liveness import Load
from harness.check.occupancy import Occupancy
from harness.check.ownership import fewest_and_most
from harness.check.ranks import decode_rank, instance, seen_by
from harness.check.report import Anomaly, Expectations, Report, interval95
from harness.check.resources import Resources
from harness.check.rules import ANOMALIES, DENOMINATORS
from harness.check.streams import Step, steps
from harness.check.tally import Tally
from harness.check.view import View, attribution
from harness.check.witness import witnesses
from harness.history.event import Phase, Resource, Verb
from harness.history.reader import Stream, open_streams

FINDING_ONLY_IF_COMPLETE = {
    "lost": "hand-offs were open when the history ends",
    "phantom": "rows were committed of which no maker is recorded when the history ends",
}


def check_history(folder: Path, expect: Expectations, *, chunk: int = 20_000) -> Report:
    """Judge the run whose streams lie in `folder`, `chunk` hand-offs at a step.

    Memory does not grow with the length of the run. The report does not depend on `chunk`.
    Raises HistoryError when there is no history or it cannot be read.
    """
    streams = open_streams(folder)
    found = survey(streams, expect.slots)
    if found.broken or found.driver is None:
        return _unjudged(found.broken)
    run = _Run(streams, found, found.driver, expect)
    try:
        for step in steps(found.driver, run.others, max(chunk, 1)):
            run.take(step)
    except BrokenAssumption as error:
        return _unjudged([str(error)])
    return run.report()


def _unjudged(broken: Sequence[str]) -> Report:
    notes = [f"assumption broken: {what}" for what in broken]
    return Report(notes=notes, not_checked=["everything: the history cannot be relied on"])


class _Run:
    """Everything that is carried from step to step."""

    def __init__(self, streams: Sequence[Stream], found: Survey, driver: Stream, expect: Expectations) -> None:
        self.streams, self.expect, self.found = streams, expect, found
        keys = {decode: i for i, decode in enumerate(found.decodes)}
        self._ranks = [decode_rank(process, "", expect) for process, _ in found.decodes]
        others = [s for s in streams if role(s) != "driver"]
        self.others = [
            (keys.get((s.process, s.incarnation), -1 - decode_rank(s.process, s.thread, expect)), s) for s in others
        ]
        self.tally = Tally()
        self.faults = Faults(expect, self.tally, driver)
        self.resources = Resources(expect, self.tally, driver)
        self.views = [View(rank, expect, len(keys), self.tally, self.faults) for rank in range(expect.decode_tp)]
        self.first = self.views[0]
        self.window = self.first.window
        self.load = Load()
        self.occupancy = Occupancy(expect.slots * (len(keys) // expect.decode_tp))
        self.refused = 0

    def take(self, step: Step) -> None:
        """Take in a step and judge the hand-offs that are complete by then."""
        self.resources.take(step.driver)
        self.faults.take(step)
        load = self.load.take(step.driver)
        for view in self.views:
            turn, rows = view.take(step if len(self.views) == 1 else seen_by(step, view.rank, self._ranks), load)
            if view is self.first:
                self.occupancy.take(turn, self.load, self.found.last_ns if step.last else int(step.bound))
                self.occupancy.judge(rows)
        self.refused += len(step.pick(Verb.REFUSED)[0])

    def report(self) -> Report:
        """Close every rule and put the answer together."""
        self.first.aborts.close({instance(node, self.expect) for node in self.resources.gone})
        self.resources.close()
        expect, phases = self.expect, self.resources.phases
        self.faults.close(complete=Phase.FINISHED in phases)
        names = [process for process, _ in self.found.decodes]
        tenures = sum(view.ownership.slots.count for view in self.views)
        reuse = fewest_and_most(np.asarray(tenures), names, expect.slots)
        rate = self.load.rate_per_s(self.found.driver_last_ns)
        report = Report(
            requests=self.first.table.invoked,
            committed=self.window.committed,
            mismatch_aborts=sum(view.aborts.mismatches for view in self.views),
            other_aborts=self.first.aborts.others,
            wrong_data=sum(view.delivery.wrong_data for view in self.views),
            abort_attribution=attribution(self.views),
            coverage=coverage(expect, reuse[0], self.window, rate) + fault_coverage(expect, self.faults.hits),
            rate_per_s=rate,
            latency_ms=self.first.liveness.latencies.in_ms(),
            slot_occupancy=self.occupancy.share,
            slot_wait_ms=self.occupancy.waits.in_ms(),
            duration_s=(self.found.last_ns - self.found.first_ns) / 1e9,
            window_opened=self.window.opened,
            reuse_min=reuse[0],
            reuse_max=reuse[1],
            unconsumed_stale_fields=dict(sorted(sum((view.delivery.stale for view in self.views), Counter()).items())),
            resources=self.resources.final(),
            refused_writes=self.refused,
            late_messages=self.resources.total(Resource.LATE_MESSAGES),
            bad_messages=self.resources.total(Resource.BAD_MESSAGES),
            interrupted=Phase.INTERRUPTED in phases,
            complete=Phase.FINISHED in phases,
        )
        self._limits(report)
        self._anomalies(report)
        report.false_aborts = self.tally.count("false-abort")
        report.hung = self.tally.count("hang")
        report.leaked = self.tally.count("leak")
        self._verdict(report)
        return report

    def _limits(self, report: Report) -> None:
        """Say what this history cannot show."""
        if not report.complete:
            report.notes.append("the run was cut off: its driver's stream does not end with FINISHED")
            for name, what in FINDING_ONLY_IF_COMPLETE.items():
                count = self.tally.drop(name)
                if count:
                    report.notes.append(f"{count} {what}")
        harmless = sum(view.ownership.harmless for view in self.views)
        if harmless:
            report.notes.append(f"{harmless} late writes into a free slot, found by no later tenure")
        if not self.resources.at_rest:
            report.not_checked.append("leak: no census at rest was recorded")
        report.not_checked += [f"leak in {name}: no census at rest" for name in self._uncounted()]
        report.not_checked += [
            f"leak of threads or descriptors in {n}: no baseline" for n in self.resources.without_baseline()
        ]
        if report.committed and not all(view.ownership.writes for view in self.views):
            report.not_checked.append("foreign-write and late-write: no LANDED was recorded")
        unplaced = sum(view.ownership.unplaced for view in self.views)
        if unplaced:
            report.not_checked.append(f"{unplaced} writes: the slot they went to cannot be told")
        stalls = self.faults.stalls
        if stalls.timeouts:
            report.not_checked.append(
                f"hang: {stalls.timeouts} time-outs while the driver itself was not run ({stalls.total_s:.1f} s in all): the machine's, or not"
            )
        late = self._late()
        if late:
            what = f"{late} commits, aborts or reads that came {limits.LAG} hand-offs after their request's end, or of no request"
            report.not_checked.append(what)

    def _uncounted(self) -> list[str]:
        """Name the nodes that a census at rest left out."""
        return self.resources.uncounted() if self.resources.at_rest else []

    def _late(self) -> int:
        """Count records of consequence that came too late to be judged."""
        return sum(view.table.late[verb] for view in self.views for verb in (Verb.COMMIT, Verb.ABORT, Verb.USE))

    def _anomalies(self, report: Report) -> None:
        of = {
            "requests": report.requests,
            "committed": report.committed,
            "tenures": sum(int(view.ownership.slots.count.sum()) for view in self.views),
            "writes": sum(view.ownership.writes for view in self.views),
            "census lines": self.resources.lines,
            "node starts": self.resources.starts,
        }
        shown = witnesses(self.streams, self.tally, self.found.first_ns)
        for name, meaning in ANOMALIES.items():
            finding = self.tally.found.get(name)
            count = finding.count if finding else 0
            total = max(of[DENOMINATORS[name]], count)
            rate = count / total if total else 0.0
            anomaly = Anomaly(name, meaning, count, total, rate, interval95(count, total))
            if finding:
                anomaly.detail, anomaly.witnesses = dict(sorted(finding.detail.items())), shown[name]
                report.anomalies.append(anomaly)
            else:
                report.unseen.append(anomaly)

    def _verdict(self, report: Report) -> None:
        """Invalid, then unknown, then valid."""
        covered = all(entry.met for entry in report.coverage)
        provable = report.complete and covered and self.resources.at_rest and not self._late()
        provable = provable and not self._uncounted() and not self.faults.stalls.timeouts
        report.verdict = "invalid" if report.anomalies else "valid" if provable else "unknown"
