"""Scenarios: in from TOML and options, out as TOML, and one line for whatever is wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import scenario as scenarios
from harness.errors import EXIT_USAGE, FieldError, UsageError
from harness.protocol.layout import LayoutSpec
from harness.transport import registry

RANGES = {
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
CHOICES = {
    "workload.dp_routing": ["room", "least-open"],
    "planes": ["split", "shared"],
    "workload.arrival": ["closed", "poisson", "fixed"],
    "engine.hidden_dtype": ["float32", "bfloat16", "float16"],
    "engine.slot_policy": ["fifo", "lifo", "random"],
    "engine.page_policy": ["fifo", "lifo", "random"],
    "transport.name": ["gloo", "mooncake", "nixl", "nixl-shm", "nixl-tcp", "shm", "tcp"],
    "transport.reorder": ["none", "random", "room_first"],
}


def _load(**changes: Any) -> scenarios.Scenario:
    return scenarios.load(None, {field.replace("__", "."): value for field, value in changes.items()})


def _refused(changes: dict[str, Any]) -> str:
    """The one line that is printed for them."""
    with pytest.raises(UsageError) as caught:
        scenarios.load(None, changes)
    assert caught.value.exit_code == EXIT_USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _whole(field: str) -> bool:
    return isinstance(scenarios.get(scenarios.Scenario(), field), int) or field == "limits.min_window"


def _companions(field: str, value: Any) -> dict[str, Any]:
    """What else must be set so that `value` contradicts nothing."""
    if field == "workload.arrival" and value != "closed":
        return {"workload.rate_per_s": 5}
    ranks = {"topology.prefill_pp": {"engine.layers": 256}, "topology.decode_tp": {"topology.prefill_tp": value}}
    return ranks.get(field, {})


def test_the_tables_here_name_every_field() -> None:
    own = {"name", "engine.name", "guards", "faults", "mutants", "transport.ack", "transport.version", "plugins"}
    own |= {"workload.abort_fraction", "workload.hold_ms"}  # of released engines: see test_hosted.py
    assert {*RANGES, *CHOICES} | own == set(scenarios.fields())


@pytest.mark.parametrize("field", RANGES)
def test_the_ends_of_a_range_are_allowed_and_what_lies_beyond_is_refused(field: str) -> None:
    low, high = RANGES[field]
    whole = _whole(field)
    for value in (low, high):
        assert scenarios.get(scenarios.load(None, {field: value, **_companions(field, value)}), field) == value
    step = 1 if whole else 1e-3
    for value in (low - step, high + (step if whole else high * 1e-3)):
        line = _refused({field: value})
        assert line.startswith(f"{field}: {value!r} is not allowed; use "), line
        assert line.endswith(f"{low} to {high}")
    wrong = _refused({field: "text"})
    assert wrong == f"{field}: 'text' is not allowed; use {'a whole number' if whole else 'a number'}"


@pytest.mark.parametrize("field", [field for field, ends in RANGES.items() if isinstance(ends[1], int)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, None, []])
def test_no_field_takes_nan_infinity_or_another_type(field: str, value: Any) -> None:
    if value is None and scenarios.get(scenarios.Scenario(), field) is None:
        return
    assert _refused({field: value}).startswith(f"{field}: ")


@pytest.mark.parametrize("field", CHOICES)
def test_choices_are_allowed_and_anything_else_is_refused(field: str) -> None:
    for value in CHOICES[field]:
        loaded = scenarios.load(None, {field: value, **_companions(field, value)})
        assert scenarios.get(loaded, field) == value
    line = _refused({field: "other"})
    assert line == f"{field}: 'other' is not allowed; use one of {', '.join(CHOICES[field])}"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine.page_bytes": 20}, "engine.page_bytes: 20 is not allowed; use a multiple of 8"),
        ({"engine.pages": 3}, "engine.pages: 3 is not allowed; use at least engine.pages_per_request (4)"),
        (
            {"workload.arrival": "fixed"},
            "workload.rate_per_s: 0.0 is not allowed; use more than 0 with arrival fixed",
        ),
        (
            {"workload.arrival": "poisson"},
            "workload.rate_per_s: 0.0 is not allowed; use more than 0 with arrival poisson",
        ),
        (
            {"transport.name": "rdma"},
            "transport.name: 'rdma' is not allowed; use one of gloo, mooncake, nixl, nixl-shm, nixl-tcp, shm, tcp",
        ),
        ({"guards": "hardened,-room"}, "guards: '-room' is not allowed; use +GUARD or -GUARD with one of "),
        ({"name": ""}, "name: '' is not allowed; use letters, digits, '-', '_' and '.'"),
        ({"name": ".."}, "name: '..' is not allowed; use letters"),
        ({"name": "a/b"}, "name: 'a/b' is not allowed; use letters"),
        ({"name": "a b"}, "name: 'a b' is not allowed; use letters"),
        ({"workload": 5, "workload.requests": 5}, "workload: no such field"),
    ],
)
def test_contradictions_are_one_line(changes: dict[str, Any], says: str) -> None:
    assert _refused(changes).startswith(says)


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("concurrency", "workload.concurrency"),
        ("workload.concurency", "workload.concurrency"),
        ("slots", "engine.slots"),
        ("transport.delay", "transport.delay_us"),
        ("gaurds", "guards"),
    ],
)
def test_an_unknown_field_suggests_the_one_that_was_meant(field: str, hint: str) -> None:
    assert _refused({field: 1}) == f"{field}: no such field (did you mean {hint}?)"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[workload]\nconcurency = 5\n", "concurency"),
        ("concurrency = 5\n", "concurrency"),
        ("[workloads]\nrequests = 5\n", "workloads"),
        ("workload = 5\n", "workload: 5 is not allowed"),
        ("[workload]\nrequests = '5'\n", "workload.requests: '5' is not allowed; use a whole number"),
        ("[workload\n", "not TOML"),
        ("seed = -1\n", "seed: -1 is not allowed; use 0 to 9223372036854775807"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        scenarios.load(path, {})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"scenario .*none.toml: No such file"):
        scenarios.load(tmp_path / "none.toml", {})
    (tmp_path / "raw.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"scenario .*raw.toml: not TOML"):
        scenarios.load(tmp_path / "raw.toml", {})
    with pytest.raises(UsageError, match="Is a directory"):
        scenarios.load(tmp_path, {})


def test_changes_win_over_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text("seed = 9\n[workload]\nrequests = 5\nwarmup = 1\n")
    loaded = scenarios.load(path, {"workload.requests": 6, "engine.slots": 2})
    assert (loaded.seed, loaded.workload.requests, loaded.workload.warmup, loaded.engine.slots) == (
        9,
        6,
        1,
        2,
    )


_ANY = {
    field: st.integers(*ends) if _whole(field) else st.floats(*ends)
    for field, ends in RANGES.items()
    if field not in {"engine.page_bytes", "engine.pages"}
} | {field: st.sampled_from(choices) for field, choices in CHOICES.items() if field != "workload.arrival"}
_CHANGES = st.fixed_dictionaries(
    {}, optional={
        **_ANY, "transport.ack": st.booleans(), "name": st.from_regex(r"[a-z0-9][a-z0-9._-]{0,9}", fullmatch=True),
        "guards": st.sampled_from(["hardened", "sglang-0.5.12,+row_digest,-copy_row"]),
    },
)  # fmt: skip


def _fits(changes: dict[str, Any]) -> bool:
    """An engine whose blocks have no order, or that knows nothing of the target, is not asked for what it lacks."""
    alone = changes.get("transport.name") not in registry.ONE_SIDED
    ordered = alone or (not changes.get("transport.ack") and changes.get("transport.reorder") != "room_first")
    return ordered and not any(field.endswith(("_tp", "_pp", "_dp")) for field in changes)  # of ranks: see below


@given(_CHANGES.filter(_fits))
def test_toml_there_and_back(tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    scenario = scenarios.load(None, changes)
    path = tmp_path_factory.mktemp("toml") / "out.toml"
    path.write_text(scenarios.to_toml(scenario))
    assert scenarios.load(path, {}) == scenario


def test_white_space_in_guards_survives(tmp_path: Path) -> None:
    scenario = _load(guards="hardened,\n-copy_row")
    (tmp_path / "out.toml").write_text(scenarios.to_toml(scenario))
    assert scenarios.load(tmp_path / "out.toml", {}) == scenario


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("workload.requests=5", "workload.requests", 5),
        ("workload.rate_per_s = 2.5", "workload.rate_per_s", 2.5),
        ("transport.ack=true", "transport.ack", True),
        ("guards=sglang-0.5.12,+copy_row", "guards", "sglang-0.5.12,+copy_row"),
        ('name="quoted"', "name", "quoted"),
        ("name=a=b", "name", "a=b"),
        ("name=1\nseed = 2", "name", "1\nseed = 2"),
        ("name=", "name", ""),
    ],
)
def test_set_takes_toml_or_text(text: str, field: str, value: Any) -> None:
    assert scenarios.parse_set(text) == (field, value)


@pytest.mark.parametrize("text", ["workload.requests", "", "workload.requests:5"])
def test_set_without_a_value_is_one_line(text: str) -> None:
    with pytest.raises(FieldError, match=r"^--set: .* is not allowed; use FIELD=VALUE"):
        scenarios.parse_set(text)


def test_nodes_are_told_what_the_scenario_says(tmp_path: Path) -> None:
    scenario = _load(
        engine__slots=6,
        engine__pages_per_request=3,
        seed=4,
        planes="shared",
        topology__decode=2,
        guards="sglang-0.5.9",
    )
    settings = scenarios.node_settings(scenario, tmp_path, record=False)
    shape = {"hidden": 16, "hidden_dtype": "float32", "layers": 2, "page_bytes": 1024, "pages_per_request": 3}
    assert settings.decode_layout == LayoutSpec(slots=6, pages=18, **shape)
    assert settings.prefill_layout == LayoutSpec(slots=6, pages=18, **shape)
    assert (settings.seed, settings.planes, settings.decodes, settings.record) == (4, "shared", 2, False)
    assert settings.guards.validate_room
    assert not settings.guards.copy_row
    assert msgspec.json.decode(msgspec.json.encode(settings), type=type(settings)) == settings
    own = scenarios.node_settings(_load(engine__slots=6, engine__prefill_slots=2, engine__pages=9), tmp_path)
    assert (own.decode_layout.slots, own.decode_layout.pages) == (6, 9)
    assert (own.prefill_layout.slots, own.prefill_layout.pages) == (2, 8)


def test_a_transport_has_its_own_window_unless_one_is_given() -> None:
    windows = {name: scenarios.transport_settings(_load(transport__name=name).transport) for name in ("shm", "tcp")}
    assert all(0 < window.late_fraction < 1 and window.delay_us > 0 for window in windows.values())
    assert windows["shm"].delay_us != windows["tcp"].delay_us
    given_ = scenarios.transport_settings(_load(transport__late_fraction=0.0, transport__delay_us=7.0).transport)
    assert (given_.late_fraction, given_.delay_us, given_.jitter_us) == (0.0, 7.0, windows["shm"].jitter_us)
