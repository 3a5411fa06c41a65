"""Array types and the few moves on record arrays that every rule uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.history.event import TAGGED_FIELDS

U64 = npt.NDArray[np.uint64]
Index = npt.NDArray[np.intp]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]
"""A structured array, one element a record or an open hand-off."""

FIELDS = len(TAGGED_FIELDS)
NEVER = np.uint64(2**64 - 1)
"""A time that does not come: the end of what has not ended."""
BITS = np.arange(FIELDS, dtype=np.uint16)


def _raw(rows: Rows) -> npt.NDArray[Any]:
    """View as opaque bytes: numpy copies those whole instead of field by field."""
    return rows.view(f"V{rows.dtype.itemsize}")


def take(rows: Rows, which: Index | Mask) -> Rows:
    """Copy the rows at `which` (positions or a mask)."""
    taken: Rows = _raw(rows)[which].view(rows.dtype)
    return taken


def join(parts: Sequence[Rows], dtype: np.dtype[Any]) -> Rows:
    """Concatenate structured arrays of one dtype, also of one whose fields overlap."""
    if not parts:
        return np.empty(0, dtype)
    joined: Rows = np.concatenate([_raw(part) for part in parts]).view(dtype)
    return joined


def spread(masks: npt.NDArray[Any]) -> Mask:
    """Field masks (n,) as booleans (n, 9), one column for each field."""
    spreaded: Mask = (masks[:, None] >> BITS) & 1 != 0
    return spreaded


def pack(flags: Mask) -> npt.NDArray[np.uint16]:
    """Booleans (n, 9) as field masks (n,): the inverse of `spread`."""
    packed: npt.NDArray[np.uint16] = (flags.astype(np.uint16) << BITS).sum(axis=1, dtype=np.uint16)
    return packed


def by_field(flags: Mask) -> dict[str, int]:
    """How many rows have each field set, by name, without the zeros."""
    counts = flags.sum(axis=0)
    return {name: int(count) for name, count in zip(TAGGED_FIELDS, counts, strict=True) if count}


class Lookup:
    """Finds positions by key in an unsorted array of u64 keys; of equal keys, the first."""

    def __init__(self, keys: U64) -> None:
        """Sort `keys`, shape (n,)."""
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def repeated(self) -> U64:
        """Keys that occur more than once."""
        repeated: U64 = self._keys[1:][self._keys[1:] == self._keys[:-1]]
        return repeated

    def find(self, wanted: U64) -> tuple[Index, Mask]:
        """Positions (m,), 0 where absent, and whether each was found (m,)."""
        if not len(self._keys):
            return np.zeros(len(wanted), np.intp), np.zeros(len(wanted), np.bool_)
        at = np.searchsorted(self._keys, wanted)
        at[at == len(self._keys)] = 0
        found = self._keys[at] == wanted
        where: Index = self._order[at]
        where[~found] = 0
        return where, found
