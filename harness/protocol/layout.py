"""Memory of a node: SGLang's metadata buffers and KV pages as torch tensors over one exposed region.

Field names, widths and dtypes are those of SGLang's `MetadataBuffers` (0.5.12); every row is padded to at least 64 bytes, the RDMA minimum.
The tensors are contiguous, one for each field, `(slots, width)`; KV is `(layers, pages, page_bytes)`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from harness.history.event import TAGGED_FIELDS

ROW_BYTES_MIN = 64
_ITEM_BYTES = {"int32": 4, "float32": 4, "int64": 8, "uint64": 8, "bfloat16": 2, "float16": 2}
HIDDEN_DTYPES = ("float32", "bfloat16", "float16")
ALIGN = 4096

ROOM_WORD, TENURE_WORD, DIGEST_WORD, KV_DIGEST_WORD = 0, 1, 2, 3
"""Words of the `bootstrap_room` field. SGLang uses the first; the hardened guards put theirs into the spare ones."""


class Field(NamedTuple):
    """One tensor of the metadata buffers: `width` items of `dtype` a slot, at `offset` bytes in the region."""

    name: str
    width: int
    dtype: str
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one slot's row of this field."""
        return self.width * _ITEM_BYTES[self.dtype]


class LayoutSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What both sides must agree on, and each side's own number of slots and pages.

    `page_bytes` is a multiple of 8 and at least 16; sizes in items unless the name says bytes.
    """

    slots: int
    pages: int
    hidden: int = 16
    hidden_dtype: str = "float32"
    layers: int = 2
    page_bytes: int = 1024
    pages_per_request: int = 4


def _specs(spec: LayoutSpec) -> list[tuple[str, int, str]]:
    item = _ITEM_BYTES[spec.hidden_dtype]
    hidden = math.ceil(max(spec.hidden * item, ROW_BYTES_MIN) / 8) * 8 // item
    shapes = (
        (16, "int32"), (16, "int32"), (16, "float32"), (16, "int32"), (128, "float32"), (128, "int32"),
        (16, "float32"), (16, "int64"), (hidden, spec.hidden_dtype),
    )  # fmt: skip
    named = [(name, width, dtype) for name, (width, dtype) in zip(TAGGED_FIELDS, shapes, strict=True)]
    return [*named, ("bootstrap_room", 8, "uint64")]


class Layout:
    """Offsets of everything in the region; the same arithmetic on both sides of a transfer."""

    def __init__(self, spec: LayoutSpec) -> None:
        """Place the fields one after the other, then the KV pages at a page boundary."""
        self.spec = spec
        self.fields: list[Field] = []
        offset = 0
        for name, width, dtype in _specs(spec):
            field = Field(name, width, dtype, offset)
            self.fields.append(field)
            offset += field.row_bytes * spec.slots
        self.meta_bytes = offset
        self.kv_offset = math.ceil(offset / ALIGN) * ALIGN
        self.kv_bytes = spec.layers * spec.pages * spec.page_bytes
        self.size_bytes = self.kv_offset + self.kv_bytes
        self.row_bytes = sum(field.row_bytes for field in self.fields)
        self.page_words = spec.page_bytes // 8
        self._bases = [(field.offset, field.row_bytes) for field in self.fields]
        # Byte offset of page 0 of each layer.
        self.layer_offsets = [self.kv_offset + layer * spec.pages * spec.page_bytes for layer in range(spec.layers)]

    def row_offsets(self, slot: int) -> list[int]:
        """Byte offset of each field's row of `slot`, in field order, the room last."""
        return [base + slot * size for base, size in self._bases]

    def page_offsets(self, pages: list[int]) -> list[int]:
        """Byte offset of each page, layer by layer: layers x len(pages) of them."""
        size = self.spec.page_bytes
        return [base + page * size for base in self.layer_offsets for page in pages]
