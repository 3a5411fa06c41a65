"""One adapter for all releases: what differs is settled by signature and attribute."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch

from harness.history.event import Wants
from harness.hosting.sglang.answers import Answers, replace_lookups
from harness.hosting.sglang.observe import watched_allocator, watched_buffers, watched_receiver
from harness.hosting.sglang.release import Release, call, room_word
from harness.hosting.sglang.request import Request, TreeCache
from harness.protocol.layout import Layout, LayoutSpec
from harness.protocol.payload import Payload

LAYOUT = Layout(LayoutSpec(slots=2, pages=2, hidden=8, layers=2, page_bytes=64, pages_per_request=1))


def release(**classes: Any) -> Release:
    loaded = types.SimpleNamespace(
        base=types.SimpleNamespace(KVPoll=None, KVArgs=classes.get("KVArgs")),
        utils=types.SimpleNamespace(MetadataBuffers=classes.get("MetadataBuffers")),
        find=classes.get,
    )
    return Release(loaded)  # type: ignore[arg-type]


class OldBuffers:
    def __init__(self, size, hidden_size, hidden_states_dtype, max_top_logprobs_num=128):
        self.cached_tokens = torch.zeros((size, 16), dtype=torch.int32)

    def set_buf(self, req):
        self.cached_tokens[req.metadata_buffer_index][0] = req.cached_tokens

    def get_buf_infos(self):
        one = self.cached_tokens
        return [one.data_ptr()], [one.nbytes], [one[0].nbytes]


class NewBuffers(OldBuffers):
    def __init__(self, size, hidden_size, hidden_states_dtype, max_sampling_mask_tokens, *, kv_checksum_enabled=False):
        super().__init__(size, hidden_size, hidden_states_dtype)
        self.mask = max_sampling_mask_tokens
        self.bootstrap_room = torch.zeros((size, 8), dtype=torch.uint64)

    def set_buf(self, req):
        row = self.cached_tokens[req.metadata_buffer_index]
        row[0], row[1], row[2] = req.cached_tokens, req.cached_tokens_device, req.cached_tokens_host
        row[3] = req.cached_tokens_storage


class OldReceiver:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room=None, prefill_dp_rank=None):
        self.told: list[Any] = [prefill_dp_rank]

    def init(self, kv_indices, aux_index=None):
        self.told.append(("init", list(kv_indices), aux_index))


class NewReceiver:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room=None):
        self.told: list[Any] = []

    def init(self, prefill_dp_rank):
        self.told.append(("init", prefill_dp_rank))

    def send_metadata(self, kv_indices, aux_index=None, state_indices=None):
        self.told.append(("send_metadata", list(kv_indices), aux_index))


def test_a_function_is_given_what_it_takes() -> None:
    assert call(lambda a, c=3: (a, c), a=1, b=2) == (1, 3)


def test_buffers_of_either_signature() -> None:
    assert isinstance(release(MetadataBuffers=OldBuffers).buffers(2, LAYOUT), OldBuffers)
    assert release(MetadataBuffers=NewBuffers).buffers(2, LAYOUT).mask > 0


def test_how_many_counts_a_row_carries_is_found_by_writing_one() -> None:
    assert release(MetadataBuffers=OldBuffers).cached_counts(LAYOUT) == 1
    assert release(MetadataBuffers=NewBuffers).cached_counts(LAYOUT) == 4


def test_a_row_without_a_room_names_none() -> None:
    assert room_word(OldBuffers(1, 1, None), 0) == 0
    buffers = NewBuffers(1, 1, None, 1)
    buffers.bootstrap_room[0, 0] = (1 << 62) + 1
    assert room_word(buffers, 0) == (1 << 62) + 1


def test_receivers_of_either_kind() -> None:
    old = release().receiver(OldReceiver, types.SimpleNamespace(), "a:1", 7)
    Release.publish(old, [3, 4], 1)
    assert old.told == [0, ("init", [3, 4], 1)]
    new = release().receiver(NewReceiver, types.SimpleNamespace(try_ensure_parallel_info=lambda _: True), "a:1", 7)
    Release.publish(new, [3, 4], 1)
    assert new.told == [("init", 0), ("send_metadata", [3, 4], 1)]


def test_no_receiver_before_prefill_is_known() -> None:
    manager = types.SimpleNamespace(try_ensure_parallel_info=lambda _: False)
    assert release().receiver(NewReceiver, manager, "a:1", 7) is None


def test_arguments_are_filled_by_annotation() -> None:
    class KVArgs:
        engine_rank: int
        state_types: list[str]
        ib_device: str
        new_switch: bool
        new_thing: object

    kv = [torch.zeros((2, 4), dtype=torch.int64) for _ in range(4)]
    found = release(KVArgs=KVArgs).arguments(kv, OldBuffers(1, 1, None))
    assert (found.state_types, found.new_switch, found.new_thing, found.ib_device) == ([], False, None, None)
    assert found.kv_item_lens == [32] * 4
    assert found.kv_layer_ids == [0, 1, 0, 1]
    assert found.aux_item_lens == [64]


def test_lookups_are_replaced_where_a_module_has_them_and_nowhere_else() -> None:
    module = types.ModuleType("sglang.srt.disaggregation.common.conn")
    module.get_attention_tp_size = lambda: 1 / 0  # type: ignore[attr-defined]
    module.get_disagg = lambda: 1 / 0  # type: ignore[attr-defined]
    module.send_kvcache = own = lambda: None  # type: ignore[attr-defined]
    answers = Answers("group", page_size=4)
    assert replace_lookups([module], answers) == [f"{module.__name__}.get_{n}" for n in ("attention_tp_size", "disagg")]
    assert module.get_attention_tp_size() == 1
    assert module.get_disagg().page_size == 4
    assert module.send_kvcache is own
    assert not hasattr(module, "get_serving")


def test_what_is_not_known_is_answered_by_its_kind() -> None:
    answers = Answers("group")
    assert (answers.moe_ep_size, answers.pp_rank, answers.enable_new_thing, answers.other) == (1, 0, False, None)
    assert answers.attn_tp_group.cpu_group == "group"
    assert answers.asked >= {"moe_ep_size", "enable_new_thing"}


@pytest.mark.parametrize("wants", [0, Wants.LOGPROBS, Wants.HIDDEN, Wants.LOGPROBS | Wants.HIDDEN])
def test_every_value_that_is_handed_over_counts(wants: int) -> None:
    payload = Payload(LAYOUT)

    def filled(room: int) -> Request:
        request = Request(room, 0, wants, host="", port=0)
        request.fill(payload.row(room, 0, request.mask), LAYOUT)
        return request

    one, same, other = filled(5), filled(5), filled(6)
    assert one.tags(4) == same.tags(4)
    used = [bit for bit in range(9) if one.mask >> bit & 1]
    assert all((one.tags(4)[bit] != other.tags(4)[bit]) == (bit in used) for bit in range(9))
    same.cached_tokens_storage += 1
    assert one.tags(1) == same.tags(1)
    assert one.tags(4)[1] != same.tags(4)[1]
    if wants & Wants.HIDDEN:
        assert same.hidden_states_tensor is not None
        same.hidden_states_tensor[-1] += 1
        assert one.tags(4)[8] != same.tags(4)[8]
        assert one.hidden_states_tensor.shape == (8,)
    if wants & Wants.LOGPROBS:
        same.output_top_logprobs_idx[0][-1] ^= 1
        assert one.tags(4)[5] != same.tags(4)[5]


def _releases_record(req, tree_cache, is_insert=True):
    if not req.kv.holds_kv:
        return
    tree_cache.cache_finished_req(req, is_insert=is_insert)
    assert not req.kv.holds_kv
    assert req.kv.is_kv_released


def _releases_all(req, tree_cache, is_insert=True):
    assert (req.req_pool_idx is None) == (req.kv is None)
    tree_cache.cache_finished_req(req, is_insert=is_insert)
    assert req.req_pool_idx is None
    assert req.kv is None


@pytest.mark.parametrize("function", [_releases_record, _releases_all])
def test_pages_are_given_back_by_the_engines_own_release(function) -> None:
    given: list[Request] = []
    request = Request(1, 0, 0, host="", port=0)
    function(request, TreeCache(function, given.append))
    assert given == [request]
    assert not request.holds_kv


def test_what_is_watched_still_does_what_it_did() -> None:
    freed: list[int] = []

    class Allocator:
        def __init__(self, size):
            self.slots = [*range(size)]

        def free(self, free_index):
            self.slots.append(free_index)

    allocator = watched_allocator(Allocator, lambda slot: freed.append((slot, len(allocator.slots))))(1)
    allocator.free(4)
    assert freed == [(4, 1)]
    assert allocator.slots == [0, 4]

    class Buffers(NewBuffers):
        def get_buf(self, idx):
            return self.bootstrap_room[idx].clone()

    buffers = watched_buffers(Buffers)(2, 1, None, 1)
    buffers.bootstrap_room[1, 0] = 9
    assert buffers.get_buf(1)[0] == 9
    buffers.bootstrap_room[1, 0] = 0
    assert buffers.words_read == {1: (9, 9)}

    class Receiver:
        bootstrap_room = 7

        def poll(self):
            return np.int64(4)

    polled: list[tuple[int, int]] = []
    assert watched_receiver(Receiver, lambda *told: polled.append(told))().poll() == 4
    assert polled == [(7, 4)]
