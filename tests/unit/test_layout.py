"""Layout: SGLang's fields, and nothing on top of anything else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.history.event import TAGGED_FIELDS
from harness.protocol.layout import HIDDEN_DTYPES, Layout, LayoutSpec

SPECS = st.builds(
    LayoutSpec,
    slots=st.integers(1, 9),
    pages=st.integers(1, 9),
    hidden=st.integers(1, 300),
    hidden_dtype=st.sampled_from(HIDDEN_DTYPES),
    layers=st.integers(1, 4),
    page_bytes=st.integers(2, 40).map(lambda words: words * 8),
    pages_per_request=st.integers(1, 4),
)
ITEM_BYTES = {"int32": 4, "float32": 4, "int64": 8, "uint64": 8, "bfloat16": 2, "float16": 2}


def test_fields_are_sglangs() -> None:
    layout = Layout(LayoutSpec(slots=3, pages=5, hidden=4096, hidden_dtype="bfloat16"))
    assert [(field.name, field.width, field.dtype) for field in layout.fields] == [
        ("output_ids", 16, "int32"),
        ("cached_tokens", 16, "int32"),
        ("output_token_logprobs_val", 16, "float32"),
        ("output_token_logprobs_idx", 16, "int32"),
        ("output_top_logprobs_val", 128, "float32"),
        ("output_top_logprobs_idx", 128, "int32"),
        ("output_topk_p", 16, "float32"),
        ("output_topk_index", 16, "int64"),
        ("output_hidden_states", 4096, "bfloat16"),
        ("bootstrap_room", 8, "uint64"),
    ]
    assert tuple(field.name for field in layout.fields[:-1]) == TAGGED_FIELDS


@given(SPECS)
def test_rows_have_the_rdma_minimum_and_whole_words(spec: LayoutSpec) -> None:
    layout = Layout(spec)
    for field in layout.fields:
        assert field.row_bytes == field.width * ITEM_BYTES[field.dtype]
        assert field.row_bytes >= 64
        assert field.row_bytes % 8 == field.offset % 8 == 0
    hidden = layout.fields[-2]
    assert hidden.dtype == spec.hidden_dtype
    assert spec.hidden <= hidden.width
    assert hidden.row_bytes < max(64, spec.hidden * ITEM_BYTES[spec.hidden_dtype]) + 8
    assert layout.row_bytes == sum(field.row_bytes for field in layout.fields)
    assert layout.page_words * 8 == spec.page_bytes


@given(SPECS)
def test_no_row_or_page_overlaps_another_or_leaves_the_region(spec: LayoutSpec) -> None:
    layout = Layout(spec)
    spans = [
        (offset, offset + field.row_bytes)
        for slot in range(spec.slots)
        for offset, field in zip(layout.row_offsets(slot), layout.fields, strict=True)
    ]
    offsets = layout.page_offsets(list(range(spec.pages)))
    assert len(offsets) == spec.layers * spec.pages
    assert min(offsets) == layout.kv_offset
    spans += [(offset, offset + spec.page_bytes) for offset in offsets]
    spans.sort()
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    assert spans[0][0] == 0
    assert spans[-1][1] == layout.size_bytes
    assert layout.kv_offset % 4096 == 0
    assert layout.meta_bytes == spec.slots * layout.row_bytes <= layout.kv_offset


@given(SPECS, st.data())
def test_pages_are_addressed_layer_by_layer(spec: LayoutSpec, data: st.DataObject) -> None:
    pages = data.draw(st.lists(st.integers(0, spec.pages - 1), min_size=1, max_size=5))
    layout = Layout(spec)
    wanted = [
        layout.kv_offset + (layer * spec.pages + page) * spec.page_bytes
        for layer in range(spec.layers)
        for page in pages
    ]
    assert layout.page_offsets(pages) == wanted


@pytest.mark.parametrize("dtype", HIDDEN_DTYPES)
def test_both_sides_agree_on_rows_whatever_their_slots(dtype: str) -> None:
    here, there = (Layout(LayoutSpec(slots=slots, pages=7, hidden=33, hidden_dtype=dtype)) for slots in (2, 9))
    assert [field[:3] for field in here.fields] == [field[:3] for field in there.fields]
    assert here.row_bytes == there.row_bytes
