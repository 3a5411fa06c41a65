"""What a sweep is to do, and in which order."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from harness import scenario as scenarios
from harness.errors import FieldError
from harness.scenario import Scenario
from harness.sweep.grid import Axis

REPEATS_MAX = 100
RUNS_MAX = 10_000
WARMUP_MIN, WARMUP_MAX = 20, 200
_SLUG_MAX = 60


class Job(msgspec.Struct, frozen=True):
    """One run: a cell's values by field, and which repeat of it this is, from 1."""

    values: dict[str, Any]
    repeat: int

    @property
    def name(self) -> str:
        """The name of its folder, unique in the sweep: letters, digits, '-', '_' and '.'."""
        text = ".".join(f"{Axis(field, []).short}-{value}" for field, value in self.values.items()) or "base"
        slug = re.sub(r"[^A-Za-z0-9._-]+", "_", text)
        if slug != text or len(slug) > _SLUG_MAX:
            digest = hashlib.sha256(key(self.values).encode()).hexdigest()[:8]
            slug = f"{slug[:_SLUG_MAX]}-{digest}"
        return f"{slug}.r{self.repeat}"


class Plan(msgspec.Struct, frozen=True):
    """A sweep: `tree` is the scenario file as read, `changes` what the options set on top, `axes` what is varied.

    Each cell is driven for `run_s` seconds, `repeats` times; a bound that the scenario itself sets (`workload.duration_s`,
    `workload.requests`) takes the place of `run_s`.
    """

    tree: dict[str, Any]
    changes: dict[str, Any]
    axes: list[Axis]
    run_s: float
    repeats: int

    def scenario(self, job: Job) -> Scenario:
        """The scenario of one run; raises UsageError naming the field that is not allowed.

        Repeats have seeds of their own, or they would all draw the same late hand-offs.
        """
        changes = {**self._defaults(job.values), **self.changes, **job.values, "name": job.name}
        first = scenarios.build(copy.deepcopy(self.tree), changes)
        return msgspec.structs.replace(first, seed=(first.seed + job.repeat - 1) % 2**63)

    def _defaults(self, values: Mapping[str, Any]) -> dict[str, Any]:
        given = {**self.changes, **values}
        workload = self.tree.get("workload", {})
        own = workload if isinstance(workload, dict) else {}

        def unset(field: str) -> bool:
            return f"workload.{field}" not in given and field not in own

        found: dict[str, Any] = {}
        if unset("duration_s") and unset("requests"):
            found["workload.duration_s"] = self.run_s
        if unset("warmup"):
            concurrency = given.get("workload.concurrency", own.get("concurrency", scenarios.Workload().concurrency))
            number = concurrency if isinstance(concurrency, int) else WARMUP_MIN
            found["workload.warmup"] = min(max(number, WARMUP_MIN), WARMUP_MAX)
        return found

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for two sweeps' cells to be comparable."""
        return {"tree": self.tree, "changes": self.changes, "fields": sorted(a.field for a in self.axes), "run_s": self.run_s}  # fmt: skip

    def check(self, cells: Iterable[Mapping[str, Any]]) -> None:
        """Raise FieldError or UsageError unless every cell is a scenario that can be run."""
        if not 1 <= self.repeats <= REPEATS_MAX:
            raise FieldError("--repeats", self.repeats, f"1 to {REPEATS_MAX}")
        count = 0
        for values in cells:
            self.scenario(Job(dict(values), 1))
            count += self.repeats
        if count > RUNS_MAX:
            raise FieldError("grid", f"{count} runs", f"at most {RUNS_MAX}")


def key(values: Mapping[str, Any]) -> str:
    """A cell's values in one word, whatever the order of its axes."""
    return json.dumps(dict(sorted(values.items())))


def rounds(plan: Plan, cells: list[dict[str, Any]], seed: int) -> list[Job]:
    """Every run, in rounds: each round has every cell once, in an order of its own that `seed` decides.

    Cells of one topology stand together within a round: they share their nodes.
    """
    jobs = []
    for repeat in range(1, plan.repeats + 1):
        order = [Job(values, repeat) for values in cells]
        draws = random.Random(f"{seed}:{repeat}")
        draws.shuffle(order)
        groups: dict[str, list[Job]] = {}
        for job in order:
            groups.setdefault(repr(plan.scenario(job).topology), []).append(job)
        jobs += [job for group in groups.values() for job in group]
    return jobs
