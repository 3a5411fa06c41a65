"""Payloads name their author: every field and KV page is a pure function of (room, attempt, field or page).

Foreign, stale and torn data therefore show from content alone. Values are legal for their dtype (no NaN, no negative token id).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.history.event import HIDDEN_MASK, LOGPROB_MASK, REQUIRED_MASK, Wants
from harness.protocol.layout import DIGEST_WORD, KV_DIGEST_WORD, ROOM_WORD, TENURE_WORD, Layout
from harness.protocol.rooms import M64, mix64

Words = npt.NDArray[np.uint64]

_F32_KEEP, _F32_SET = 0x007FFFFF_007FFFFF, 0xBF800000_BF800000
_LANES = {  # which bits are drawn, which are fixed: floats in (-2, -1], integers non-negative
    "int32": (0x7FFFFFFF_7FFFFFFF, 0),
    "int64": (0x7FFFFFFFFFFFFFFF, 0),
    "float32": (_F32_KEEP, _F32_SET),
    "bfloat16": (0x007F007F_007F007F, 0xBF80BF80_BF80BF80),
    "float16": (0x03FF03FF_03FF03FF, 0xBC00BC00_BC00BC00),
}


_MASKS = tuple(
    REQUIRED_MASK | (LOGPROB_MASK if wants & Wants.LOGPROBS else 0) | (HIDDEN_MASK if wants & Wants.HIDDEN else 0)
    for wants in range(4)
)


def field_mask(wants: int) -> int:
    """Fields that a request which wants `wants` uses: a mask over TAGGED_FIELDS."""
    return _MASKS[wants & 3]


class Payload:
    """Makes rows and pages for a layout, and takes their fingerprints. Holds constant tables only."""

    def __init__(self, layout: Layout) -> None:
        """Draw the tables from a fixed seed: both sides must have the same."""
        rng = np.random.default_rng(0x9E3779B9)
        spec = layout.spec
        words = layout.row_bytes // 8
        self.layout = layout
        self._sizes = [field.row_bytes // 8 for field in layout.fields]
        self._starts = np.cumsum([0, *self._sizes[:-1]])
        self._base = rng.integers(0, 2**64, words, np.uint64)
        self._weights = rng.integers(0, 2**64, words, np.uint64) | np.uint64(1)
        self._keep, self._set = self._lanes(words)
        self._masks: dict[int, tuple[Words, Words]] = {}
        self.room_at = words - self._sizes[-1]
        shape = (spec.layers, spec.pages_per_request, layout.page_words)
        self._kv_base = rng.integers(0, 2**64, shape, np.uint64)
        self._kv_weights = (rng.integers(0, 2**64, shape, np.uint64) | np.uint64(1)).reshape(-1)

    def _lanes(self, words: int) -> tuple[Words, Words]:
        keep, fixed = np.zeros(words, np.uint64), np.zeros(words, np.uint64)
        for start, size, field in zip(self._starts, self._sizes, self.layout.fields, strict=True):
            keep[start : start + size], fixed[start : start + size] = _LANES.get(field.dtype, (0, 0))
        return keep, fixed

    def _used(self, mask: int) -> tuple[Words, Words]:
        """Bits that are drawn and bits that are fixed, in the fields of `mask`; kept, since there are only four masks in use."""
        used = np.zeros(self._base.size, np.uint64)
        for bit, (start, size) in enumerate(zip(self._starts, self._sizes, strict=True)):
            if mask >> bit & 1:
                used[start : start + size] = M64
        self._masks[mask] = (self._keep & used, self._set & used)
        return self._masks[mask]

    @staticmethod
    def key(room: int, attempt: int) -> int:
        """64 bits that stand for (room, attempt) in every word of the payload."""
        return mix64(room ^ attempt * 0xD1342543DE82EF95 & M64)

    def row(self, room: int, attempt: int, mask: int) -> Words:
        """The row of this request: uint64 (row_words,); fields outside `mask` are zero; the room field holds the room alone."""
        keep, fixed = self._masks.get(mask) or self._used(mask)
        words: Words = self._base ^ np.uint64(self.key(room, attempt))
        words &= keep
        words |= fixed
        words[self.room_at + ROOM_WORD] = room
        return words

    def sums(self, words: Words) -> list[int]:
        """A 64-bit fingerprint of each field of a row, the room field last: position-dependent, every byte counts."""
        sums: list[int] = np.add.reduceat(words * self._weights, self._starts).tolist()
        return sums

    @staticmethod
    def tags(sums: list[int]) -> list[int]:
        """The nine 32-bit tags that the history holds, from `sums`."""
        return [value >> 32 for value in sums[:9]]

    @staticmethod
    def row_digest(sums: list[int], room: int, tenure: int, kv_digest: int) -> int:
        """What a hardened row carries: stands for all nine fields, the room, the slot's tenure and the KV digest. Never 0."""
        total = sum(sums[:9]) + room * 0x9E3779B97F4A7C15 + tenure * 0xBF58476D1CE4E5B9 + kv_digest
        return mix64(total & M64) | 1

    def seal(self, words: Words, sums: list[int], tenure: int, kv_digest: int) -> None:
        """Put tenure and digests into the spare words of the room field."""
        at = self.room_at
        room = int(words[at + ROOM_WORD])
        words[at + TENURE_WORD] = tenure
        words[at + DIGEST_WORD] = self.row_digest(sums, room, tenure, kv_digest)
        words[at + KV_DIGEST_WORD] = kv_digest

    def kv(self, room: int, attempt: int, out: Words) -> None:
        """Write the pages of this request into `out`: (layers, pages_per_request, page_words). Word 0 of a page is the room."""
        np.bitwise_xor(self._kv_base, np.uint64(self.key(room, attempt)), out=out)
        out[:, :, 0] = room

    def kv_digest(self, pages: Words) -> int:
        """64-bit fingerprint of pages (layers, pages_per_request, page_words), position-dependent."""
        return int(np.dot(pages.reshape(-1), self._kv_weights))

    def foreign_pages(self, room: int, attempt: int, pages: Words) -> list[tuple[int, int, int, bool]]:
        """(layer, position, room named, whole) of each page that is not this request's. Slow: only for what was found wrong."""
        expected = np.empty_like(pages)
        self.kv(room, attempt, expected)
        found = []
        for layer, position in np.argwhere((pages != expected).any(axis=2)).tolist():
            page = pages[layer, position]
            named = int(page[0])
            theirs = self._kv_base[layer, position] ^ np.uint64(self.key(named, attempt))
            found.append((layer, position, named, bool((page[1:] == theirs[1:]).all())))
        return found
