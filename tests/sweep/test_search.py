"""The search on machines that are formulas: with noise, with bursts of other work, with runs that fail."""

import math
import random

import pytest

from harness.sweep.search import Limits, NothingFits, advise, around


class Machine:
    """A rate that saturates at `top`, a tail that grows with the queue, and a pool that limits what is in flight."""

    def __init__(self, seed, *, top=5000.0, noise=0.08, bursts=0.25, fail=0.0, base_ms=1.5):
        self.draws = random.Random(seed)
        self.top, self.noise, self.bursts, self.fail, self.base_ms = top, noise, bursts, fail, base_ms
        self.runs, self.now_s = 0, 0.0

    def drift(self):
        """Log of the machine's own pace, which no meter shows."""
        return 0.0

    def rate(self, cell):
        served = min(cell[0], cell[1] * 1.5)
        return self.top * served / (served**2 + 8.0**2) ** 0.5

    def p99(self, cell):
        return self.base_ms + 2.2 * cell[0] / self.rate(cell) * 1e3

    def measure(self, title, cells, rounds):
        return [{cell: self.point(cell) for cell in cells} for _ in range(rounds)]

    def point(self, cell):
        self.runs += 1
        self.now_s += 0.6
        if self.draws.random() < self.fail:
            return {}
        other = 0.6 if self.draws.random() < self.bursts else self.draws.uniform(0.0, 0.05)
        slow = math.exp(self.draws.gauss(0, self.noise) + self.drift()) * (1 - other)
        return {
            "rate": self.rate(cell) * slow,
            "p99": self.p99(cell) / slow,
            "held": min(cell[0] * 0.7, cell[1]),
            "other": other,
            "at_s": self.now_s,
        }


def limits(p99_ms=None, slots=None, rounds=11):
    return Limits(p99_ms, 512, slots, rounds)


def knee_of(machine):
    return next(c for c in range(1, 512) if machine.rate((c, 512)) >= 0.95 * machine.top)


def bound_of(machine, bound_ms):
    return max(c for c in range(1, 512) if machine.p99((c, 512)) <= bound_ms)


@pytest.mark.parametrize("seed", range(4))
def test_the_knee_is_found_within_a_quarter(seed):
    machine = Machine(seed)
    found = advise(machine.measure, limits())
    assert found.concurrency == pytest.approx(knee_of(machine), rel=0.25)
    assert found.why.startswith("the knee")


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_below_the_knee_decides(seed):
    machine = Machine(seed)
    found = advise(machine.measure, limits(p99_ms=8.0))
    assert found.concurrency == pytest.approx(bound_of(machine, 8.0), rel=0.2)
    assert found.why.startswith("the bound")
    assert found.concurrency_range[0] <= found.concurrency <= found.concurrency_range[1] + 1


@pytest.mark.parametrize("bound_ms", [None, 8.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_pool_costs_about_5_per_cent_at_most(seed, bound_ms):
    machine = Machine(seed)
    found = advise(machine.measure, limits(p99_ms=bound_ms))
    assert found.slots < found.concurrency
    assert machine.rate((found.concurrency, found.slots)) >= 0.87 * machine.rate((found.concurrency, 512))


def test_three_searches_agree_within_a_fifth():
    found = [advise(Machine(seed).measure, limits(p99_ms=8.0)) for seed in (21, 22, 23)]
    for figures in ([one.concurrency for one in found], [one.rate.value for one in found]):
        assert max(figures) <= 1.2 * min(figures), figures


class Drifting(Machine):
    """A machine that is a third slower for half a minute and more at a time, as virtual ones are."""

    def __init__(self, seed):
        super().__init__(seed, noise=0.11, bursts=0.0)
        self.pace = 0.0

    def drift(self):
        keep = math.exp(-0.6 / 20)
        self.pace = keep * self.pace + self.draws.gauss(0, 0.2 * math.sqrt(1 - keep**2))
        return self.pace


def test_a_machine_whose_pace_drifts_gives_the_same_knee():
    found = [advise(Drifting(seed).measure, limits()) for seed in range(1, 7)]
    for one in found:
        assert one.concurrency == pytest.approx(knee_of(Machine(0)), rel=0.2)
        assert one.swing[0] < 0.9
        assert one.swing[1] > 1.1


def test_other_work_now_and_then_moves_little():
    quiet, busy = (advise(Machine(4, bursts=share).measure, limits(p99_ms=8.0)) for share in (0.0, 0.3))
    assert busy.concurrency == pytest.approx(quiet.concurrency, rel=0.2)
    assert busy.rate.value == pytest.approx(quiet.rate.value, rel=0.2)


def test_runs_that_fail_are_left_out():
    machine = Machine(3, fail=0.2)
    assert advise(machine.measure, limits(p99_ms=8.0)).concurrency == pytest.approx(bound_of(machine, 8.0), rel=0.3)


def test_nothing_fits_a_bound_below_everything():
    with pytest.raises(NothingFits, match="more than 1 ms"):
        advise(Machine(1).measure, limits(p99_ms=1.0))


def test_nothing_is_said_where_every_run_failed():
    with pytest.raises(NothingFits, match="no run"):
        advise(Machine(1, fail=1.0).measure, limits())


def test_a_pool_that_is_given_is_kept():
    found = advise(Machine(1).measure, limits(slots=6))
    assert (found.slots, found.slots_range) == (6, (6.0, 6.0))


def test_the_range_is_extended_where_the_answer_lies_at_its_edge():
    machine = Machine(2, noise=0.01, bursts=0.0)
    true = machine.rate
    asked = []

    def misled(title, cells, rounds):
        asked.extend(cells)
        if title == "climbing" and cells[0][0] > 1:  # noise: nothing beyond 1 seems to pay
            return [
                {cells[0]: {"rate": 1.0, "p99": 1.0, "held": 1.0, "other": 0.0, "at_s": 0.0}} for _ in range(rounds)
            ]
        return machine.measure(title, cells, rounds)

    found = advise(misled, limits())
    assert true((found.concurrency, 512)) >= 0.9 * machine.top
    assert max(c for c, _ in asked) > 16


def test_a_search_is_bounded():
    machine = Machine(9, noise=0.8, bursts=0.5)
    advise(machine.measure, limits())
    assert machine.runs < 1500


def test_loads_around_a_guess():
    assert around(8.0, 512) == [2, 3, 4, 6, 8, 11, 16, 23, 32]
    assert around(1.0, 512) == [1, 2, 3, 4]
    assert around(512.0, 512)[-1] == 512


def test_a_first_guess_that_is_too_high_is_followed_down():
    machine = Machine(5, noise=0.01, bursts=0.0)

    def misled(title, cells, rounds):
        if title == "climbing":  # luck: nothing seems to break the bound
            return [
                {cells[0]: {"rate": float(cells[0][0]), "p99": 1.0, "held": 1.0, "other": 0.0, "at_s": 0.0}}
                for _ in range(rounds)
            ]
        return machine.measure(title, cells, rounds)

    found = advise(misled, limits(p99_ms=30.0))
    assert found.concurrency == pytest.approx(min(bound_of(machine, 30.0), knee_of(machine)), rel=0.3)


def test_a_slow_moment_at_the_end_does_not_decide_what_is_reported():
    machine = Machine(6, bursts=0.0)

    def slow_at_last(title, cells, rounds):
        found = machine.measure(title, cells, rounds)
        if title == "confirming":
            found = [{cell: {**point, "rate": point["rate"] / 2} for cell, point in one.items()} for one in found]
        return found

    found = advise(slow_at_last, limits())
    assert found.rate.value == pytest.approx(machine.rate((found.concurrency, found.slots)), rel=0.15)
