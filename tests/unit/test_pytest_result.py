"""A result as a test sees it, how its failure reads, and the sum over a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.pytest_plugin import NotValid, Result
from harness.pytest_plugin.summary import Tally

WITNESS = [
    {"process": "decode-0", "thread": "main", "incarnation": 1, "seq": 1, "t_us": 5.0, "verb": "ALLOC", "room": "0xb", "slot": 9, "tenure": 8},
    {"process": "decode-0", "thread": "main", "incarnation": 1, "seq": 2, "t_us": 905.0, "verb": "ABORT", "room": "0xb", "reason": "MISMATCH"},
]  # fmt: skip
FALSE_ABORT = {
    "name": "false-abort", "meaning": "its data was merely late", "count": 5, "of": 100, "rate": 0.05, "interval": [0.02, 0.11], "detail": {},
    "witnesses": [WITNESS],
}  # fmt: skip


def _result(verdict: str = "valid", **changes: object) -> Result:
    results = {
        "verdict": verdict, "guards": "hardened", "transport": "tcp", "planes": "split", "seed": 7, "requests": 100, "committed": 95,
        "false_aborts": 0, "other_aborts": 0, "wrong_data": 0, "hung": 0, "leaked": 0, "rate_per_s": 10.0, "duration_s": 1.0,
        "latency_ms": {"p50": 1.0, "p99": 2.0}, "anomalies": [], "coverage": [], "notes": [], "not_checked": [], "interrupted": False,
        "folder": "/somewhere/run", "command": "handoff stress --seed 7", **changes,
    }  # fmt: skip
    return Result(results, "pytest test_x.py::test_y")


def test_every_key_is_an_item_and_an_attribute() -> None:
    result = _result()
    assert {key: getattr(result, key) for key in result if key != "folder"} == {
        key: result[key] for key in result if key != "folder"
    }
    assert result.folder == Path("/somewhere/run")
    with pytest.raises(AttributeError, match="false_abort: a result has no such figure"):
        result.false_abort  # noqa: B018
    assert result.assert_valid() is result


def test_an_invalid_run_tells_the_whole_story() -> None:
    result = _result("invalid", anomalies=[FALSE_ABORT], false_aborts=5)
    with pytest.raises(NotValid) as caught:
        result.assert_valid(allow_unknown=True)
    assert caught.value.result is result
    assert str(caught.value).splitlines() == [
        "invalid: false-abort 5 of 100",
        "guards hardened, transport tcp, planes split, seed 7: 100 hand-offs, 5 false aborts, 0 wrong data, 0 hung, 0 leaked",
        "false-abort: 5 of 100 = 5.000% (95 %: 2.000% to 11.000%): its data was merely late",
        "",
        "a case of false-abort:",
        "  rooms: A = 0xb",
        "  +  0 us  decode-0  A  slot 9 (tenure 8) given out, clear",
        "  +900 us  decode-0  A  aborted: MISMATCH, found no room",
        "",
        "run folder: /somewhere/run (handoff report /somewhere/run)",
        "repeat with: handoff stress --seed 7",
        "or the test: pytest test_x.py::test_y",
    ]
    assert repr(result) == "<invalid: false-abort 5 of 100; /somewhere/run>"
    assert result.names == {"false-abort"}


def test_unknown_is_no_pass_and_says_what_was_missing() -> None:
    coverage = [
        {"name": "slot reuse", "seen": 90, "needed": 2, "met": True, "meaning": ""},
        {"name": "status before data", "seen": 0, "needed": 10, "met": False, "meaning": ""},
    ]
    result = _result("unknown", coverage=coverage, notes=["the run was cut off"])
    with pytest.raises(NotValid, match=r"^unknown: .*: status before data 0 \(needs 10\); the run was cut off\n"):
        result.assert_valid()
    assert result.assert_valid(allow_unknown=True) is result


def test_the_tally_adds_up_all_runs_of_all_tests() -> None:
    tally = Tally()
    assert tally.lines() == []
    bad = _result("invalid", anomalies=[FALSE_ABORT], seed=8, transport="shm")
    tally.take([*_result().properties(1), *bad.properties(2), ("other", "x")])
    tally.take(bad.properties(1))
    assert tally.lines() == [
        "300 hand-offs driven in 3 runs (1 valid, 2 invalid); seed 7, 8; transport shm, tcp; anomalies: false-abort 10"
    ]
    tally.deselected, tally.left = 2, ["process 7"]
    assert tally.lines()[1:] == [
        "2 integration tests that drive hand-offs were deselected; run them with --integration",
        "LEFT BEHIND: process 7",
    ]


def test_properties_of_two_runs_of_a_test_do_not_collide() -> None:
    names = [name for number in (1, 2) for name, _ in _result().properties(number)]
    assert len(set(names)) == len(names)
    assert {"handoff.verdict", "handoff.2.verdict", "handoff.latency_p99_ms"} <= set(names)
