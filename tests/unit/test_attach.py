"""A run on nodes that are there: what is registered fills what nobody named, and options may come from the environment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import attach, cli, scenario, stress
from harness.errors import FieldError
from harness.history.event import Role
from harness.node.shared import SHARED
from harness.protocol import wire

THERE = attach.Found(3, 2, shared=True)


def test_what_is_registered_fills_what_nobody_named(tmp_path: Path) -> None:
    chosen = scenario.load(None, {}, THERE.defaults)
    assert (chosen.topology.prefill, chosen.topology.decode, chosen.transport.name) == (3, 2, "shm")
    named = scenario.load(None, {"topology.decode": 4, "transport.name": "tcp"}, THERE.defaults)
    assert (named.topology.prefill, named.topology.decode, named.transport.name) == (3, 4, "tcp")
    (tmp_path / "s.toml").write_text("[topology]\nprefill = 5\n")
    filed = scenario.load(tmp_path / "s.toml", {}, THERE.defaults)
    assert (filed.topology.prefill, filed.topology.decode) == (5, 2)


def test_without_shared_memory_it_is_tcp() -> None:
    assert attach.Found(1, 1, shared=False).defaults["transport.name"] == "tcp"


def test_no_registered_node_may_be_left_over() -> None:
    chosen = scenario.load(None, {"topology.prefill": 2}, THERE.defaults)
    with pytest.raises(FieldError, match=r"topology\.prefill: 2 is not allowed; use 3 or more, since 3 are registered"):
        THERE.fitted(chosen)
    more = scenario.load(None, {"topology.prefill": 4}, THERE.defaults)
    assert THERE.fitted(more) is more


def test_the_command_repeats_the_run_where_nothing_is_registered() -> None:
    asked = scenario.load(None, {"topology.decode": 2})
    adopted = scenario.load(None, {"topology.decode": 2}, attach.Found(3, 2, shared=False).defaults)
    assert attach.Found(3, 2, shared=False).differences(asked, adopted) == [
        "--set", "topology.prefill=3", "--set", "transport.name=tcp",
    ]  # fmt: skip


def test_it_waits_until_both_roles_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = (int(Role.PREFILL), 0), (int(Role.DECODE), 0)
    answers = [[prefill], [prefill, decode, (int(Role.PREFILL), 1)]]
    pong = lambda *_: wire.Pong(3, 0, 1, registered=True, peers=answers.pop(0))  # noqa: E731
    monkeypatch.setattr(attach, "ping", pong)
    attached, there = attach.found("tcp://127.0.0.1:1", "tcp://auto:*", "c", "no.such.name.invalid", 30)
    assert there == attach.Found(2, 1, shared=False)
    answers[:] = [[prefill, decode, SHARED]]
    assert attach.found("tcp://127.0.0.1:1", "tcp://127.0.0.1:*", "c", None, 30)[1].shared
    assert (attached.inbox, attached.leave) == ("tcp://127.0.0.1:*", False)


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, Any]:
    """Exit code of `handoff stress`, and what it would have run."""
    seen: list[Any] = []

    def run(chosen: Any, runs: Path, command: list[str], *_: Any) -> Any:
        seen.append((chosen, runs, command))
        return SimpleNamespace(results={}, report=SimpleNamespace(verdict="valid"))

    monkeypatch.setattr(stress, "run", run)
    monkeypatch.setattr(cli, "_print", lambda *_, **__: None)
    return cli._run(["stress", *arguments]), seen[0] if seen else None


def test_options_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GUARDS": "sglang-0.5.12",
        "SLOTS": "4",
        "SET": "engine.layers=3 workload.warmup=7",
        "SEED": "",
    }.items():
        monkeypatch.setenv(f"HANDOFF_{name}", value)
    code, (chosen, _, command) = _run(monkeypatch, "--slots", "5")
    assert code == 0
    assert (chosen.guards, chosen.engine.slots, chosen.engine.layers, chosen.workload.warmup) == (
        "sglang-0.5.12",
        5,
        3,
        7,
    )
    assert chosen.seed == 1
    assert command == [
        "handoff", "stress", "--slots", "5", "--guards", "sglang-0.5.12", "--set", "engine.layers=3", "--set",
        "workload.warmup=7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GUARDS", "nope", "guards: 'nope' is not allowed; use one of sglang-0.5.8"),
        ("CONCURRENCY", "0", "workload.concurrency: 0 is not allowed; use 1 to 65536"),
        ("SET", "slots=4", "slots: no such field (did you mean engine.slots?)"),
    ],
)
def test_a_wrong_value_in_the_environment_is_the_same_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(f"HANDOFF_{name}", value)
    code, ran = _run(monkeypatch)
    assert (code, ran) == (2, None)
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
