"""The race window, drawn: which hand-offs have blocks that land late, where the cut is and in what order blocks go.

A pure function of (seed, room), so that sender and receiver agree without telling each other and a seed fixes it for a run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from harness.history.event import ROOM_BIT
from harness.protocol.rooms import draw, draw_from
from harness.protocol.settings import TransportSettings
from harness.transport.base import Block

_LATE, _CUT, _JITTER, _ORDER, _WRITER = 1, 2, 3, 4, 5
_UNIT = 1.0 / (1 << 64)
JITTER_CAP = 4.0
"""An exponential has no bound; here 4 means are one (one draw in 55 is cut)."""


class Late(NamedTuple):
    """Blocks from `cut` on land `delay_s` after the ones before."""

    cut: int
    delay_s: float


class Lateness:
    """Draws for one run."""

    def __init__(self, settings: TransportSettings, seed: int) -> None:
        """Keep what decides the draws."""
        self._settings = settings
        self._seed = seed
        self._late_state = draw(seed, _LATE)
        self._threshold = int(settings.late_fraction * (1 << 64))

    def late(self, room: int, blocks: int, writer: int = 0) -> Late | None:
        """Where and for how long the blocks of `room` are held back, or None. Each `writer` draws for itself."""
        if writer:
            room = draw(_WRITER, writer, room)
        if draw_from(self._late_state, room) >= self._threshold:
            return None
        settings = self._settings
        jitter = -math.log(1.0 - min(draw(self._seed, _JITTER, room) * _UNIT, 1.0 - 1e-12))
        delay_us = settings.delay_us + settings.jitter_us * min(jitter, JITTER_CAP)
        return Late(draw(self._seed, _CUT, room) % max(blocks, 1), delay_us * 1e-6)

    def order(self, room: int, blocks: Sequence[Block]) -> Sequence[Block]:
        """The blocks in the order in which they go."""
        reorder = self._settings.reorder
        if reorder == "none":
            return blocks
        if reorder == "room_first":
            return sorted(blocks, key=lambda block: block[2] != ROOM_BIT)
        shuffled = list(blocks)
        random.Random(draw(self._seed, _ORDER, room)).shuffle(shuffled)
        return shuffled
