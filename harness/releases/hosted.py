"""Engines that a scenario can name: our reference, a release, or a working tree; and where their code is.

`sglang==VERSION` is fetched when it is first used, `path:DIR` is a folder that holds the package, for example `path:/src/sglang/python`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from harness import extension
from harness.errors import FieldError, UnavailableError
from harness.faults.catalogue import parse_all
from harness.faults.reach import out_of_reach
from harness.protocol import guards as guard_table
from harness.protocol.settings import EngineSettings
from harness.releases import overlay

REFERENCE = "reference"
SGLANG = "sglang"
ALLOWED = "reference, sglang==VERSION, or path:DIR with a folder that holds sglang; decode= or prefill= before it: that side alone"
Side = Literal["both", "prefill", "decode"]
BASE = (
    "aiohttp==3.14.5", "aiohappyeyeballs==2.7.1", "aiosignal==1.4.0", "annotated-types==0.8.0", "attrs==26.1.0",
    "certifi==2026.10.19.post1", "charset-normalizer==3.5.3", "dill==0.4.1", "frozenlist==1.8.0", "idna==3.20",
    "multidict==7.2.1", "orjson==3.13.0", "packaging==26.4", "propcache==0.5.4", "pydantic==2.14.4",
    "pydantic-core==2.50.5", "regex==2026.11.19", "requests==2.34.2", "typing-extensions==4.16.0",
    "typing-inspection==0.4.5", "urllib3==2.8.0", "yarl==1.25.1",
)  # fmt: skip
"""What the hosted part of SGLang needs beside torch, numpy, pyzmq and msgspec.

It lies in an overlay of its own and not among the project's dependencies: nothing of it is imported by a process that hosts no engine.
"""


@dataclass(frozen=True)
class Engine:
    """A parsed name. `version` and `folder`: one of them, or neither for the reference. `side`: where it is hosted; the other is the reference."""

    name: str
    package: str = ""
    version: str = ""
    folder: Path | None = None
    side: Side = "both"
    own: bool = False
    """A plugin's decode engine, which stands where the reference's would."""

    @property
    def hosted(self) -> bool:
        """Whether it is somebody else's code."""
        return self.name != REFERENCE and not self.own


def parse(name: str) -> Engine:
    """Read an engine's name; raises FieldError (exit 2). A working tree need not be there any more: its runs can still be judged."""
    if name == REFERENCE:
        return Engine(name)
    if name in extension.active().engines:
        return Engine(name, own=True)
    side, equals, rest = name.partition("=")
    if side in MIXED and equals and not rest.startswith("="):
        engine = parse(rest)
        if not engine.hosted or engine.side != "both":
            raise FieldError("engine.name", name, ALLOWED)
        return replace(engine, name=f"{side}={engine.name}", side=side)  # type: ignore[arg-type]
    if name.startswith("path:"):
        folder = Path(name.removeprefix("path:")).expanduser().absolute()
        return Engine(f"path:{folder}", SGLANG, folder=folder)
    package, equals, version = name.partition("==")
    if package != SGLANG or not equals:
        raise FieldError("engine.name", name, ALLOWED)
    try:
        Version(version)
    except InvalidVersion:
        raise FieldError("engine.name", name, "a version such as sglang==0.5.13") from None
    return Engine(name, package, version)


BACKENDS = {"mooncake": "mooncake", "nixl": "nixl", "nixl-tcp": "nixl", "nixl-shm": "nixl"}
"""Transports that an engine brings a backend for, and the name that it gives it."""
MIXED = {"decode": ("tcp",), "prefill": ("tcp", "shm")}
"""Sides that can be hosted alone, and the transports of ours that then move the bytes: one-sided ones need decode's memory to be ours."""
BEYOND_THE_ROW = ("row_digest", "kv_digest", "tenure_on_writes", "drain_on_commit")
"""Guards of decode that need what no released prefill sends."""
MIXED_BACKEND = "mooncake"
"""The engine's backend that a hosted side alone runs: its status is a message of its own, so that everything can overtake everything."""
UNOBSERVED = (
    "foreign-write and late-write: the engine moves its bytes itself",
    "dirty-slot: nothing is promised for an engine that is not ours",
)
"""What a hosted run cannot show, by the names of the checker."""


def settings(name: str, transport: str, transfer_nice: int = 0) -> EngineSettings:
    """What a node is told; fetches the release where it is not in the cache."""
    engine = parse(name)
    if not engine.hosted:
        return EngineSettings(own=engine.name if engine.own else "")
    return EngineSettings(
        name=engine.name,
        first=first_folders(engine),
        last=base_folders(engine),
        backend=BACKENDS.get(transport, MIXED_BACKEND),
        transfer_nice=transfer_nice,
        side=engine.side,
    )


def check(scenario: Any) -> None:
    """Raise FieldError for a scenario (`harness.scenario.Scenario`) that its engine cannot run."""
    engine = parse(scenario.engine.name)
    if not engine.hosted:
        for name in ("abort_fraction", "hold_ms"):
            if value := getattr(scenario.workload, name):
                raise FieldError(f"workload.{name}", value, "0 with the reference: it is for released engines")
        return
    memory = scenario.engine
    if memory.page_bytes % 16 or memory.page_bytes < 32:
        raise FieldError(
            "engine.page_bytes", memory.page_bytes, "a multiple of 16, at least 32: keys and values share it"
        )
    _only(engine, (("planes", scenario.planes, "split"), ("engine.slot_policy", memory.slot_policy, "fifo")))
    sizes = ("prefill_tp", "prefill_pp", "decode_tp", "prefill_dp", "decode_dp")
    _only(engine, [(f"topology.{size}", getattr(scenario.topology, size), 1) for size in sizes])
    (_check_both if engine.side == "both" else _check_mixed)(engine, scenario)
    for fault in parse_all(scenario.faults):
        if why := out_of_reach(fault, engine.side):
            raise FieldError("fault", fault.text, f"another one: {why}, and that is {engine.name}'s own code")


def _only(engine: Engine, fixed: Sequence[tuple[str, Any, Any]]) -> None:
    """Raise FieldError for the first (field, value, the only value there is) that has another."""
    for field, value, only in fixed:
        if value != only:
            raise FieldError(field, value, f"{only}: {engine.name} decides that itself")


def _check_both(engine: Engine, scenario: Any) -> None:
    """The engine moves its bytes itself."""
    transport = scenario.transport
    if transport.name not in BACKENDS:
        allowed = " or ".join(BACKENDS) + f": {engine.name} brings its own backend for each"
        raise FieldError("transport.name", transport.name, allowed)
    fixed = (
        ("transport.late_fraction", transport.late_fraction or 0.0, 0.0), ("transport.ack", transport.ack, False),
        ("transport.connections", transport.connections, 1), ("transport.reorder", transport.reorder, "none"),
    )  # fmt: skip
    _only(engine, fixed)


def _check_mixed(engine: Engine, scenario: Any) -> None:
    """Our own transport moves the bytes, and everything about it can be set."""
    transport = scenario.transport.name
    if transport not in MIXED[engine.side]:
        allowed = " or ".join(MIXED[engine.side])
        raise FieldError("transport.name", transport, f"{allowed}: {engine.name} is one side alone")
    if engine.side == "prefill":
        guards = guard_table.parse(scenario.guards)
        if any(getattr(guards, name) for name in BEYOND_THE_ROW):
            without = ", ".join(BEYOND_THE_ROW)
            raise FieldError(
                "guards", scenario.guards, f"a preset of its generation: {engine.name} sends nothing for {without}"
            )


def fetch(name: str, say: Callable[[str], None]) -> None:
    """Have the release in the cache before any node starts; `say` is told when that takes a while."""
    engine = parse(name)
    if engine.version and overlay.path(engine.package, engine.version) is None:
        say(f"fetching {engine.name}")
    first_folders(engine)
    base_folders(engine)


def not_checked(found: list[str], side: Side = "both") -> list[str]:
    """`found`, what the history could not show, with what no run can show that hosts `side`: a target of ours sees every write but a one-sided one."""
    told = [line for line in found if side == "prefill" or "LANDED" not in line]
    return [*told, *{"both": UNOBSERVED, "decode": UNOBSERVED[1:], "prefill": ()}[side]]


def first_folders(engine: Engine) -> list[str]:
    """Folders with the engine's own code, fetched when they are not there yet; see `overlay.install` for what it raises."""
    if engine.folder is not None:
        if not (engine.folder / SGLANG / "srt" / "disaggregation").is_dir():
            raise FieldError("engine.name", engine.name, f"a folder that holds {SGLANG}/srt/disaggregation")
        return [str(engine.folder)]
    return [str(overlay.install(engine.package, engine.version))] if engine.hosted else []


def base_folders(engine: Engine) -> list[str]:
    """Folders with what the engine needs of others; raises UnavailableError when the cache holds other versions."""
    if not engine.hosted:
        return []
    head, *rest = BASE
    distribution, _, version = head.partition("==")
    folder = overlay.install(distribution, version, extra=rest)
    missing = missing_of(folder, BASE)
    if missing:
        raise UnavailableError(f"{folder}: has not {', '.join(missing)}; remove that folder to have it fetched again")
    return [str(folder)]


def missing_of(folder: Path, wanted: Sequence[str]) -> list[str]:
    """Which of `wanted` (`name==version`) the overlay `folder` does not hold."""
    there = {entry.name.lower() for entry in folder.glob("*.dist-info")}
    return [pin for pin in wanted if pin.replace("-", "_").replace("==", "-") + ".dist-info" not in there]
