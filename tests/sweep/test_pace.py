"""Runs of cells on a machine whose pace changes, which a figure of one cell alone cannot tell from the cell."""

import math
import random

import pytest

from harness.sweep.pace import level, middle, paced, swing

CELLS = [(load, 64) for load in (8, 16, 32, 64)]


def run(cell, at_s, *, pace=1.0, other=0.0):
    return {"rate": 100.0 * cell[0] * pace, "p99": cell[0] / pace, "held": 1.0, "other": other, "at_s": at_s}


def rounds(count, pace, seed=1):
    """Rounds of all cells in random order, a run every 0.6 s; `pace` of the time in seconds."""
    draws = random.Random(seed)
    now, found = 0.0, []
    for _ in range(count):
        one = {}
        for cell in draws.sample(CELLS, len(CELLS)):
            one[cell] = run(cell, now, pace=pace(now))
            now += 0.6
        found.append(one)
    return found


def test_a_machine_of_one_pace_gives_what_was_measured():
    even = paced(rounds(5, lambda _: 1.0))
    assert level(even, CELLS, "rate") == pytest.approx([100.0 * load for load, _ in CELLS])
    assert level(even, CELLS, "p99") == pytest.approx([load for load, _ in CELLS])
    assert swing(rounds(5, lambda _: 1.0)) == pytest.approx((1.0, 1.0))


def test_slow_spells_are_taken_out_of_rates_and_tails():
    spells = rounds(20, lambda now: 0.7 if now % 24 < 10 else 1.0)
    raw = [p["rate"] / (100.0 * cell[0]) for one in spells for cell, p in one.items()]
    even = [p["rate"] / (100.0 * cell[0]) for one in paced(spells) for cell, p in one.items()]
    late = [p["p99"] / cell[0] for one in paced(spells) for cell, p in one.items()]

    def spread(values):
        logs = [math.log(value) for value in values]
        mean = math.fsum(logs) / len(logs)
        return math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / len(logs))

    assert spread(even) < spread(raw) / 2
    assert spread(late) < spread(raw) / 2
    low, high = swing(spells)
    assert high / low == pytest.approx(1 / 0.7, rel=0.1)


def test_a_cell_that_was_measured_in_a_slow_spell_alone_is_not_slower_for_it():
    found = [
        {cell: run(cell, 10 * i + j, pace=0.6 if i % 2 else 1.0) for j, cell in enumerate(CELLS)} for i in range(12)
    ]
    for i in range(0, 12, 2):  # the first cell is measured in every second spell only
        del found[i][CELLS[0]]
    rates = level(paced(found), CELLS, "rate")
    assert rates[1] / rates[0] == pytest.approx(2.0, rel=0.05)


def test_other_work_is_taken_out_where_it_differs():
    found = [
        {cell: run(cell, 5.0 * i, pace=0.5, other=0.5) if i % 2 else run(cell, 5.0 * i) for cell in CELLS}
        for i in range(12)
    ]
    assert level(paced(found), CELLS, "rate") == pytest.approx([100.0 * load for load, _ in CELLS], rel=0.05)


def test_runs_that_failed_are_left_out_and_a_lone_run_is_kept():
    assert paced([{}, {CELLS[0]: {}}]) == [{}, {}]
    assert swing([{CELLS[0]: {}}]) == (1.0, 1.0)
    assert paced([{CELLS[0]: run(CELLS[0], 0.0)}])[0][CELLS[0]]["rate"] == pytest.approx(800.0)


def test_the_middle_half_bears_a_burst():
    assert middle([100.0] * 6 + [1.0, 1e6]) == pytest.approx(100.0)
    assert middle([1.0, 100.0]) == pytest.approx(10.0)
    assert math.isnan(middle([]))
