"""Our request object and tree cache: what SGLang's hand-off reads, writes and releases in place of a scheduler's own.

SGLang duck-types its requests here. Where releases moved attributes into a record of their own (`req.logprob`, `req.kv`), that record is
the request itself, so that both spellings reach one value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness.history.event import TAGGED_FIELDS, Wants
from harness.hosting.stubs import Absent
from harness.protocol.layout import Layout
from harness.protocol.payload import Words, field_mask

TOP_LOGPROBS = 128
"""As many as SGLang's buffer holds for a request: every item of the row is checked."""
_TOPK = 16
_DTYPES = ("<i4", "<i4", "<f4", "<i4", "<f4", "<i4", "<f4", "<i8")


class Request:
    """One request as both sides of the hand-off see it. `wants`: a mask of `Wants`; pages and slot are added as they are given."""

    def __init__(self, room: int, attempt: int, wants: int, *, host: str, port: int) -> None:
        """A request without a token: what decode has before the hand-off, and prefill before its forward pass."""
        self.room, self.attempt, self.wants = room, attempt, wants
        self.rid = f"{room:x}"
        self.bootstrap_room, self.bootstrap_host, self.bootstrap_port = room, host, port
        self.metadata_buffer_index = -1
        self.pages: list[int] = []
        self.output_ids: list[int] = []
        self.cached_tokens = self.cached_tokens_device = self.cached_tokens_host = self.cached_tokens_storage = 0
        self.return_logprob = bool(wants & Wants.LOGPROBS)
        self.top_logprobs_num = TOP_LOGPROBS
        self.output_token_logprobs_val: list[float] = []
        self.output_token_logprobs_idx: list[int] = []
        self.output_top_logprobs_val: list[list[float]] = []
        self.output_top_logprobs_idx: list[list[int]] = []
        self.output_topk_p: torch.Tensor | None = None
        self.output_topk_index: torch.Tensor | None = None
        self.hidden_states_tensor: torch.Tensor | None = None
        self.finished_reason: Any = None
        self.time_stats = Absent("time_stats")
        self.logprob = self
        self.kv: Request | None = self
        self.origin_input_ids = [0]
        self._holds_kv = True
        self._set_defaults()

    def _set_defaults(self) -> None:
        """What SGLang only looks at: nothing optional is used."""
        self.already_computed = 0
        self.token_ids_logprob = self.multimodal_inputs = self.priority = self.to_finish = None
        self.output_dsa_topk_indices = self.pd_rebootstrap_forced_output_id = self.lock = None
        self.req_pool_idx: int | None = 0
        self.mamba_pool_idx = None
        self.return_sampling_mask = self.is_retracted = False

    # What SGLang's own `release_kv_cache` asks ------------------------------------------------------------------

    @property
    def holds_kv(self) -> bool:
        """Whether the request still has its pages."""
        return self._holds_kv

    @property
    def is_kv_released(self) -> bool:
        """The opposite."""
        return not self._holds_kv

    def effective_kv_committed_len(self) -> int:
        """Nothing beyond the pages is accounted for."""
        return 0

    def pop_overallocated_kv_cache(self) -> tuple[int, int]:
        """Nothing was allocated in advance."""
        return 0, 0

    def get_mm_token_counts(self) -> tuple[int, ...]:
        """No image, audio or video tokens."""
        return (0, 0, 0)

    def add_latency(self, *_: object) -> None:
        """Not measured."""

    def let_kv_go(self, *, keep_record: bool) -> None:
        """The pages were given back; `keep_record`: whether the record of them stays and says so."""
        self._holds_kv = False
        self.req_pool_idx = None
        if not keep_record:
            self.kv = None

    # Content --------------------------------------------------------------------------------------------------------

    @property
    def mask(self) -> int:
        """Fields that the request uses: a mask over `TAGGED_FIELDS`."""
        return field_mask(self.wants)

    def fill(self, row: Words, layout: Layout) -> None:
        """Take the values of `row` (uint64, as `Payload.row` makes it for `layout`) as the results of a forward pass."""
        parts = split(row, layout)
        items = [part.view(dtype) for part, dtype in zip(parts, _DTYPES, strict=False)]
        self.output_ids = [int(items[0][0])]
        self.cached_tokens, self.cached_tokens_device, self.cached_tokens_host, self.cached_tokens_storage = items[1][
            :4
        ].tolist()
        if self.wants & Wants.LOGPROBS:
            self.output_token_logprobs_val, self.output_token_logprobs_idx = [float(items[2][0])], [int(items[3][0])]
            self.output_top_logprobs_val = [items[4][:TOP_LOGPROBS].tolist()]
            self.output_top_logprobs_idx = [items[5][:TOP_LOGPROBS].tolist()]
        if self.wants & Wants.HIDDEN:
            self.output_topk_p = torch.from_numpy(items[6][:_TOPK].copy())
            self.output_topk_index = torch.from_numpy(items[7][:_TOPK].copy())
            dtype = getattr(torch, layout.spec.hidden_dtype)
            states = torch.from_numpy(parts[8].view(np.uint8).copy()).view(dtype)
            self.hidden_states_tensor = states[: layout.spec.hidden]

    def tags(self, cached: int) -> list[int]:
        """Nine 32-bit fingerprints of what the request holds, 0 for a field that it does not use.

        `cached`: how many of the cached-token counts the engine carries over.
        """
        counts = [self.cached_tokens, self.cached_tokens_device, self.cached_tokens_host, self.cached_tokens_storage]
        values: dict[int, Any] = {0: self.output_ids[:1], 1: counts[:cached]}
        if self.wants & Wants.LOGPROBS:
            values[2], values[3] = self.output_token_logprobs_val, self.output_token_logprobs_idx
            values[4], values[5] = self.output_top_logprobs_val[-1:], self.output_top_logprobs_idx[-1:]
        if self.wants & Wants.HIDDEN:
            values[6], values[7], values[8] = self.output_topk_p, self.output_topk_index, self.hidden_states_tensor
        return [_tag(bit, values.get(bit)) for bit in range(len(TAGGED_FIELDS))]


def _tag(bit: int, value: Any) -> int:
    """A fingerprint of one field's items, in the order in which they came."""
    if value is None:
        return 0
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().view(torch.uint8).numpy().tobytes()
    else:
        raw = np.asarray(value, dtype=_DTYPES[bit]).tobytes()
    return hash_bytes(raw, bit)


def hash_bytes(raw: bytes, salt: int) -> int:
    """32 bits that stand for `raw`; the same in every process."""
    digest = hashlib.blake2b(raw, digest_size=4, salt=bytes([salt])).digest()
    return int.from_bytes(digest, "little")


def split(row: Words, layout: Layout) -> list[Words]:
    """The words of each field of `row`, in field order, the room last."""
    parts, at = [], 0
    for field in layout.fields:
        parts.append(row[at : at + field.row_bytes // 8])
        at += field.row_bytes // 8
    return parts


class TreeCache:
    """In place of SGLang's prefix cache: SGLang's own `release_kv_cache` calls it, and it gives the request's pages back."""

    def __init__(self, release_kv_cache: Any, give_back: Callable[[Request], None]) -> None:
        """`release_kv_cache` is SGLang's; `give_back(request)` frees the request's pages, once for each request."""
        self._give_back = give_back
        # Some releases drop a request's record of its pages with the pages, some ask the record afterwards.
        self._keep_record = "holds_kv" in release_kv_cache.__code__.co_names
        self.req_to_token_pool = self
        self.token_to_kv_pool_allocator = self
        self.page_size = 1
        self.disable = True

    def supports_mamba(self) -> bool:
        """A request may end before it has pages."""
        return True

    def cache_finished_req(self, request: Request, **_: object) -> None:
        """Releases to 0.5.20 end a request's pages here."""
        request.let_kv_go(keep_record=self._keep_record)
        self._give_back(request)

    def claim_kv_row(self, request: Request) -> bool:
        """Releases from 0.5.23 ask whether somebody keeps the pages: this cache takes them, and frees them."""
        self.cache_finished_req(request)
        return True

    def free(self, *_: object) -> None:
        """The row of the pool went with the pages."""

    def unlock(self, *_: object) -> None:
        """Nothing of a prefix is locked."""
