"""Curves with and without a knee, and with noise."""

import math
import random

import pytest

from harness.sweep.knee import at_load, enough, falling, highest_within, isotonic, knee, unimodal

LOADS = [1, 2, 4, 8, 16, 32, 64, 128]


def saturating(load, top=5000.0, half=8.0, sharp=2.0):
    return top * load / (load**sharp + half**sharp) ** (1 / sharp)


def truth():
    """Where the smooth curve reaches 95 % of what it has at the last load."""
    wanted = 0.95 * saturating(128)
    return next(x / 100 for x in range(100, 12800) if saturating(x / 100) >= wanted)


def test_a_saturating_rate_has_its_knee_where_95_per_cent_are_reached():
    found = knee(LOADS, [saturating(x) for x in LOADS])
    assert found is not None
    assert found.at == pytest.approx(truth(), rel=0.15)
    assert found.rate == pytest.approx(0.95 * found.top)


@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_the_knee_little(seed):
    draws = random.Random(seed)
    found = knee(LOADS, [saturating(x) * math.exp(draws.gauss(0, 0.04)) for x in LOADS])
    assert found is not None
    assert truth() / 2 <= found.at <= truth() * 2


def test_a_rate_that_collapses_has_its_knee_before_the_top():
    found = knee(LOADS, [100, 200, 400, 700, 900, 600, 300, 100])
    assert found is not None
    assert 8 < found.at <= 16
    assert found.top == pytest.approx(900, rel=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_a_rate_that_still_rises_has_no_knee(seed):
    draws = random.Random(seed)
    assert knee(LOADS, [100 * x * math.exp(draws.gauss(0, 0.1)) for x in LOADS]) is None


def test_a_flat_rate_has_its_knee_at_the_first_load():
    found = knee(LOADS, [100.0] * 8)
    assert found is not None
    assert found.at == pytest.approx(1)


@pytest.mark.parametrize(("loads", "rates"), [([], []), ([4], [100.0]), ([1, 2], [0.0, 0.0])])
def test_too_few_points_have_no_knee(loads, rates):
    assert knee(loads, rates) is None


def test_the_closest_curves():
    assert isotonic([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert falling([4, 2, 3, 1]) == [4, 2.5, 2.5, 1]
    assert unimodal([1, 3, 2, 9, 4, 5, 1]) == [1, 2.5, 2.5, 9, 4.5, 4.5, 1]


def test_the_highest_load_within_a_bound():
    tails = [2, 2, 3, 5, 10, 20, 40, 80]
    assert highest_within(LOADS, tails, 20) == pytest.approx(32)
    assert highest_within(LOADS, tails, 15) == pytest.approx(16 * 2 ** (math.log(1.5) / math.log(2)))
    assert highest_within(LOADS, tails, 1) is None
    assert highest_within(LOADS, tails, 1000) == pytest.approx(128)


def test_one_outlier_below_the_bound_does_not_count():
    assert highest_within(LOADS, [2, 2, 3, 5, 10, 60, 15, 80], 20) < 32


def _rate(size: float) -> float:
    return 10_000 * size / (size**2 + 20**2) ** 0.5


POOLS = [16.0, 23.0, 32.0, 45.0, 64.0, 90.0, 128.0]


def test_enough_is_where_the_curve_reaches_95_per_cent_of_its_last_value():
    found = enough(POOLS, [_rate(size) for size in POOLS])
    assert _rate(found) == pytest.approx(0.95 * _rate(128.0), rel=0.01)


def test_one_point_that_is_off_moves_what_is_enough_little():
    right = [_rate(size) for size in POOLS]
    for at in range(len(POOLS)):
        off = [rate * (1.04 if i == at else 1.0) for i, rate in enumerate(right)]
        assert enough(POOLS, off) == pytest.approx(enough(POOLS, right), rel=0.2)


def test_a_pool_that_is_enough_from_the_start_or_stands_alone():
    assert enough([8.0, 16.0, 32.0], [100.0, 100.0, 100.0]) == 8.0
    assert enough([8.0], [100.0]) == 8.0


def test_values_between_and_outside_points():
    assert at_load([1, 4], [10, 40], 2, isotonic) == pytest.approx(20)
    assert at_load([1, 4], [10, 40], 0.5, isotonic) == pytest.approx(10)
    assert at_load([1, 4], [10, 40], 9, isotonic) == pytest.approx(40)
