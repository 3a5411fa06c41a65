"""Writes the history of one schedule with the real recorder and has the real checker judge it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from harness.check import Expectations, check_history
from harness.history.event import Kind, NodeEvent, Phase, Resource, Role, Verb
from harness.history.recorder import Recorder

from .judge import EXTRA
from .world import ROOMS, Action, Setup, World

STREAMS = {"driver": ("driver", "main"), "decode": ("decode-0", "main"), "prefill": ("prefill-0", "main")}
STREAMS["prefill1"] = ("prefill-1", "main")
STREAMS["plane"] = ("prefill-0", "mover")
RECORDED_TWICE = {"foreign-write", "late-write", "leak"}
"""Counted in other units by the checker: only whether they occur is compared."""


Counts = Counter[str]


def check_schedule(setup: Setup, actions: list[Action], folder: Path) -> tuple[Counts, Counts]:
    """Run a whole schedule; returns what the judge found and what the checker found, by name."""

    def tape(world: World) -> dict[str, Recorder]:
        folder.mkdir(parents=True)
        recorders = {}
        for stream, (process, thread) in STREAMS.items():
            recorders[stream] = Recorder(folder / f"{process}.1.{thread}.hist", process, thread)
            recorders[stream]._now = world.tick
        _begin(recorders["driver"], setup)
        return recorders

    world = World(setup, tape)
    for action in actions:
        world.do(action)
    held = world.held()
    world.finish()
    judged = Counter(found.split()[0] for found in world.judge.fresh)
    assert world.tape is not None
    _end(world.tape["driver"], held)
    for recorder in world.tape.values():
        recorder.close()
    world.close()
    report = check_history(folder, _expectations(world))
    assert report.complete, report.notes
    checked = Counter({anomaly.name: anomaly.count for anomaly in report.anomalies})
    stale = judged["unconsumed-stale"] > 0
    assert stale == (sum(report.unconsumed_stale_fields.values()) > 0)
    own = Counter({name: count for name, count in judged.items() if name not in EXTRA})
    return _comparable(own), _comparable(checked)


def _comparable(counts: Counts) -> Counts:
    return Counter({name: 1 if name in RECORDED_TWICE else count for name, count in counts.items()})


def _expectations(world: World) -> Expectations:
    guards = world.guards
    return Expectations(
        slots=1,
        hang_bound_s=1.0,
        clean_slot=guards.clear_on_free,
        drained_release=world.drained_release,
        min_reuse=0,
        min_window=0,
        min_committed=0,
        prefill_pp=world.setup.stages,
    )


def _begin(driver: Recorder, setup: Setup) -> None:
    for role in (Role.PREFILL, Role.DECODE):
        driver.event(Verb.NODE, code=NodeEvent.UP, value=role << 32)
    driver.event(Verb.PHASE, code=Phase.LOAD)
    for index, (room, wants) in enumerate(zip(ROOMS, setup.wants, strict=True)):
        driver.event(Verb.HANDOFF, room, kind=Kind.INVOKE, code=wants, b=index)


def _end(driver: Recorder, held: dict[str, int]) -> None:
    driver.event(Verb.PHASE, code=Phase.DRAIN)
    roles: dict[str, Any] = {"prefill": Role.PREFILL, "decode": Role.DECODE}
    for name, count in held.items():
        node, resource = name.split()
        if int(resource) in {Resource.SLOTS, Resource.PAGES, Resource.ROOMS}:
            driver.event(Verb.RESOURCE, code=int(resource), flags=1, value=roles[node] << 32, a=count)
    driver.event(Verb.PHASE, code=Phase.REST)
    driver.event(Verb.PHASE, code=Phase.FINISHED)
