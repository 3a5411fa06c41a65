"""One adapter for every release: the smallest surface of SGLang's hand-off, settled by signature and attribute, never by version."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from harness.hosting.ports import wait_until_served
from harness.hosting.sglang.answers import LOOPBACK, scheduler
from harness.hosting.sglang.load import SHARED_ENGINE, Loaded
from harness.hosting.sglang.request import Request, TreeCache
from harness.protocol.layout import Layout
from harness.protocol.rooms import NO_ROOM

SERVER_TIMEOUT_S = 20.0
SAMPLING_MASK_TOKENS = 16
"""Width of the sampling mask's row, which is not used."""


def call(function: Callable[..., Any], **given: Any) -> Any:
    """Call `function` with those of `given` that its signature takes."""
    parameters = inspect.signature(function).parameters
    return function(**{name: value for name, value in given.items() if name in parameters})


class Release:
    """Constructors of a loaded release's objects, the same for all releases."""

    def __init__(self, loaded: Loaded) -> None:
        """See `harness.hosting.sglang.load`."""
        self.loaded = loaded
        self.poll = loaded.base.KVPoll
        self._cached: int | None = None

    # Metadata ----------------------------------------------------------------------------------------------------

    def buffers(self, slots: int, layout: Layout, kind: type | None = None) -> Any:
        """The release's `MetadataBuffers`; `kind`: a subclass of it."""
        return call(
            kind or self.loaded.utils.MetadataBuffers, size=slots, hidden_size=layout.spec.hidden,
            hidden_states_dtype=getattr(torch, layout.spec.hidden_dtype),
            max_sampling_mask_tokens=SAMPLING_MASK_TOKENS,
        )  # fmt: skip

    def cached_counts(self, layout: Layout) -> int:
        """How many of a request's cached-token counts a row carries: found by writing one."""
        if self._cached is None:
            buffers = self.buffers(1, layout)
            probe = Request(1, 0, 0, host=LOOPBACK, port=0)
            probe.output_ids, probe.metadata_buffer_index = [1], 0
            probe.cached_tokens = probe.cached_tokens_device = probe.cached_tokens_host = 1
            probe.cached_tokens_storage = 1
            buffers.set_buf(probe)
            self._cached = int((buffers.cached_tokens[0] == 1).sum())
        return self._cached

    # The connection ------------------------------------------------------------------------------------------------

    def bootstrap_server(self, port: int) -> Any:
        """The release's bootstrap server, on loopback; it serves on a thread of its own when this returns."""
        server = self.loaded.find("KVBootstrapServer")(LOOPBACK, port)
        wait_until_served(port, SERVER_TIMEOUT_S)  # some releases register with it once, and never again
        return server

    def arguments(self, kv: Sequence[torch.Tensor], buffers: Any) -> Any:
        """`KVArgs` for one rank: `kv` are contiguous (pages, words) tensors, keys of all layers first, then values.

        Fields are filled from their annotations with what is empty, then those that are known.
        """
        found = self.loaded.base.KVArgs()
        for owner in type(found).__mro__:
            for name, kind in vars(owner).get("__annotations__", {}).items():
                if not hasattr(found, name):
                    setattr(found, name, _empty(str(kind)))
        layers = len(kv) // 2
        pointers, lengths, items = buffers.get_buf_infos()
        known = {
            "kv_data_ptrs": [t.data_ptr() for t in kv], "kv_data_lens": [t.nbytes for t in kv],
            "kv_item_lens": [t[0].nbytes for t in kv], "aux_data_ptrs": pointers, "aux_data_lens": lengths,
            "aux_item_lens": items, "page_size": 1, "kv_head_num": 1, "total_kv_head_num": 1,
            "prefill_start_layer": 0, "prefill_end_layer": layers, "kv_layer_ids": [*range(layers)] * 2,
            "ib_device": None, "kv_cache_dtype_str": "auto", "system_dp_rank": 0, "engine_rank": 0, "gpu_id": 0,
            "pp_rank": 0, "decode_tp_size": 1, "prefill_pp_size": 1,
        }  # fmt: skip
        if hasattr(found, "state_type"):
            known["state_type"] = "none"
        for name, value in known.items():
            setattr(found, name, value)
        return found

    def manager(self, mode: str, kv: Sequence[torch.Tensor], buffers: Any, bootstrap_port: int) -> Any:
        """The KV manager of `mode` (`prefill` or `decode`), its transfer engine and its threads running."""
        answers = self.loaded.answers
        answers.know(disaggregation_bootstrap_port=bootstrap_port, disaggregation_mode=mode)
        self._shared_engine()
        return self.loaded.find("KVManager")(
            self.arguments(kv, buffers), self.loaded.utils.DisaggregationMode(mode), answers, False
        )

    def _shared_engine(self) -> None:
        """Releases in which managers share one Mooncake engine have it made by the server first."""
        make = getattr(sys.modules.get(SHARED_ENGINE), "init_mooncake_transfer_engine", None)
        if self.loaded.backend_prefix == "Mooncake" and make is not None:
            make(hostname=LOOPBACK, gpu_id=0, ib_device=None)

    def sender(self, manager: Any, address: str, room: int) -> Any:
        """As prefill makes it when a request arrives."""
        return call(
            self.loaded.find("KVSender"), mgr=manager, bootstrap_addr=address, bootstrap_room=room, dest_tp_ranks=[0],
            pp_rank=0,
        )  # fmt: skip

    @staticmethod
    def begin(sender: Any, pages: Sequence[int], slot: int) -> None:
        """As prefill does once the sender waits for input; then comes the forward pass."""
        if hasattr(sender, "pop_decode_prefix_len"):
            sender.pop_decode_prefix_len()
        sender.init(len(pages), slot)

    @staticmethod
    def send(sender: Any, pages: Sequence[int]) -> None:
        """As prefill does after the forward pass and `set_buf`: send the pages, and with the last of them the row."""
        sender.send(np.asarray(pages, np.int32))

    def receiver(self, kind: type, manager: Any, address: str, room: int) -> Any:
        """As decode makes it when a request arrives, of class `kind`; None while prefill is not known yet."""
        ensure = getattr(manager, "try_ensure_parallel_info", None)
        if ensure is not None and not ensure(address):
            return None
        receiver = call(kind, mgr=manager, bootstrap_addr=address, bootstrap_room=room, prefill_dp_rank=0)
        if hasattr(receiver, "send_metadata"):
            receiver.init(0)
        return receiver

    @staticmethod
    def publish(receiver: Any, pages: Sequence[int], slot: int) -> None:
        """Tell prefill where the data shall go."""
        tell = getattr(receiver, "send_metadata", None) or receiver.init
        tell(np.asarray(pages, np.int32), slot)

    # The queue -----------------------------------------------------------------------------------------------------

    def transfer_queue(
        self, buffers: Any, allocator: Any, stream: Callable[..., None], give_back: Callable[[Request], None]
    ) -> Any:
        """The release's `DecodeTransferQueue`; `stream` is told of aborted requests, `give_back` takes their pages."""
        loaded = self.loaded
        cache = TreeCache(loaded.decode.release_kv_cache, give_back)
        return call(
            loaded.decode.DecodeTransferQueue, gloo_group=loaded.group, tp_rank=0, metadata_buffers=buffers,
            req_to_metadata_buffer_idx_allocator=allocator, scheduler=scheduler(loaded.answers, stream),
            tree_cache=cache,
        )  # fmt: skip

    def decode_request(self, request: Request, receiver: Any) -> Any:
        """An entry of the transfer queue."""
        return self.loaded.decode.DecodeRequest(
            req=request, kv_receiver=receiver, waiting_for_input=True,
            metadata_buffer_index=request.metadata_buffer_index,
        )  # fmt: skip


def room_word(buffers: Any, slot: int) -> int:
    """The room that `slot` names; 0 for a release whose rows have no room."""
    rooms = getattr(buffers, "bootstrap_room", None)
    return NO_ROOM if rooms is None else int(rooms[slot, 0].item())


def _empty(kind: str) -> Any:
    if kind.startswith(("List", "list")):
        return []
    return {"int": 0, "str": "", "bool": False}.get(kind)
