"""Axes as they are written."""

import pytest

from harness.errors import FieldError, UsageError
from harness.sweep import grid
from harness.sweep.grid import Axis, parse_axis


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("concurrency=1,2,4", "workload.concurrency", [1, 2, 4]),
        ("slots= 4, 16", "engine.slots", [4, 16]),
        ("transport=shm,tcp", "transport.name", ["shm", "tcp"]),
        ("duration=0.5,1", "workload.duration_s", [0.5, 1]),
        ("delay_us=100,3000", "transport.delay_us", [100, 3000]),
        ("engine.poll_interval_ms=0.5", "engine.poll_interval_ms", [0.5]),
        ("transport.ack=true,false", "transport.ack", [True, False]),
        ('guards="hardened,-row_digest",hardened', "guards", ["hardened,-row_digest", "hardened"]),
        ("guards=hardened,-row_digest;hardened", "guards", ["hardened,-row_digest", "hardened"]),
        ('guards=["hardened,-row_digest", "hardened"]', "guards", ["hardened,-row_digest", "hardened"]),
        ("seed=1,2", "seed", [1, 2]),
    ],
)
def test_an_axis(text, field, values):
    assert parse_axis(text) == Axis(field, values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurrency", "--grid: 'concurrency' is not allowed; use FIELD=V1,V2,..., for example concurrency=1,2,4"),
        ("concurency=1", "--grid concurency: no such field (did you mean workload.concurrency?)"),
        ("slots=", "grid slots: [] is not allowed; use a list of at least one value"),
        ("slots=1,,2", "grid slots: '' is not allowed; use a number, true, false or text"),
        ("slots=1,2,1", "grid slots: [1, 2, 1] is not allowed; use each value once"),
        ("guards=[1", '--grid: \'[1\' is not allowed; use a TOML list, for example ["a","b,-c"]'),
    ],
)
def test_one_line_says_what_is_wrong(text, message):
    with pytest.raises(UsageError) as caught:
        parse_axis(text)
    assert str(caught.value) == message


def test_the_command_line_replaces_an_axis_of_the_file():
    table = {"concurrency": [1, 2], "engine": {"slots": [4]}}
    merged = grid.merge(grid.from_table(table), ["slots=8,16"])
    assert merged == [Axis("workload.concurrency", [1, 2]), Axis("engine.slots", [8, 16])]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "sweep: nothing to vary; give --grid FIELD=V1,V2 or a scenario file with a [grid] table"),
        (["slots=1", "engine.slots=2"], "--grid engine.slots: given twice; list all its values once"),
        (["name=a,b"], "grid name: ['a', 'b'] is not allowed; use a field that changes the run"),
    ],
)
def test_axes_that_do_not_go_together(texts, message):
    with pytest.raises(UsageError) as caught:
        grid.merge([], texts)
    assert str(caught.value) == message


def test_every_combination_and_no_more_than_can_be_run():
    axes = [Axis("workload.concurrency", [1, 2]), Axis("engine.slots", [4, 8])]
    assert [tuple(cell.values()) for cell in grid.cells(axes)] == [(1, 4), (1, 8), (2, 4), (2, 8)]
    with pytest.raises(FieldError, match="2001 cells"):
        grid.cells([Axis("seed", list(range(2001)))])


def test_what_can_be_drawn_as_a_line():
    assert Axis("engine.slots", [4, 8]).numeric
    assert not Axis("engine.slots", [4]).numeric
    assert not Axis("transport.ack", [True, False]).numeric
    assert not Axis("guards", ["a", "b"]).numeric
