"""Which runs are made, with which scenario, in which order."""

import itertools
from collections import Counter

import pytest

from harness.errors import UsageError
from harness.sweep import grid
from harness.sweep.grid import Axis
from harness.sweep.plan import Job, Plan, key, rounds

AXES = [Axis("workload.concurrency", [1, 2, 4, 8]), Axis("engine.slots", [4, 16])]


def plan(axes=AXES, repeats=3, tree=None, **changes):
    return Plan(tree=tree or {}, changes=changes, axes=axes, run_s=0.5, repeats=repeats)


def test_the_order_is_fixed_by_the_seed_and_differs_from_round_to_round():
    cells = grid.cells(AXES)
    first, again, other = (rounds(plan(), cells, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    orders = [[key(job.values) for job in first[i : i + 8]] for i in (0, 8, 16)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_each_round_has_every_cell_once():
    counted = Counter((key(job.values), job.repeat) for job in rounds(plan(), grid.cells(AXES), 1))
    assert len(counted) == 24
    assert set(counted.values()) == {1}


def test_cells_of_one_topology_stand_together_within_a_round():
    axes = [Axis("topology.decode", [1, 2]), Axis("workload.concurrency", [1, 2, 4])]
    found = [job.values["topology.decode"] for job in rounds(plan(axes, repeats=1), grid.cells(axes), 3)]
    assert sum(a != b for a, b in itertools.pairwise(found)) == 1


def test_repeats_have_seeds_of_their_own():
    seeds = [plan(seed=7).scenario(Job({"engine.slots": 4}, repeat)).seed for repeat in (1, 2, 3)]
    assert seeds == [7, 8, 9]


def test_a_cell_is_driven_for_its_share_of_time_unless_the_scenario_bounds_it():
    job = Job({"engine.slots": 4}, 1)
    assert plan().scenario(job).workload.duration_s == 0.5
    assert plan(**{"workload.requests": 100}).scenario(job).workload.duration_s == 0
    assert plan(tree={"workload": {"duration_s": 9.0}}).scenario(job).workload.duration_s == 9.0
    assert plan().scenario(Job({"workload.duration_s": 2.0}, 1)).workload.duration_s == 2.0


def test_the_warm_up_is_short_unless_it_is_asked_for():
    assert plan().scenario(Job({"workload.concurrency": 1}, 1)).workload.warmup == 20
    assert plan().scenario(Job({"workload.concurrency": 1000}, 1)).workload.warmup == 200
    assert plan(**{"workload.warmup": 5}).scenario(Job({}, 1)).workload.warmup == 5


def test_names_of_folders_are_plain_and_never_the_same():
    guards = ["hardened,-row_digest", "hardened,-row-digest", "hardened-row_digest", "x" * 200, "x" * 201]
    names = [Job({"guards": value}, 1).name for value in guards] + [Job({"guards": "hardened"}, 2).name]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").replace("_", "").replace(".", "").isalnum() for name in names)


def test_a_cell_that_cannot_be_run_is_refused_before_anything_is_made():
    axes = [Axis("engine.slots", [4, 0])]
    with pytest.raises(UsageError) as caught:
        plan(axes).check(grid.cells(axes))
    assert str(caught.value) == "engine.slots: 0 is not allowed; use 1 to 65536"
    with pytest.raises(UsageError, match="repeats: 0"):
        plan(repeats=0).check([])


def test_building_one_scenario_leaves_the_plan_as_it_was():
    tree = {"workload": {"concurrency": 3}}
    made = plan(tree=tree)
    made.scenario(Job({"workload.concurrency": 9}, 1))
    assert made.scenario(Job({}, 1)).workload.concurrency == 3
