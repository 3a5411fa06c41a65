"""Memory: one region, seen by torch, numpy and memoryview, by us and by a peer."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.protocol.layout import HIDDEN_DTYPES, Layout, LayoutSpec
from harness.protocol.memory import Buffers, Memory

TORCH = {
    "int32": torch.int32, "float32": torch.float32, "int64": torch.int64, "uint64": torch.uint64,
    "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A region of three pages."""
    region = Memory.create("unit", 3 * 4096)
    yield region
    region.close()


def _buffers(dtype: str = "float32", hidden: int = 24) -> Buffers:
    layout = Layout(LayoutSpec(slots=5, pages=6, hidden=hidden, hidden_dtype=dtype, page_bytes=64))
    return Buffers(Memory.create("unit", layout.size_bytes), layout)


def test_a_new_region_is_zero_and_has_its_size(memory: Memory) -> None:
    assert bytes(memory.view) == bytes(3 * 4096)
    assert memory.tensor.shape == (3 * 4096,)
    assert memory.tensor.dtype == torch.uint8
    assert not memory.view.readonly


def test_tensor_numpy_and_memoryview_are_the_same_bytes(memory: Memory) -> None:
    memory.tensor[5] = 7
    memory.bytes[6] = 8
    memory.view[7] = 9
    for seen in (memory.tensor[5:8].tolist(), memory.bytes[5:8].tolist(), list(memory.view[5:8])):
        assert seen == [7, 8, 9]


def test_a_peer_sees_what_is_written_and_the_other_way_round(memory: Memory) -> None:
    peer = Memory.attach(memory.path, memory.size_bytes)
    memory.view[100:104] = b"here"
    peer.view[200:205] = b"there"
    assert bytes(peer.view[100:104]) == b"here"
    assert bytes(memory.view[200:205]) == b"there"
    peer.close()
    assert bytes(memory.view[200:205]) == b"there"


def test_a_file_for_peers_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "region"
    path.write_bytes(bytes(8192))
    Memory(str(path), 8192).view[10:12] = b"ab"
    assert path.read_bytes()[10:12] == b"ab"
    assert bytes(Memory.attach(str(path), 4096).view[10:12]) == b"ab"


def test_attach_refuses_what_is_gone_or_too_small(memory: Memory, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="wanted"):
        Memory.attach(memory.path, memory.size_bytes + 1)
    with pytest.raises(FileNotFoundError):
        Memory.attach(str(tmp_path / "none"), 1)
    memory.close()
    with pytest.raises(OSError, match=r".+"):
        Memory.attach(memory.path, memory.size_bytes)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_has_a_name_and_close_gives_the_descriptor_back() -> None:
    before = _descriptors()
    region = Memory.create("unit-nameless", 4096)
    assert [path for path in Path("/dev/shm").iterdir() if "unit-nameless" in path.name] == []
    assert _descriptors() == before + 1
    region.close()
    region.close()
    assert _descriptors() == before
    region.view[:4] = b"stay"  # the mapping lives as long as its tensor
    assert region.tensor[:4].tolist() == list(b"stay")


@pytest.mark.parametrize("dtype", HIDDEN_DTYPES)
def test_buffers_are_tensors_of_the_layout_over_the_region(dtype: str) -> None:
    buffers = _buffers(dtype)
    layout = buffers.layout
    buffers.memory.bytes[:] = np.random.default_rng(1).integers(0, 256, layout.size_bytes, np.uint8)
    for number, field in enumerate(layout.fields):
        tensor = buffers.tensors[field.name]
        assert tensor.shape == (layout.spec.slots, field.width)
        assert tensor.dtype == TORCH[field.dtype]
        assert tensor.is_contiguous()
        for slot in range(layout.spec.slots):
            offset = layout.row_offsets(slot)[number]
            raw = bytes(buffers.memory.view[offset : offset + field.row_bytes])
            assert bytes(tensor[slot].view(torch.uint8).numpy()) == raw
            assert bytes(buffers.row_views(slot)[number]) == raw


def test_kv_is_layers_pages_words_over_the_region() -> None:
    buffers = _buffers()
    spec = buffers.layout.spec
    assert buffers.kv.shape == (spec.layers, spec.pages, buffers.layout.page_words)
    buffers.kv[1, 4, 2] = 0x0102030405060708
    offset = buffers.layout.page_offsets([4])[1] + 16
    assert bytes(buffers.memory.view[offset : offset + 8]) == bytes(range(8, 0, -1))
    assert int(buffers.kv_tensor[1, 4, 2].item()) == 0x0102030405060708


def test_rows_room_words_and_copies() -> None:
    buffers = _buffers()
    row_words = buffers.layout.row_bytes // 8
    buffers.row_views(3)[0][:8] = (77).to_bytes(8, "little")
    buffers.tensors["bootstrap_room"][3, 0] = 1 << 62
    copied = buffers.read_row(3)
    assert copied.shape == (row_words,)
    assert (int(copied[0]), int(copied[row_words - 8])) == (77, 1 << 62)
    assert [buffers.room_word(slot) for slot in range(5)] == [0, 0, 0, 1 << 62, 0]
    buffers.clear_room(3)
    assert buffers.room_word(3) == 0
    assert int(copied[row_words - 8]) == 1 << 62, "read_row gave a view"
    assert int(buffers.read_row(3)[0]) == 77


def test_a_named_region_is_ours_alone_and_a_peer_maps_it(tmp_path: Path) -> None:
    region = Memory.create_named(tmp_path, "decode-0", 8192)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("decode-0-")
    assert path.stat().st_mode & 0o777 == 0o600
    peer = Memory.attach(region.path, 8192)
    peer.view[5000] = 7
    assert region.view[5000] == 7
    region.close()


def test_a_name_that_is_taken_away_leaves_the_region_to_those_who_have_it(tmp_path: Path) -> None:
    region = Memory.create_named(tmp_path, "decode-0", 8192)
    peer = Memory.attach(region.path, 8192)
    region.unlink()
    assert list(tmp_path.iterdir()) == []
    peer.view[1] = 9
    assert region.view[1] == 9
    with pytest.raises(OSError, match="decode-0"):
        Memory.attach(region.path, 8192)
    region.unlink()  # once more does no harm
    region.close()


def test_a_closed_region_leaves_no_name(tmp_path: Path) -> None:
    Memory.create_named(tmp_path, "decode-0", 8192).close()
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_a_named_region_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="No space left"):
        Memory.create_named(tmp_path, "decode-0", 8192)
    assert list(tmp_path.iterdir()) == []
    assert set(Path("/proc/self/fd").iterdir()) == before
