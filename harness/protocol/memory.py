"""The region itself: torch owns the memory; numpy and memoryview are views of it for the hot paths.

`Memory.create` makes an anonymous shared region (memfd: no name under /dev/shm, nothing to clean up after a SIGKILL) or, for peers in
another pid namespace, a file that keeps its name only until they have mapped it; `Memory.attach` maps a peer's.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from harness.protocol.layout import Layout

Words = npt.NDArray[np.uint64]
_TORCH_DTYPES = {
    "int32": torch.int32, "float32": torch.float32, "int64": torch.int64, "uint64": torch.uint64,
    "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip


def prepare_torch() -> None:
    """Keep torch on one thread, as it must be beside other busy processes."""
    torch.set_num_threads(1)


class Memory:
    """A shared region of `size_bytes`. `tensor` is uint8 (size,); `view` a writable memoryview of the same bytes."""

    def __init__(self, path: str, size_bytes: int, descriptor: int | None = None) -> None:
        """Map `path` (at least `size_bytes` long) shared; torch owns the mapping. Raises RuntimeError if it cannot be mapped."""
        self.path = path
        self.size_bytes = size_bytes
        self._descriptor = descriptor
        self._name: Path | None = None
        self.tensor: torch.Tensor = torch.from_file(path, shared=True, size=size_bytes, dtype=torch.uint8)
        self.bytes: npt.NDArray[np.uint8] = self.tensor.numpy()
        self.view = memoryview(self.bytes)  # type: ignore[arg-type]

    @classmethod
    def create(cls, name: str, size_bytes: int) -> Memory:
        """An anonymous region, zeroed; peers of the same user reach it by `path` as long as this process lives."""
        descriptor = os.memfd_create(name)
        os.ftruncate(descriptor, size_bytes)
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}", size_bytes, descriptor)

    @classmethod
    def create_named(cls, folder: Path, name: str, size_bytes: int) -> Memory:
        """A region with a new name in `folder`, zeroed, for the same user only; raises OSError when there is no room for it.

        Its pages are taken at once: where a container's /dev/shm is too small, that must be an error here, not a SIGBUS later.
        """
        path = folder / f"{name}-{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            memory = cls(str(path), size_bytes, descriptor)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        memory._name = path
        return memory

    def unlink(self) -> None:
        """Take the name away: who has mapped the region keeps it, nobody else can, and a SIGKILL leaves nothing."""
        if self._name is not None:
            self._name.unlink(missing_ok=True)
            self._name = None

    @classmethod
    def attach(cls, path: str, size_bytes: int) -> Memory:
        """A peer's region; raises OSError when it is gone or smaller than `size_bytes`."""
        found = Path(path).stat().st_size
        if found < size_bytes:
            raise OSError(f"{path}: {found} bytes, {size_bytes} wanted")
        return cls(path, size_bytes)

    def close(self) -> None:
        """Drop the name and the descriptor; the mapping goes with the last tensor that views it."""
        self.unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Buffers:
    """Metadata buffers and KV pages of one node, as tensors over `memory`.

    `tensors[name]` has shape (slots, width) and the field's dtype; `kv` has shape (layers, pages, page_words), uint64.
    """

    def __init__(self, memory: Memory, layout: Layout) -> None:
        """Lay the tensors over the region; nothing is copied."""
        self.memory = memory
        self.layout = layout
        spec = layout.spec
        self.tensors: dict[str, torch.Tensor] = {}
        for field in layout.fields:
            flat = memory.tensor[field.offset : field.offset + field.row_bytes * spec.slots]
            self.tensors[field.name] = flat.view(_TORCH_DTYPES[field.dtype]).view(spec.slots, field.width)
        kv = memory.tensor[layout.kv_offset : layout.kv_offset + layout.kv_bytes]
        self.kv_tensor = kv.view(torch.uint64).view(spec.layers, spec.pages, layout.page_words)
        self.kv: Words = self.kv_tensor.numpy()
        self.room_words: Any = memoryview(self.tensors["bootstrap_room"].numpy().reshape(-1))  # type: ignore[arg-type]
        self._rows = [self._row_views(slot) for slot in range(spec.slots)]

    def _row_views(self, slot: int) -> list[memoryview]:
        offsets = self.layout.row_offsets(slot)
        return [
            self.memory.view[offset : offset + field.row_bytes]
            for offset, field in zip(offsets, self.layout.fields, strict=True)
        ]

    def row_views(self, slot: int) -> list[memoryview]:
        """Writable bytes of each field of `slot`, in field order; live views, not copies."""
        return self._rows[slot]

    def read_row(self, slot: int) -> Words:
        """A copy of the whole row of `slot`: uint64, (row_words,), field after field. Not atomic against a writer."""
        return np.frombuffer(b"".join(self._rows[slot]), np.uint64)

    def room_word(self, slot: int) -> int:
        """The room that the slot names now."""
        return int(self.room_words[slot * 8])

    def clear_room(self, slot: int) -> None:
        """Put the sentinel into the slot's room word."""
        self.room_words[slot * 8] = 0
