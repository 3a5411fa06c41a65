"""Repeats put together."""

import math
import random

import pytest

from harness.check.report import interval95
from harness.sweep.cells import flat, to_json
from harness.sweep.stats import share, spread, summaries, summarize, verdict

from .canned import aborted, results, run, short

CELL = {"workload.concurrency": 4}


def test_repeats_that_agree_are_pooled():
    found = share([(10, 1000), (11, 1000), (9, 1000)])
    assert (found.count, found.of, found.rate) == (30, 3000, 0.01)
    assert (found.low, found.high) == interval95(30, 3000)


def test_repeats_that_differ_more_than_chance_allows_widen_the_interval():
    agree, differ = share([(20, 1000)] * 3), share([(0, 1000), (0, 1000), (60, 1000)])
    assert differ.rate == agree.rate
    assert differ.high - differ.low > 3 * (agree.high - agree.low)


def test_none_seen_is_at_most_three_in_n():
    found = share([(0, 1000), (0, 2000)])
    assert (found.low, found.high) == (0.0, 0.001)
    assert share([]).of == 0


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_interval_holds_the_truth_19_times_of_20(noise):
    draws = random.Random(5)
    held = 0
    for _ in range(300):
        counts = []
        for _ in range(5):
            rate = 0.02 * math.exp(draws.gauss(0, noise) - noise * noise / 2)
            counts.append((sum(draws.random() < rate for _ in range(400)), 400))
        found = share(counts)
        held += found.low <= 0.02 <= found.high
    assert held >= 300 * (0.92 if not noise else 0.80), held


def test_medians_and_spans():
    found = spread([3.0, None, 1.0, math.nan, 2.0])
    assert (found.middle, found.low, found.high) == (2.0, 1.0, 3.0)
    assert math.isnan(spread([]).middle)


@pytest.mark.parametrize(
    ("runs", "found"),
    [
        ([run(CELL), run(CELL, 2)], "valid"),
        ([run(CELL), run(CELL, 2, aborted(1))], "invalid"),
        ([run(CELL), run(CELL, 2, error="a node ended")], "failed"),
        ([run(CELL, 1, short(4)), run(CELL, 2, short(4))], "unknown"),
        ([run(CELL, 1, short(6)), run(CELL, 2, short(6))], "valid"),
        ([run(CELL, 1, results(verdict="unknown", complete=False)), run(CELL, 2)], "unknown"),
        ([run(CELL, 1, {**short(9), "not_checked": ["leak"]}), run(CELL, 2, short(9))], "unknown"),
        ([run(CELL, 1, {**short(9), "interrupted": True}), run(CELL, 2, short(9))], "unknown"),
        ([], "failed"),
    ],
)
def test_the_verdict_of_a_cell(runs, found):
    assert verdict(runs) == found


def test_a_cell_has_the_keys_of_results_json_and_its_axis_values():
    runs = [run(CELL, 1, aborted(10, rate_per_s=900.0)), run(CELL, 2, aborted(30, rate_per_s=1100.0))]
    found = to_json(summarize(CELL, runs))
    assert found.keys() >= results().keys()
    assert (found["workload.concurrency"], found["axes"]) == (4, {"concurrency": 4})
    assert (found["requests"], found["false_aborts"], found["rate_per_s"]) == (2000, 40, 1000.0)
    assert found["anomalies"][0]["count"] == 40
    assert found["anomalies"][0]["of"] == 2000
    assert found["shares"]["false_aborts"]["rate"] == 0.02
    assert [one["false_aborts"] for one in found["repeats"]] == [10, 30]


def test_a_failed_cell_is_a_row_like_any_other():
    cell = summarize(CELL, [run(CELL, error="decode-0 ended")])
    assert (cell.verdict, cell.failed, cell.errors) == ("failed", 1, ["decode-0 ended"])
    assert to_json(cell)["verdict"] == "failed"
    assert to_json(cell).keys() >= {"requests", "latency_ms", "coverage"}
    assert flat(cell).keys() == flat(summarize(CELL, [run(CELL)])).keys()


def test_cells_come_in_the_order_of_the_grid():
    other = {"workload.concurrency": 8}
    found = summaries([other, CELL, {"workload.concurrency": 9}], [run(CELL), run(other), run(CELL, 2)])
    assert [(cell.values, cell.runs) for cell in found] == [(other, 1), (CELL, 2)]
