"""Bootstrap rooms: 63-bit non-zero ids that name one hand-off of one request (SGLang's routers draw them the same way)."""

from __future__ import annotations

M64 = (1 << 64) - 1
ROOM_MAX = (1 << 63) - 1
_STEP = 0x9E3779B97F4A7C15
NO_ROOM = 0
"""The sentinel "not written yet" in a metadata row."""


def mix64(value: int) -> int:
    """Splitmix64's finaliser: a bijection of 64-bit integers whose output bits all depend on all input bits."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & M64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & M64
    return value ^ (value >> 31)


def draw(seed: int, *names: int) -> int:
    """A 64-bit number that is a pure function of `seed` and `names`: how everything random in a run is drawn."""
    state = mix64(seed + _STEP & M64)
    for name in names:
        state = mix64((state ^ name) + _STEP & M64)
    return state


def draw_from(state: int, name: int) -> int:
    """`draw(seed, *names, name)` where `state` is `draw(seed, *names)`: what is the same for all rooms is mixed once."""
    return mix64((state ^ name) + _STEP & M64)


def share(seed: int, *names: int) -> float:
    """A number in [0, 1) that is a pure function of `seed` and `names`."""
    return draw(seed, *names) / (M64 + 1)


def room_of(seed: int, index: int) -> int:
    """Room of request `index`: distinct for distinct indices of one seed below 2**62, never 0.

    Built as a bijection (odd multiplier, xor-shift) of 62-bit integers with the top bit of 63 set, so that uniqueness needs no memory.
    """
    mask = (1 << 62) - 1
    value = (index * 0x2545F4914F6CDD1D + seed * 0x9E3779B97F4A7C15) & mask
    value ^= value >> 31
    value = value * 0x1D8E4E27C47D124F & mask
    value ^= value >> 29
    return value | 1 << 62


def is_room(value: int) -> bool:
    """True for a number that may name a hand-off."""
    return 0 < value <= ROOM_MAX
