"""Rooms: distinct, in range, drawn purely."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.protocol import rooms

U64 = st.integers(0, rooms.M64)
INDEX = st.integers(0, (1 << 62) - 1)
_MASK = (1 << 62) - 1


def _unmix(value: int) -> int:
    """The inverse of mix64: multiplication by the inverses, and xor-shifts undone."""
    value ^= value >> 31 ^ value >> 62
    value = value * pow(0x94D049BB133111EB, -1, 1 << 64) & rooms.M64
    value ^= value >> 27 ^ value >> 54
    value = value * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & rooms.M64
    return value ^ value >> 30 ^ value >> 60


def _index_of(seed: int, room: int) -> int:
    """The inverse of room_of: that there is one makes it a bijection."""
    value = room & _MASK
    value ^= value >> 29 ^ value >> 58
    value = value * pow(0x1D8E4E27C47D124F, -1, 1 << 62) & _MASK
    value ^= value >> 31
    return (value - seed * 0x9E3779B97F4A7C15) * pow(0x2545F4914F6CDD1D, -1, 1 << 62) & _MASK


@given(U64)
def test_mix64_is_a_bijection_of_64_bits(value: int) -> None:
    mixed = rooms.mix64(value)
    assert 0 <= mixed <= rooms.M64
    assert _unmix(mixed) == value


@given(U64, INDEX)
def test_room_of_is_a_bijection_and_in_range(seed: int, index: int) -> None:
    room = rooms.room_of(seed, index)
    assert 1 << 62 <= room <= rooms.ROOM_MAX
    assert rooms.is_room(room)
    assert _index_of(seed, room) == index


def test_rooms_of_a_seed_are_distinct_and_another_seed_gives_others() -> None:
    of_seed = [{rooms.room_of(seed, index) for index in range(20_000)} for seed in (1, 2)]
    assert [len(found) for found in of_seed] == [20_000, 20_000]
    assert not of_seed[0] & of_seed[1]


@given(st.integers(-(1 << 70), 1 << 70))
def test_is_room_is_a_non_zero_number_of_63_bits(value: int) -> None:
    assert rooms.is_room(value) == (0 < value < 1 << 63)
    assert not rooms.is_room(rooms.NO_ROOM)


@given(st.integers(0, (1 << 63) - 1), st.lists(U64, max_size=4))
def test_draw_depends_on_seed_and_names_alone(seed: int, names: list[int]) -> None:
    first = rooms.draw(seed, *names)
    rooms.draw(seed + 1, *names)
    assert rooms.draw(seed, *names) == first
    assert 0 <= first <= rooms.M64


@given(st.integers(0, (1 << 63) - 1), st.lists(U64, max_size=3), U64)
def test_draw_from_goes_on_where_a_draw_ended(seed: int, names: list[int], last: int) -> None:
    assert rooms.draw_from(rooms.draw(seed, *names), last) == rooms.draw(seed, *names, last)


def test_draw_tells_seeds_names_and_their_order_apart() -> None:
    drawn = {rooms.draw(seed, a, b) for seed in range(10) for a in range(30) for b in range(30)}
    assert len(drawn) == 10 * 30 * 30
    assert len({rooms.draw(1), rooms.draw(1, 0), rooms.draw(1, 0, 0)}) == 3


def test_draws_are_spread_evenly() -> None:
    counts = [0] * 16
    for name in range(16_000):
        counts[rooms.draw(3, name) >> 60] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_draws_stay_what_they_were() -> None:
    """A seed must give the same run in a later version: written down once."""
    assert rooms.mix64(1) == 0x5692161D100B05E5
    assert rooms.draw(0) == rooms.mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
