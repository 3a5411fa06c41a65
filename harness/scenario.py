"""A scenario: everything that decides a run, frozen, in from TOML and options, out as TOML.

Bad input raises FieldError (exit 2): one line with the field, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness import extension
from harness.errors import FieldError, UsageError
from harness.faults.catalogue import parse_all
from harness.history.event import FaultKind
from harness.protocol import guards as guard_table
from harness.protocol.layout import HIDDEN_DTYPES, LayoutSpec
from harness.protocol.mutants import MUTANTS
from harness.protocol.ranks import Ranks
from harness.protocol.settings import NodeSettings, Reorder, TransportSettings
from harness.protocol.slots import POLICIES
from harness.releases import hosted
from harness.transport import registry
from harness.transport.base import Lack


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many instances of each role, and how many ranks each has: processes of their own, see `harness.protocol.ranks`."""

    prefill: int = 1
    decode: int = 1
    prefill_tp: int = 1
    prefill_pp: int = 1
    decode_tp: int = 1
    prefill_dp: int = 1
    decode_dp: int = 1

    @property
    def ranks(self) -> Ranks:
        """The parallel sizes."""
        return Ranks(
            prefill_tp=self.prefill_tp, prefill_pp=self.prefill_pp, decode_tp=self.decode_tp, prefill_dp=self.prefill_dp,
            decode_dp=self.decode_dp,
        )  # fmt: skip

    @property
    def processes(self) -> tuple[int, int]:
        """How many prefill and how many decode processes there are."""
        prefills = self.prefill * self.prefill_dp * self.prefill_tp * self.prefill_pp
        return prefills, self.decode * self.decode_dp * self.decode_tp


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the driver does. `closed` keeps `concurrency` hand-offs in flight; `poisson` and `fixed` send at `rate_per_s`.

    The load ends after `requests` hand-offs or `duration_s`, whichever comes first (0: no such bound; both 0: 10 s).
    `warmup` hand-offs come first; they are checked but not timed. Fractions of requests ask for logprobs and hidden states.

    `abort_fraction` of the requests are given up by their client in flight, and prefill takes up to `hold_ms` for its forward pass
    (released engines only). `dp_routing`: which DP rank of an instance a request goes to, see `harness.router`.
    """

    requests: int = 0
    duration_s: float = 0.0
    concurrency: int = 32
    arrival: Literal["closed", "poisson", "fixed"] = "closed"
    rate_per_s: float = 0.0
    warmup: int = 200
    abort_fraction: float = 0.0
    hold_ms: float = 0.0
    logprob_fraction: float = 0.25
    hidden_fraction: float = 0.25
    dp_routing: Literal["room", "least-open"] = "room"


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose hand-off runs (`name`: reference, sglang==VERSION, path:DIR), memory and pace of the nodes. `pages` 0: as many as all slots need; `prefill_slots` 0: as many as decode has.

    `hidden` 0: 16 for the reference, 4096, a model's, for a released engine: its row then takes as long as it does in service.
    `transfer_nice`: of a released engine only, see docs/real-engines.md.
    """

    name: str = "reference"
    slots: int = 32
    pages: int = 0
    prefill_slots: int = 0
    hidden: int = 0
    transfer_nice: int = 5
    hidden_dtype: str = "float32"
    layers: int = 2
    pages_per_request: int = 4
    page_bytes: int = 1024
    slot_policy: str = "fifo"
    page_policy: str = "fifo"
    queue_max: int = 65536
    poll_interval_ms: float = 1.0
    decode_step_ms: float = 5.0


class Transport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How blocks travel; see `harness.protocol.settings.TransportSettings`. None: the transport's own default.

    `name` may hold the version: `mooncake==0.3.10.post2`.
    """

    name: str = "shm"
    version: str = ""
    ack: bool = False
    connections: int = 1
    late_fraction: float | None = None
    delay_us: float | None = None
    jitter_us: float | None = None
    reorder: Reorder = "none"


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the run and what a pass needs. Times in seconds.

    `min_window` None: 10, or 0 where the transport says "done" only once data is visible, so that no status can overtake it.
    """

    transfer_timeout_s: float = 5.0
    hold_timeout_s: float = 10.0
    request_timeout_s: float = 15.0
    start_timeout_s: float = 60.0
    drain_timeout_s: float = 20.0
    min_reuse: int = 2
    min_window: int | None = None
    min_rate_per_s: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. `planes`: `split` sends data beside the control plane, `shared` sends the row on the control socket (SEND_AUX_TCP)."""

    name: str = "stress"
    guards: str = guard_table.DEFAULT
    planes: Literal["split", "shared"] = "split"
    seed: int = 1
    faults: tuple[str, ...] = ()
    """One line each, see `handoff faults`."""
    mutants: tuple[str, ...] = ()
    """Small named changes of the reference, see `handoff bugs`."""
    plugins: tuple[str, ...] = ()
    """Files that add faults, guards, mutants, invariants or engines, see docs/extending.md."""
    topology: Topology = Topology()
    workload: Workload = Workload()
    engine: Engine = Engine()
    transport: Transport = Transport()
    limits: Limits = Limits()


DEFAULT_DURATION_S = 10.0
PROCESSES_MAX = 256
HIDDEN, HOSTED_HIDDEN = 16, 4096
_WINDOWS: dict[str, dict[str, float]] = {
    # tcp: sglang-0.5.12 then loses 0.6 to 0.7 % (sglang#27374 reports about 3 %), each to its slot's stale room. shm: one decode poll late.
    "tcp": {"late_fraction": 0.04, "delay_us": 220.0, "jitter_us": 30.0},
    "shm": {"late_fraction": 0.015, "delay_us": 1500.0, "jitter_us": 1000.0},
    "gloo": {"late_fraction": 0.04, "delay_us": 220.0, "jitter_us": 30.0},
    # What a real transfer engine does is late by itself, or it is not: nothing is added unless asked for.
    **{name: {"late_fraction": 0.0} for name in registry.ONE_SIDED},
}
_RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "topology.prefill": (1, 64),
    "topology.decode": (1, 64),
    "topology.prefill_tp": (1, 64),
    "topology.prefill_pp": (1, 64),
    "topology.decode_tp": (1, 64),
    "topology.prefill_dp": (1, 64),
    "topology.decode_dp": (1, 64),
    "workload.requests": (0, 10**12),
    "workload.duration_s": (0, 10**7),
    "workload.concurrency": (1, 65536),
    "workload.rate_per_s": (0, 10**6),
    "workload.warmup": (0, 10**9),
    "workload.abort_fraction": (0, 1),
    "workload.hold_ms": (0, 60_000),
    "workload.logprob_fraction": (0, 1),
    "workload.hidden_fraction": (0, 1),
    "engine.slots": (1, 65536),
    "engine.pages": (0, 10**7),
    "engine.prefill_slots": (0, 65536),
    "engine.hidden": (0, 65536),
    "engine.transfer_nice": (0, 19),
    "engine.layers": (1, 256),
    "engine.pages_per_request": (1, 4096),
    "engine.page_bytes": (16, 16 << 20),
    "engine.queue_max": (1, 10**6),
    "engine.poll_interval_ms": (0, 1000),
    "engine.decode_step_ms": (0, 10_000),
    "transport.connections": (1, 64),
    "transport.late_fraction": (0, 1),
    "transport.delay_us": (0, 10**7),
    "transport.jitter_us": (0, 10**6),
    "limits.transfer_timeout_s": (0.01, 3600),
    "limits.hold_timeout_s": (0.01, 3600),
    "limits.request_timeout_s": (0.01, 3600),
    "limits.start_timeout_s": (1, 3600),
    "limits.drain_timeout_s": (0.1, 3600),
    "limits.min_reuse": (0, 10**9),
    "limits.min_window": (0, 10**9),
    "limits.min_rate_per_s": (0, 10**6),
}
_CHOICES = {
    "engine.hidden_dtype": HIDDEN_DTYPES,
    "engine.slot_policy": POLICIES,
    "engine.page_policy": POLICIES,
}
_ENUMS = {
    "workload.dp_routing": ("room", "least-open"),
    "planes": ("split", "shared"),
    "workload.arrival": ("closed", "poisson", "fixed"),
    "transport.reorder": ("none", "random", "room_first"),
}


def load(path: Path | None, changes: dict[str, Any], otherwise: dict[str, Any] | None = None) -> Scenario:
    """The scenario in `path` (TOML; None: the defaults) with `changes` (dotted field to value) applied, and checked.

    `otherwise` has values for fields that neither the file nor `changes` names.
    """
    tree = read(path) if path is not None else {}
    if path is not None and isinstance(tree.get("plugins"), list):
        tree["plugins"] = [extension.pinned(str(plugin), path.parent) for plugin in tree["plugins"]]
    return build(tree, changes, otherwise)


def read(path: Path) -> dict[str, Any]:
    """The tree in `path`; raises UsageError when it is not TOML."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"scenario {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"scenario {path}: not TOML: {error}") from error


def build(tree: dict[str, Any], changes: dict[str, Any], otherwise: dict[str, Any] | None = None) -> Scenario:
    """The scenario that `tree` (which is changed) gives with `changes` applied, and checked; `otherwise` as in `load`."""
    for field, value in changes.items():
        _put(tree, field, value)
    for field, value in (otherwise or {}).items():
        table, _, key = field.rpartition(".")
        if key not in (tree.get(table, {}) if table else tree):
            _put(tree, field, value)
    _split_transport(tree)
    try:
        scenario = msgspec.convert(tree, Scenario)
    except msgspec.ValidationError as error:
        raise UsageError(_one_line(str(error), tree)) from error
    scenario = msgspec.structs.replace(scenario, plugins=tuple(map(extension.pinned, scenario.plugins)))
    extension.use(scenario.plugins)
    check(scenario)
    return scenario


def check(scenario: Scenario) -> None:
    """Raise FieldError for the first field that is out of its range or contradicts another."""
    for field, (low, high) in _RANGES.items():
        value = get(scenario, field)
        if value is not None and not low <= value <= high:
            raise FieldError(field, value, f"{_number(low)} to {_number(high)}")
    for field, choices in _CHOICES.items():
        if get(scenario, field) not in choices:
            raise FieldError(field, get(scenario, field), "one of " + ", ".join(choices))
    guard_table.parse(scenario.guards)
    _check_transport(scenario.transport)
    if scenario.name == "latest" or not scenario.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise FieldError("name", scenario.name, "letters, digits, '-', '_' and '.', and not 'latest'")
    parse_all(scenario.faults)
    _check_mutants(scenario.mutants)
    hosted.check(scenario)
    engine, workload = scenario.engine, scenario.workload
    if engine.page_bytes % 8:
        raise FieldError("engine.page_bytes", engine.page_bytes, "a multiple of 8")
    _check_ranks(scenario)
    if engine.pages and engine.pages < engine.pages_per_request:
        raise FieldError(
            "engine.pages", engine.pages, f"at least engine.pages_per_request ({engine.pages_per_request})"
        )
    if workload.arrival != "closed" and workload.rate_per_s <= 0:
        raise FieldError("workload.rate_per_s", workload.rate_per_s, f"more than 0 with arrival {workload.arrival}")


def _check_mutants(names: tuple[str, ...]) -> None:
    known = {**MUTANTS, **extension.active().mutants}
    for mutant in names:
        if mutant not in known:
            raise FieldError("mutants", mutant, "one of " + ", ".join(known))


def _check_ranks(scenario: Scenario) -> None:
    """Every rank has something to hold and to write; no fault ends one that the others of its instance cannot do without."""
    topology, engine = scenario.topology, scenario.engine
    tp, pp, decode_tp = topology.prefill_tp, topology.prefill_pp, topology.decode_tp
    if tp % decode_tp and decode_tp % tp:
        allowed = f"a multiple of topology.decode_tp ({decode_tp}), or a number that divides it"
        raise FieldError("topology.prefill_tp", tp, allowed)
    if pp > engine.layers:
        raise FieldError("topology.prefill_pp", pp, f"at most engine.layers ({engine.layers}): each stage has a layer")
    if tp // decode_tp * 8 > engine.page_bytes:
        raise FieldError(
            "topology.prefill_tp", tp, f"at most one rank for every 8 bytes of engine.page_bytes ({engine.page_bytes})"
        )
    if decode_tp > 1 and any(
        fault.kind.number is FaultKind.KILL and fault.values["node"] in {"decode", "any"}
        for fault in parse_all(scenario.faults)
    ):
        raise FieldError(
            "topology.decode_tp", decode_tp, "1 where a fault kills decode nodes: the ranks of one end together"
        )
    for field, count in zip(("topology.prefill", "topology.decode"), topology.processes, strict=True):
        if count > PROCESSES_MAX:
            raise FieldError(field, count, f"at most {PROCESSES_MAX} processes with all their ranks")


def get(scenario: Scenario, field: str) -> Any:
    """The value of a dotted field."""
    value: Any = scenario
    for part in field.split("."):
        value = getattr(value, part)
    return value


def fields() -> list[str]:
    """Every dotted field that can be set."""
    tree = msgspec.to_builtins(Scenario())
    return [
        f"{key}.{inner}" if isinstance(value, dict) else key
        for key, value in tree.items()
        for inner in (value if isinstance(value, dict) else [""])
    ]


def parse_set(text: str) -> tuple[str, Any]:
    """`field=value` of `--set`: the value is TOML, or text where it is not."""
    field, equals, raw = text.partition("=")
    if not equals:
        raise FieldError("--set", text, "FIELD=VALUE, for example workload.concurrency=128")
    try:
        tree = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        tree = {"value": raw}
    return field.strip(), tree["value"] if len(tree) == 1 else raw


def to_toml(scenario: Scenario) -> str:
    """The scenario as TOML that `load` reads back."""
    tree = msgspec.to_builtins(scenario)
    lines = [f"{key} = {_toml(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for table, content in tree.items():
        if isinstance(content, dict):
            lines += ["", f"[{table}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in content.items() if value is not None]
    return "\n".join(lines) + "\n"


def node_settings(scenario: Scenario, history_dir: Path, *, record: bool = True) -> NodeSettings:
    """What the nodes are told."""
    engine, limits = scenario.engine, scenario.limits
    prefill_slots = engine.prefill_slots or engine.slots
    hidden = engine.hidden or (HOSTED_HIDDEN if hosted.parse(engine.name).hosted else HIDDEN)
    shape: dict[str, Any] = {
        "hidden": hidden, "hidden_dtype": engine.hidden_dtype, "layers": engine.layers,
        "page_bytes": engine.page_bytes, "pages_per_request": engine.pages_per_request,
    }  # fmt: skip
    pages = engine.pages or engine.slots * engine.pages_per_request
    return NodeSettings(
        history_dir=str(history_dir),
        seed=scenario.seed,
        guards=guard_table.parse(scenario.guards),
        decode_layout=LayoutSpec(slots=engine.slots, pages=pages, **shape),
        prefill_layout=LayoutSpec(slots=prefill_slots, pages=prefill_slots * engine.pages_per_request, **shape),
        transport=transport_settings(scenario.transport),
        planes=scenario.planes,
        slot_policy=engine.slot_policy,
        page_policy=engine.page_policy,
        queue_max=engine.queue_max,
        transfer_timeout_s=limits.transfer_timeout_s,
        hold_timeout_s=limits.hold_timeout_s,
        request_timeout_s=limits.request_timeout_s,
        engine=hosted.settings(engine.name, scenario.transport.name, engine.transfer_nice),
        abort_fraction=scenario.workload.abort_fraction,
        hold_ms=scenario.workload.hold_ms,
        poll_interval_ms=engine.poll_interval_ms,
        decode_step_ms=engine.decode_step_ms,
        record=record,
        prefills=scenario.topology.processes[0],
        decodes=scenario.topology.processes[1],
        ranks=scenario.topology.ranks,
        faults=scenario.faults,
        mutants=scenario.mutants,
        plugins=extension.copies(scenario.plugins, history_dir.parent),
    )


def transport_settings(transport: Transport) -> TransportSettings:
    """The transport with its own defaults filled in."""
    given = {name: value for name in transport.__struct_fields__ if (value := getattr(transport, name)) is not None}
    return TransportSettings(**{**_WINDOWS.get(transport.name, {}), **given})


def _split_transport(tree: dict[str, Any]) -> None:
    """`name = "mooncake==0.3.13"` is name and version; a release that is not named is the default one, by its number."""
    table = tree.get("transport")
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        return
    table["name"], version = registry.split(table["name"])
    if version or not table.get("version"):
        table["version"] = version
    if isinstance(table["version"], str):
        table["version"] = registry.version_of(table["name"], table["version"])


def _check_transport(transport: Transport) -> None:
    """Raise FieldError for what the transport does not have or cannot promise."""
    lacks = registry.get(transport.name, transport.version).lacks
    if transport.ack and Lack.ACK in lacks:
        raise FieldError(
            "transport.ack", "true", f"false: {transport.name}=={transport.version} does not know when data is visible"
        )
    if transport.reorder == "room_first" and Lack.ORDER in lacks:
        raise FieldError(
            "transport.reorder", transport.reorder, f"none or random: {transport.name} keeps no order within a write"
        )


def _put(tree: dict[str, Any], field: str, value: Any) -> None:
    if field not in fields():
        raise UsageError(unknown(field))
    table, _, key = field.rpartition(".")
    target = tree.setdefault(table, {}) if table else tree
    if not isinstance(target, dict):
        raise UsageError(f"{table}: must be a table")
    target[key] = value


def unknown(field: str) -> str:
    """Say that there is no such field, and which may have been meant."""
    known = fields()
    ends = [name for name in known if name.endswith("." + field)]
    close = difflib.get_close_matches(field, known, 1) or ends or ["workload.concurrency"]
    return f"{field}: no such field (did you mean {(ends or close)[0]}?)"


def _one_line(message: str, tree: dict[str, Any]) -> str:
    """msgspec's message ends in the path of the field: put the field first and the value in."""
    text, _, path = message.partition(" - at `$.")
    if not path:
        return unknown(text.split("`")[1]) if text.startswith("Object contains unknown field") else message
    field = path.rstrip("`")
    if text.startswith("Object contains unknown field"):
        return unknown(f"{field}.{text.split('`')[1]}")
    value: Any = tree
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if field in _ENUMS:
        return f"{field}: {value!r} is not allowed; use one of {', '.join(_ENUMS[field])}"
    kind = text.removeprefix("Expected `").partition("`")[0]
    wanted = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    allowed = next((words for name, words in wanted.items() if kind.startswith(name)), text)
    return f"{field}: {value!r} is not allowed; use {allowed}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value)  # JSON's escapes are TOML's
    return repr(value)
