"""The grammar of faults, the draws, and the catalogues."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode_node import mutants as at_decode
from harness import scenario as scenarios
from harness import swarm
from harness.bugs.catalogue import BUGS, BY_ID, choose, on_engine, scenario
from harness.bugs.record import KINDS as BUG_KINDS
from harness.check import ANOMALIES
from harness.errors import EXIT_USAGE, FieldError, UsageError
from harness.faults import show
from harness.faults.catalogue import KINDS, parse_all
from harness.faults.plan import Rule
from harness.history.event import FaultKind
from harness.history.reader import SUFFIX, open_streams
from harness.history.recorder import NullRecorder, Recorder
from harness.protocol import mutants
from prefill_stub import mutants as at_prefill


def _rule(text: str, seed: int = 1) -> Rule:
    return Rule(parse_all([text])[0], seed, NullRecorder())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("abrt", "did you mean abort?"),
        ("abort:fraction=2", "a number from 0 to 1"),
        ("abort:fraction=x", "a number from 0 to 1"),
        ("abort:side=left", "one of both, decode, prefill"),
        ("abort:sides=both", "did you mean side?"),
        ("abort:fraction", "PARAMETER=VALUE"),
        ("abort:fraction=nan", "a number from 0 to 1"),
        ("", "one of abort"),
    ],
)
def test_what_is_no_fault_is_one_line(text: str, says: str) -> None:
    with pytest.raises(FieldError) as caught:
        parse_all([text])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE
    with pytest.raises(UsageError):
        scenarios.load(None, {"faults": [text]})


def test_every_kind_is_listed_with_a_number_of_its_own_and_defaults_that_are_allowed() -> None:
    assert {kind.number for kind in KINDS.values()} == set(FaultKind)
    for kind in KINDS.values():
        given = ",".join(f"{name}={param.default}" for name, param in kind.params.items())
        assert parse_all([f"{kind.name}:{given}"])[0].values == parse_all([kind.name])[0].values
        assert kind.name in show.as_text()
    assert [entry["name"] for entry in show.as_json()["faults"]] == list(KINDS)


def test_a_scenario_keeps_its_faults() -> None:
    chosen = scenarios.load(None, {"faults": ["abort:fraction=0.2", "burst"]})
    assert chosen.faults == ("abort:fraction=0.2", "burst")
    assert 'faults = ["abort:fraction=0.2", "burst"]' in scenarios.to_toml(chosen)


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**63 - 1))
def test_a_draw_depends_on_seed_fault_and_room_alone(seed: int, room: int) -> None:
    one, other = _rule("abort:fraction=0.5", seed), _rule("abort:fraction=0.5", seed)
    for rule in (one, other):
        rule.arm(0.0, armed=True)
    assert one.picks(room, 1.0) == other.picks(room, 1.0)
    assert one.amount(room, 7.0) == other.amount(room, 7.0)
    assert 0 <= one.amount(room, 7.0) <= 7.0


def test_a_fraction_is_about_that() -> None:
    rule = _rule("abort:fraction=0.2")
    rule.arm(0.0, armed=True)
    assert 1800 < sum(rule.picks(room, 1.0) for room in range(1, 10_001)) < 2200


def test_a_fault_strikes_between_its_times_and_no_more_often_than_asked() -> None:
    rule = _rule("abort:fraction=1,from_s=1,until_s=2,count=2")
    assert not rule.picks(1, 1.5)  # not armed
    rule.arm(10.0, armed=True)
    assert [rule.picks(1, now) for now in (10.5, 11.5, 12.5)] == [False, True, False]
    rule.hit(1)
    rule.hit(2)
    assert not rule.picks(3, 11.5)
    rule = _rule("abort:fraction=1")
    rule.arm(0.0, armed=True)
    rule.arm(1.0, armed=False)
    assert not rule.picks(1, 1.5)


def test_every_mutant_has_its_change_where_it_belongs() -> None:
    assert at_prefill.CHANGES.keys() == mutants.PREFILL.keys()
    assert at_decode.CHANGES.keys() == mutants.DECODE.keys()


def test_every_bug_can_be_run() -> None:
    assert len(BY_ID) == len(BUGS)
    assert {bug.kind for bug in BUGS} == BUG_KINDS.keys()
    for bug in BUGS:
        assert bug.url.startswith("https://github.com/")
        assert bug.anomaly in ANOMALIES, bug.id
        assert bug.guards != "hardened" or bug.mutants, f"{bug.id}: no mutant"
        wrong, right = scenario(bug, mutant=True), scenario(bug, mutant=False)
        assert (right.guards, right.mutants) == ("hardened", ())
        assert (wrong.faults, wrong.engine, wrong.transport) == (right.faults, right.engine, right.transport)


def test_what_a_hosted_engine_can_show_of_a_record() -> None:
    run = on_engine(BY_ID["sglang-24527"], "sglang==0.5.12.post1", "mooncake==0.3.10.post2")
    assert (run.engine.name, run.workload.abort_fraction, run.faults, run.mutants) == (
        "sglang==0.5.12.post1",
        0.2,
        (),
        (),
    )
    assert all(bug.hosted is None or not bug.mutants for bug in BUGS)
    with pytest.raises(FieldError, match="one that a hosted engine can show: sglang-17259"):
        on_engine(BY_ID["sglang-17483"], "sglang==0.5.13", "mooncake==0.3.10.post2")


def test_at_least_45_bugs_and_three_of_each_kind() -> None:
    runnable = choose([], [])
    assert len(runnable) >= 45
    for kind in BUG_KINDS:
        assert sum(bug.kind == kind for bug in runnable) >= 3, kind


@pytest.mark.parametrize("wanted", [(["nope"], []), ([], ["K13"])])
def test_what_is_not_in_the_catalogue_is_one_line(wanted: tuple[list[str], list[str]]) -> None:
    with pytest.raises(FieldError):
        choose(*wanted)


def test_every_mutant_is_some_bugs() -> None:
    assert {name for bug in BUGS for name in bug.mutants} == mutants.MUTANTS.keys()


@given(st.integers(0, 10_000), st.booleans())
def test_a_swarms_runs_are_allowed_and_drawn_from_its_seed(number: int, kill: bool) -> None:
    one = swarm.scenario({}, 7, number, kill=kill)
    assert one == swarm.scenario({}, 7, number, kill=kill)
    assert one.faults


@pytest.mark.parametrize("room", [0, -1, 1 << 63, 1 << 64, -(1 << 70)])
def test_a_fault_may_hit_what_is_no_room(room: int, tmp_path: Path) -> None:
    with Recorder(tmp_path / f"driver-0.1.main{SUFFIX}", "driver-0", "main") as record:
        rule = Rule(parse_all(["reorder:message=result,fraction=1"])[0], 1, record)
        rule.hit(room, held_s=0.01)
        rule.hit(5)
    (stream,) = open_streams(tmp_path)
    assert [int(entry["room"]) for chunk in stream.chunks(10) for entry in chunk] == [0, 5]
