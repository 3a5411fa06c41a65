"""What a hosted node and a reference node of one hand-off tell each other beside SGLang's own protocol, which assumes two equal sides.

The data plane is ours, so its address is, too; and names and sizes of the row's fields are a matter of the release, which only the hosted side has loaded.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.errors import HarnessError
from harness.hosting.regions import ADDRESSES


class RowField(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of `MetadataBuffers`: its name and the bytes of a slot's row."""

    name: str
    row_bytes: int


class Meeting(msgspec.Struct, frozen=True):
    """From the hosted side, in place of a transport's descriptor. `endpoint`: where its control socket listens, `host:port`.

    `fields`: the row, in the order in which SGLang registers it; `cached`: how many cached-token counts of a row it carries over. Addresses
    from `base` on, `size_bytes` of them, are the plane's offsets from 0 on.
    """

    plane: str
    endpoint: str
    fields: list[RowField]
    cached: int
    base: int = 0
    size_bytes: int = ADDRESSES

    def encode(self) -> bytes:
        """For `wire.Session`."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> Meeting:
        """Read it; raises HarnessError."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            raise HarnessError(f"not what a hosted node says of itself: {error}") from error


def fields_of(buffers: Any) -> list[RowField]:
    """Names and sizes of what `buffers`, the release's `MetadataBuffers`, registers."""
    names = {tensor.data_ptr(): name for name, tensor in vars(buffers).items() if hasattr(tensor, "data_ptr")}
    pointers, _, sizes = buffers.get_buf_infos()
    return [RowField(names.get(pointer, ""), size) for pointer, size in zip(pointers, sizes, strict=True)]
