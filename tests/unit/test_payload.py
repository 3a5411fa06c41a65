"""Payloads: pure, legal for their dtypes, and no bit of them may change unseen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.history.event import HIDDEN_MASK, LOGPROB_MASK, REQUIRED_MASK, Wants
from harness.protocol.layout import HIDDEN_DTYPES, Layout, LayoutSpec
from harness.protocol.payload import Payload, field_mask
from harness.protocol.rooms import ROOM_MAX

EVERYTHING = REQUIRED_MASK | LOGPROB_MASK | HIDDEN_MASK
SPEC = LayoutSpec(slots=2, pages=8, page_bytes=64, pages_per_request=3)
PAYLOAD = Payload(Layout(SPEC))
ROW_BYTES = PAYLOAD.layout.row_bytes
TAGGED_BYTES = ROW_BYTES - PAYLOAD.layout.fields[-1].row_bytes
KV_SHAPE = (SPEC.layers, SPEC.pages_per_request, PAYLOAD.layout.page_words)
ROOMS = st.integers(1, ROOM_MAX)
ATTEMPTS = st.integers(0, (1 << 31) - 1)
TORCH = {
    "int32": torch.int32, "float32": torch.float32, "int64": torch.int64, "uint64": torch.uint64,
    "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip


def _pages(room: int, attempt: int = 0, payload: Payload = PAYLOAD) -> np.ndarray:
    out = np.empty(KV_SHAPE, np.uint64)
    payload.kv(room, attempt, out)
    return out


def _flip(words: np.ndarray, bit: int) -> np.ndarray:
    changed = words.copy()
    changed.reshape(-1).view(np.uint8)[bit // 8] ^= 1 << bit % 8
    return changed


@pytest.mark.parametrize(
    ("wants", "mask"),
    [
        (Wants(0), REQUIRED_MASK),
        (Wants.LOGPROBS, REQUIRED_MASK | LOGPROB_MASK),
        (Wants.HIDDEN, REQUIRED_MASK | HIDDEN_MASK),
        (Wants.LOGPROBS | Wants.HIDDEN, EVERYTHING),
    ],
)
def test_field_mask(wants: Wants, mask: int) -> None:
    assert field_mask(wants) == mask


@given(ROOMS, ATTEMPTS)
def test_rows_and_pages_are_a_function_of_room_and_attempt(room: int, attempt: int) -> None:
    other = Payload(Layout(LayoutSpec(slots=9, pages=20, page_bytes=64, pages_per_request=3)))
    assert (PAYLOAD.row(room, attempt, EVERYTHING) == other.row(room, attempt, EVERYTHING)).all()
    assert (_pages(room, attempt) == _pages(room, attempt, other)).all()


@given(ROOMS, ATTEMPTS, st.integers(0, 62), st.integers(0, 30))
def test_another_room_or_attempt_differs_in_every_field_and_page(
    room: int, attempt: int, bit: int, attempt_bit: int
) -> None:
    near = room ^ 1 << bit or 2
    for other_room, other_attempt in ((near, attempt), (room, attempt ^ 1 << attempt_bit)):
        ours, theirs = (
            PAYLOAD.sums(PAYLOAD.row(r, a, EVERYTHING)) for r, a in ((room, attempt), (other_room, other_attempt))
        )
        tags = zip(PAYLOAD.tags(ours), PAYLOAD.tags(theirs), strict=True)
        assert all(one != other for one, other in tags)
        assert (_pages(room, attempt) != _pages(other_room, other_attempt))[:, :, 1:].all()


@given(ROOMS, ATTEMPTS, st.integers(0, 3))
def test_unused_fields_are_zero_and_used_ones_are_as_in_a_full_row(room: int, attempt: int, wants: int) -> None:
    mask = field_mask(wants)
    row, full = PAYLOAD.row(room, attempt, mask), PAYLOAD.row(room, attempt, EVERYTHING)
    at = 0
    for bit, field in enumerate(PAYLOAD.layout.fields[:-1]):
        part = slice(at, at + field.row_bytes // 8)
        wanted = full[part] if mask >> bit & 1 else np.zeros_like(full[part])
        assert (row[part] == wanted).all()
        assert full[part].all()
        at = part.stop
    assert at == PAYLOAD.room_at
    assert row[at:].tolist() == [room, *[0] * 7]


@pytest.mark.parametrize("dtype", HIDDEN_DTYPES)
@pytest.mark.parametrize("hidden", [1, 31, 4096])
def test_values_are_legal_for_their_dtypes(dtype: str, hidden: int) -> None:
    layout = Layout(LayoutSpec(slots=1, pages=4, hidden=hidden, hidden_dtype=dtype))
    payload = Payload(layout)
    for room in (1, 0x5555555555555555, ROOM_MAX):
        raw, at = bytearray(payload.row(room, 3, EVERYTHING).tobytes()), 0
        for field in layout.fields[:-1]:
            values = torch.frombuffer(raw, dtype=TORCH[field.dtype], count=field.width, offset=at)
            at += field.row_bytes
            if field.dtype.startswith("int"):
                assert int(values.min()) >= 0
            else:
                assert values.isfinite().all()
                assert ((values >= -2) & (values <= -1)).all(), field
            assert len(set(values.tolist())) > 1


@given(ROOMS, ATTEMPTS, st.integers(0, TAGGED_BYTES * 8 - 1))
def test_any_flipped_bit_of_a_row_changes_the_tag_of_its_field_and_of_no_other(
    room: int, attempt: int, bit: int
) -> None:
    row = PAYLOAD.row(room, attempt, EVERYTHING)
    before, after = (PAYLOAD.sums(words) for words in (row, _flip(row, bit)))
    changed = [
        i for i, (one, other) in enumerate(zip(PAYLOAD.tags(before), PAYLOAD.tags(after), strict=True)) if one != other
    ]
    at, field = 0, 0
    while at + PAYLOAD.layout.fields[field].row_bytes <= bit // 8:
        at += PAYLOAD.layout.fields[field].row_bytes
        field += 1
    assert changed == [field]
    assert PAYLOAD.row_digest(before, room, 1, 2) != PAYLOAD.row_digest(after, room, 1, 2)


def test_every_bit_of_a_row_counts_in_its_tag() -> None:
    row = PAYLOAD.row(12345, 0, EVERYTHING)
    tags = PAYLOAD.tags(PAYLOAD.sums(row))
    assert len(tags) == 9
    assert all(0 <= tag < 1 << 32 for tag in tags)
    assert all(PAYLOAD.tags(PAYLOAD.sums(_flip(row, bit))) != tags for bit in range(TAGGED_BYTES * 8))


def test_every_bit_of_every_page_counts_in_the_digest() -> None:
    pages = _pages(12345)
    digest = PAYLOAD.kv_digest(pages)
    assert 0 <= digest < 1 << 64
    assert all(PAYLOAD.kv_digest(_flip(pages, bit)) != digest for bit in range(pages.nbytes * 8))


@given(ROOMS, ATTEMPTS, st.permutations(range(SPEC.layers * SPEC.pages_per_request)))
def test_pages_in_another_order_have_another_digest(room: int, attempt: int, order: list[int]) -> None:
    pages = _pages(room, attempt)
    moved = pages.reshape(-1, KV_SHAPE[2])[order].reshape(KV_SHAPE)
    assert (PAYLOAD.kv_digest(moved) == PAYLOAD.kv_digest(pages)) == (order == sorted(order))


@given(ROOMS, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1))
def test_a_sealed_row_stands_for_room_tenure_and_kv(room: int, tenure: int, kv_digest: int) -> None:
    row = PAYLOAD.row(room, 0, REQUIRED_MASK)
    sums = PAYLOAD.sums(row)
    PAYLOAD.seal(row, sums, tenure, kv_digest)
    digest = PAYLOAD.row_digest(sums, room, tenure, kv_digest)
    assert row[PAYLOAD.room_at :].tolist() == [room, tenure, digest, kv_digest, 0, 0, 0, 0]
    assert digest & 1
    assert PAYLOAD.sums(row)[:9] == sums[:9]
    for other in (
        (room ^ 1, tenure, kv_digest),
        (room, tenure ^ 1, kv_digest),
        (room, tenure, kv_digest ^ 1 << 63),
    ):
        assert PAYLOAD.row_digest(sums, *other) >> 1 != digest >> 1


@given(ROOMS, ROOMS, ATTEMPTS, st.integers(0, SPEC.layers - 1), st.integers(0, SPEC.pages_per_request - 1))
def test_foreign_pages_are_named_whole_or_torn(room: int, other: int, attempt: int, layer: int, position: int) -> None:
    pages = _pages(room, attempt)
    assert PAYLOAD.foreign_pages(room, attempt, pages) == []
    pages[layer, position] = _pages(other, attempt)[layer, position]
    whole = [] if other == room else [(layer, position, other, True)]
    assert PAYLOAD.foreign_pages(room, attempt, pages) == whole
    pages[layer, position, -1] ^= np.uint64(1)
    assert PAYLOAD.foreign_pages(room, attempt, pages) == [(layer, position, other, False)]


def test_a_page_of_ours_at_another_place_is_foreign() -> None:
    pages = _pages(9)
    pages[0, 0] = pages[0, 1]
    assert PAYLOAD.foreign_pages(9, 0, pages) == [(0, 0, 9, False)]
