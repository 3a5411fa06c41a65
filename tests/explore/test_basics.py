"""The exploration itself: it is complete, its shortcuts change nothing, and its judge says what the checker says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .explorer import END, OPTIONAL, Result, explore, tell
from .recorded import check_schedule
from .world import BY_USE, Action, Setup, World

WHOLE_ROW = ((0, 1, 2, 3, 4, 5, 6, 7, 8),)
Schedule = tuple[tuple[Action, frozenset[str]], ...]


def paths(result: Result, point: int = 0, before: Schedule = ()) -> Iterator[Schedule]:
    """Every schedule of a result, one by one."""
    for action, after, seen in result.edges[point]:
        whole = (*before, (action, seen))
        if after == END:
            yield whole
        else:
            yield from paths(result, after, whole)


def every_schedule(world: World, *, idle: int = 0, before: Schedule = ()) -> Iterator[Schedule]:
    """Every schedule by plain recursion, no point shared. `idle`: how many polls for nothing may come, anywhere in it."""
    saved = world.save()
    actions = world.actions()
    if idle and ("poll",) not in actions:
        actions.append(("poll",))
    ends = True
    for action in actions:
        world.load(saved)
        world.do(action)
        seen = world.judge.take()
        if world.save() != saved or seen:
            ends = ends and action[0] in OPTIONAL
            yield from every_schedule(world, idle=idle, before=(*before, (action, seen)))
        elif idle:
            yield from every_schedule(world, idle=idle - 1, before=(*before, (("nothing",), seen)))
    if ends:
        world.load(saved)
        world.finish()
        yield (*before, (("end",), world.judge.take()))


SMALL = [
    Setup(guards="sglang-0.5.8", groups=WHOLE_ROW),
    Setup(guards="sglang-0.5.12", groups=WHOLE_ROW, plane="shared", arrive="any"),
    Setup(guards="sglang-0.5.12", groups=WHOLE_ROW, plane="shared-one-sided", timeout=True),
    Setup(guards="hardened", groups=WHOLE_ROW, plane="one-sided"),
    Setup(guards="hardened", groups=WHOLE_ROW, plane="shared", timeout=True, batched=True),
]


@pytest.mark.parametrize("setup", SMALL, ids=range(len(SMALL)))
def test_sharing_points_loses_no_schedule(setup: Setup) -> None:
    result = explore(setup)
    world = World(setup)
    plain = list(every_schedule(world))
    world.close()
    print(f"{len(plain)} schedules one by one; {result.line()}")
    assert len(plain) == len(set(plain)) == result.schedules
    assert set(plain) == set(paths(result))
    for anomaly, count in result.anomalies.items():
        assert count == sum(any(anomaly in seen for _, seen in schedule) for schedule in plain)


@pytest.mark.parametrize("guards", ["sglang-0.5.8", "sglang-0.5.12", "hardened"])
def test_a_poll_for_nothing_is_no_step(guards: str) -> None:
    """One at any place is enough: it comes back to its own point, so whatever follows a second one follows it, too."""
    setup = Setup(guards=guards, groups=WHOLE_ROW)
    world = World(setup)
    everything = list(every_schedule(world, idle=1))
    world.close()
    without = {tuple(step for step in schedule if step[0] != ("nothing",)) for schedule in everything}
    result = explore(setup)
    print(f"{len(everything)} schedules with polls for nothing; {result.line()}")
    assert len(everything) > 5 * result.schedules
    assert without == set(paths(result))


@pytest.mark.parametrize("guards", ["hardened", "sglang-0.5.12"])
@pytest.mark.parametrize("plane", ["ordered-unacked", "one-sided", "acked", "shared"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_point_that_is_restored_is_the_same_point(guards: str, plane: str, batched: bool) -> None:
    setup = Setup(guards=guards, plane=plane, timeout=True, batched=batched, wants=(3, 0), groups=WHOLE_ROW)
    result = explore(setup)
    world = World(setup)
    start = world.save()
    for point in range(result.points):
        world.load(start)
        for action in result.path(point):
            world.do(action)
            world.judge.take()
        saved = world.save()
        world.load(saved)
        assert world.save() == saved
    world.close()


def test_a_schedule_may_end_though_time_could_still_pass() -> None:
    result = explore(Setup(guards="hardened,-remember_rooms", plane="shared", timeout=True, forget=True, arrive="any"))
    ends = [edges for edges in result.edges if any(after == END for _, after, _ in edges)]
    assert any(len(edges) > 1 for edges in ends)
    for edges in ends:
        assert {action[0] for action, _, _ in edges} <= OPTIONAL | {"end"}


def test_too_many_points_are_an_error() -> None:
    with pytest.raises(ValueError, match="more than 10 points"):
        explore(Setup(guards="hardened"), limit=10)


def test_a_circle_is_an_error() -> None:
    circle = Result(Setup(guards="hardened"), [[(("poll",), 0, frozenset())]], [None])
    with pytest.raises(ValueError, match="circles"):
        _ = circle.schedules


GOLDEN = """\
decode>prefill: RoomExchange A
prefill>decode: Status A Success
lands: kv of A
lands: fields 0-0 of A
lands: fields 1-8 of A
lands: room of A
decode polls: commits A
decode>prefill: RoomExchange B
prefill>decode: Status B Success
decode polls: aborts B  <- false-abort B
"""


def test_a_schedule_reads_well() -> None:
    setup = Setup(guards="sglang-0.5.12")
    lines = tell(setup, explore(setup).shortest("false-abort B"))
    assert lines == GOLDEN.splitlines()


CHECKED = [
    Setup(guards="sglang-0.5.8", arrive="any"),
    Setup(guards="sglang-0.5.8", plane="one-sided"),
    Setup(guards="sglang-0.5.12", timeout=True, arrive="any"),
    Setup(guards="sglang-0.5.12", plane="shared-one-sided", timeout=True, arrive="any"),
    Setup(guards="sglang-0.5.13", timeout=True, arrive="any"),
    Setup(guards="sglang-0.5.13", plane="one-sided", timeout=True),
    Setup(guards="sglang-0.5.13,-requested_fields_only", wants=(3, 0), groups=BY_USE, prefill_slots=1),
    Setup(guards="sglang-0.5.9", wants=(3, 3), plane="acked"),
    Setup(guards="hardened", plane="acked", timeout=True, arrive="any"),
    Setup(guards="hardened,-quarantine", plane="one-sided", timeout=True, expire=True),
    Setup(guards="hardened,-row_digest", plane="one-sided-reorder", wants=(0, 3)),
    Setup(guards="hardened,-kv_digest", plane="one-sided-reorder"),
    Setup(guards="hardened", rank_fails=True),
]
"""Between them they have every anomaly that the exploration finds anywhere (asserted below)."""

EVERY = {
    "abort", "changed-after-commit", "dirty-slot", "false-abort", "foreign-abort", "foreign-kv", "foreign-write", "hang", "late-write",
    "leak", "lost", "misdelivery", "stale-field", "torn",
}  # fmt: skip


def test_the_judge_agrees_with_the_checker(tmp_path: Path) -> None:
    seen: set[str] = set()
    number = 0
    for setup in CHECKED:
        result = explore(setup)
        schedules = [result.complete([], pick) for pick in (0, 10**9 + 7)]
        for anomaly in result.anomalies:
            actions = [action for action in result.shortest(anomaly) if action[0] != "end"]
            schedules.append(result.complete(actions, number * 7919))
        for schedule in schedules:
            number += 1
            judged, checked = check_schedule(setup, schedule, tmp_path / str(number))
            assert judged == checked, "\n".join([result.line(), *tell(setup, schedule)])
            seen |= set(checked)
    print(f"{number} schedules judged by both")
    assert seen == EVERY
