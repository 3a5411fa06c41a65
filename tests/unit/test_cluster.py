"""A cluster that starts the same node again and again holds on to nothing of those before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import cluster as clusters
from harness.cluster import Cluster, Member
from harness.history.event import Role


class _Process:
    exitcode = -9

    def __init__(self) -> None:
        self.closed = False
        self.sentinel = id(self)

    def join(self) -> None:
        """It has ended."""

    def close(self) -> None:
        self.closed = True


def test_a_replaced_node_is_let_go_once_its_end_was_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(sentinels: list[int], _timeout_s: float) -> list[int]:
        return sentinels

    monkeypatch.setattr(clusters, "wait", at_once)
    cluster = Cluster(1, 1, tmp_path)
    processes: list[Any] = [_Process(), _Process(), _Process()]
    first, other = (Member(Role.PREFILL, index, 1, processes[index], tmp_path) for index in (0, 1))
    cluster.members += [first, other]
    assert cluster.ended() == [first, other]
    assert not any(process.closed for process in processes)
    second = Member(Role.PREFILL, 0, 2, processes[2], tmp_path)
    cluster.members.append(second)
    assert cluster.ended() == [second]
    assert [process.closed for process in processes] == [True, False, False]
    assert cluster.members == [other, second]
