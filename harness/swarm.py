"""A swarm: run after run, each with a random mixture of faults drawn from the seed, on nodes that are kept from run to run."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harness import extension
from harness.bugs.run import Runner
from harness.faults.catalogue import MESSAGES
from harness.protocol.rooms import draw
from harness.scenario import Scenario, Topology, load

FAULTS_MIN, FAULTS_MAX = 1, 5
_SWARM, _TOPOLOGY = 41, 42
BLOCK = 10
"""Runs that share a drawn topology: another one costs the start of its processes."""
TOPOLOGIES: tuple[dict[str, int], ...] = (
    {},
    {"topology.prefill": 2, "topology.decode": 2},
    {"topology.prefill_pp": 2},
    {"topology.prefill_tp": 2, "topology.prefill_pp": 2, "topology.decode_tp": 2},
    {"topology.decode_tp": 2},
    {"topology.prefill_dp": 2, "topology.decode_dp": 2},
)
"""What `topologies` draws from: several nodes of a role, ranks in each of the ways in which they can share the work."""
_FAULT = "fault "


def _menu(rng: random.Random, *, kill: bool) -> list[str]:
    """One of each fault, with parameters drawn from `rng`."""
    some = round(rng.choice((0.002, 0.01, 0.05, 0.2)), 4)
    few = rng.choice((0.001, 0.005))
    ms = rng.choice((1, 5, 20, 60))
    message = rng.choice(MESSAGES)
    # An abort or a drain notice is rare enough that a small share may never come by.
    often = 0.5 if message in {"drained", "abort"} else some
    loss = rng.choice(("request", "exchange", "status"))
    pace = f"every_s={rng.choice((0.3, 0.7))},for_ms={rng.choice((50, 300))}"
    menu = [
        f"abort:fraction={some},ms={ms},side={rng.choice(('both', 'decode', 'prefill'))}",
        f"abort:fraction={some},state={rng.choice(('queued', 'exchange', 'writing', 'sent', 'status'))}",
        f"hold-write:fraction={some},ms={ms},where={rng.choice(('kv', 'row', 'all'))},status={rng.choice(('after', 'before'))}",
        f"delay:message={message},fraction={often},ms={ms}",
        f"duplicate:message={message},fraction={often},ms={ms}",
        f"reorder:message={message},fraction={often},ms={ms}",
        f"drop:message={loss},fraction={few}",
        f"fail:fraction={some},when={rng.choice(('before', 'during', 'after', 'short'))}",
        f"fail:fraction={few},when=silent",
        f"corrupt:fraction={few},where={rng.choice(('kv', 'row', 'room'))}",
        f"duplicate-room:fraction={some}",
        f"bad-room:fraction={some}",
        f"orphan-room:fraction={few},side={rng.choice(('decode', 'prefill'))}",
        f"burst:every_s=0.5,size={rng.choice((50, 400))}",
        f"starve:what={rng.choice(('slots', 'pages'))},keep=4,{pace}",
        f"partition:direction={rng.choice(('both', 'to-prefill', 'to-decode'))},{pace}",
        f"stop:node={rng.choice(('prefill', 'decode'))},{pace}",
        f"slow:node={rng.choice(('prefill', 'decode'))},{pace}",
    ]
    menu += extension.active().faults
    return [*menu, f"kill:node={rng.choice(('prefill', 'decode'))},every_s=0.5"] if kill else menu


KINDS = frozenset(fault.partition(":")[0] for fault in _menu(random.Random(0), kill=False))
"""What a swarm without kills draws from."""
NEEDS_ABORTS = ("message=drained", "message=abort")
"""Faults of messages that only come after an abort."""


def scenario(base: dict[str, Any], seed: int, number: int, *, kill: bool, topologies: bool = False) -> Scenario:
    """Scenario of run `number` of the swarm `seed`: a pure function of both. `base` are changes that all runs have."""
    base = {**(_topology(seed, number) if topologies else {}), **base}
    rng = random.Random(draw(seed, _SWARM, number))
    extension.use(map(extension.pinned, base.get("plugins", ())))
    # Decode ranks that agree are not started again one by one.
    menu = _menu(rng, kill=kill and int(base.get("topology.decode_tp", 1)) == 1)
    chosen = rng.sample(menu, rng.randint(FAULTS_MIN, FAULTS_MAX))
    if any(what in fault for fault in chosen for what in NEEDS_ABORTS):
        chosen = [*chosen, "abort:state=writing,fraction=0.1"]
    pages = rng.choice(("fifo", "lifo", "random"))
    policy = rng.choice(("fifo", "lifo", "random"))
    drawn: dict[str, Any] = {
        "seed": draw(seed, _SWARM, number, 1) >> 2,
        "faults": chosen,
        "engine.slot_policy": policy,
        "engine.page_policy": pages,
        "engine.slots": rng.choice((4, 16, 32)),
        "engine.prefill_slots": rng.choice((0, 4, 8)),
        "transport.name": rng.choice(("shm", "tcp")),
        "transport.reorder": rng.choice(("none", "random", "room_first")),
        "transport.ack": rng.random() < 0.25,
    }
    return load(None, {**drawn, **base, "name": "swarm"})


def _topology(seed: int, number: int) -> dict[str, int]:
    return TOPOLOGIES[draw(seed, _TOPOLOGY, number // BLOCK) % len(TOPOLOGIES)]


@dataclass
class Swarm:
    """What came of it all."""

    runs: int = 0
    requests: int = 0
    committed: int = 0
    by_transport: Counter[str] = field(default_factory=Counter)
    by_topology: Counter[str] = field(default_factory=Counter)
    """Hand-offs by what of the topology is not 1; the plain one is `1 x 1`."""
    hits: Counter[str] = field(default_factory=Counter)
    """Times that each kind of fault was injected."""
    anomalies: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    bad: list[dict[str, Any]] = field(default_factory=list)
    """Runs that were invalid, or unknown for more than a fault that never came by: folder, faults, anomalies, coverage that was missing."""

    @property
    def never(self) -> list[str]:
        """Kinds of fault that were not injected once in the whole swarm."""
        return sorted(KINDS - self.hits.keys()) if self.runs else []

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        counters = {name: dict(value) for name, value in vars(self).items() if isinstance(value, Counter)}
        return {**vars(self), **counters}


def run(
    base: dict[str, Any], seed: int, requests: int, runs: Path, command: list[str], *, kill: bool, topologies: bool,
    tell: Callable[[Swarm, Scenario, dict[str, Any]], None],
) -> Swarm:  # fmt: skip
    """Run until `requests` hand-offs have been driven. Folders of valid runs are removed."""
    swarm = Swarm()
    with Runner(runs, command) as runner:
        while swarm.requests < requests:
            chosen = scenario(base, seed, swarm.runs, kill=kill, topologies=topologies)
            results = runner.run(chosen).results
            _count(swarm, chosen, results)
            tell(swarm, chosen, results)
            if not _wrong(results):
                shutil.rmtree(results["folder"], ignore_errors=True)
    return swarm


def _count(swarm: Swarm, chosen: Scenario, results: dict[str, Any]) -> None:
    swarm.runs += 1
    swarm.requests += results["requests"]
    swarm.committed += results["committed"]
    swarm.by_transport[chosen.transport.name] += results["requests"]
    swarm.by_topology[shape(chosen.topology)] += results["requests"]
    swarm.verdicts[results["verdict"]] += 1
    for entry in results["coverage"]:
        if entry["name"].startswith(_FAULT) and entry["seen"]:
            swarm.hits[entry["name"].removeprefix(_FAULT).partition(":")[0]] += int(entry["seen"])
    for anomaly in results["anomalies"]:
        swarm.anomalies[anomaly["name"]] += anomaly["count"]
    if _wrong(results):
        swarm.bad.append(_bad(chosen.faults, results))


def shape(topology: Topology) -> str:
    """What of a topology is not 1, in words."""
    sizes = msgspec.to_builtins(topology)
    return " ".join(f"{name}={size}" for name, size in sizes.items() if size != 1) or "1 x 1"


def _wrong(results: dict[str, Any]) -> bool:
    """Something is wrong with a run, or with what it saw, other than a fault that had no occasion: that is judged over all runs."""
    if results["verdict"] != "unknown":
        return bool(results["verdict"] == "invalid")
    short = [entry for entry in results["coverage"] if not entry["met"] and not entry["name"].startswith(_FAULT)]
    return bool(short or results["not_checked"]) or not results["complete"]


def _bad(faults: Sequence[str], results: dict[str, Any]) -> dict[str, Any]:
    return {
        "folder": results["folder"],
        "verdict": results["verdict"],
        "faults": list(faults),
        "anomalies": {anomaly["name"]: anomaly["count"] for anomaly in results["anomalies"]},
        "missing": [entry["name"] for entry in results["coverage"] if not entry["met"]],
    }
