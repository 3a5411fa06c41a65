"""Every check, in the order in which its line is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from harness.doctor import cache, child, machine, software
from harness.doctor.finding import Finding, Seen
from harness.releases import engines, overlay

AT_ONCE = 2
"""Probes at a time: most of them wait for a child that imports something large."""
Check = tuple[Callable[[], Any], Callable[[Any], Finding | list[Finding]]]


def _engine(name: str) -> Seen:
    """Load the default release of a transfer engine, else the newest one in the cache."""
    engine = engines.ENGINES[name]
    there = overlay.installed(engine.distribution)
    if not there:
        return {"version": ""}
    version = engine.default if engine.default in there else there[-1]
    return {"version": version, **child.ask(name, version)}


def checks(*, online: bool) -> list[Check]:
    """(probe, judge) of each item; with `online` a package index is asked, too."""
    found: list[Check] = [
        (machine.see_python, machine.judge_python),
        (partial(child.ask, "torch"), software.judge_torch),
        (partial(child.ask, "pyzmq"), software.judge_pyzmq),
        (machine.see_loopback, machine.judge_loopback),
        (machine.see_cores, machine.judge_cores),
        (machine.see_memory, machine.judge_memory),
        (machine.see_files, machine.judge_files),
        (machine.see_shm, machine.judge_shm),
        (partial(child.ask, "real_time"), machine.judge_real_time),
        (partial(child.ask, "gloo"), software.judge_gloo),
        (software.see_docker, software.judge_docker),
        (cache.see_cache, cache.judge_cache),
        (cache.findings, lambda findings: findings),
        (partial(child.ask, "ibverbs"), software.judge_ibverbs),
    ]
    found += [(partial(_engine, name), partial(software.judge_engine, name=name)) for name in engines.ENGINES]
    if online:
        found.append((software.see_index, software.judge_index))
    return found


def examine(wanted: Sequence[Check]) -> list[Finding]:
    """Run every check; the findings come in their order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        judged = list(pool.map(_run, wanted))
    return [finding for findings in judged for finding in findings]


def _run(check: Check) -> list[Finding]:
    probe, judge = check
    found = judge(probe())
    return found if isinstance(found, list) else [found]
