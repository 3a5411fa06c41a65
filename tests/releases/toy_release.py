"""Writes a toy release of SGLang to disk: the few classes of its hand-off, in a good form and in forms with one known bug each.

It has what the harness uses and nothing else, and moves its bytes through `mooncake.engine`, as releases do.
"""

from __future__ import annotations

from pathlib import Path

UTILS = """
import enum
from collections import deque
import torch

class DisaggregationMode(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"

class ReqToMetadataIdxAllocator:
    def __init__(self, size):
        self.free_slots = deque(range(size))
    def available_size(self):
        return len(self.free_slots)
    def alloc(self):
        return self.free_slots.popleft() if self.free_slots else None
    def free(self, free_index):
        self.free_slots.append(free_index)

class MetadataBuffers:
    def __init__(self, size, hidden_size, hidden_states_dtype):
        self.output_ids = torch.zeros((size, 16), dtype=torch.int32)
        self.cached_tokens = torch.zeros((size, 16), dtype=torch.int32)
        self.output_hidden_states = torch.zeros((size, hidden_size), dtype=hidden_states_dtype)
        self.bootstrap_room = torch.zeros((size, 8), dtype=torch.uint64)
    def _all(self):
        return [self.output_ids, self.cached_tokens, self.bootstrap_room]
    def get_buf_infos(self):
        every = self._all()
        return [t.data_ptr() for t in every], [t.nbytes for t in every], [t[0].nbytes for t in every]
    def get_buf(self, idx):
        return self.output_ids[idx].clone(), self.cached_tokens[idx].clone(), self.bootstrap_room[idx].clone()
    def set_buf(self, req):
        slot = req.metadata_buffer_index
        self.output_ids[slot][0] = req.output_ids[0]
        self.cached_tokens[slot][0] = req.cached_tokens
        self.bootstrap_room[slot, 0] = req.bootstrap_room
"""

BASE = """
class KVPoll:
    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4

class KVArgs:
    kv_data_ptrs: list
    engine_rank: int
    ib_device: str
"""

CONN = """
import queue
import threading
import zmq
from mooncake.engine import TransferEngine
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.bugs import BUGS

managers = {}

class MooncakeKVBootstrapServer:
    def __init__(self, host, port):
        import socket
        self.socket = socket.create_server((host, port))

class MooncakeKVManager:
    def __init__(self, args, disaggregation_mode, server_args, is_mla_backend=False):
        self.args, self.mode = args, disaggregation_mode.value
        self.engine = TransferEngine()
        self.request_status = {}
        self.transfer_infos = {}
        self.local_ip = "127.0.0.1"
        self.socket = zmq.Context().socket(zmq.PULL)
        self.rank_port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        if self.mode == "decode":
            managers["decode"] = self
            self.to_prefill = {}
            self.start(self.receive, "decode_thread")
        else:
            managers[f"127.0.0.1:{server_args.disaggregation_bootstrap_port}"] = self
            self.to_decode, self.lock, self.jobs = None, threading.Lock(), queue.Queue()
            self.start(self.receive_aborts, "bootstrap_thread")
            self.start(self.work, "transfer_worker")

    def start(self, target, name):
        threading.Thread(target=target, name=name, daemon=True).start()

    def tell(self, *parts):
        if "shares" in BUGS:
            self.connect().send_multipart(parts)
            return
        with self.lock:
            self.connect().send_multipart(parts)

    def connect(self):
        if self.to_decode is None:
            self.to_decode = zmq.Context.instance().socket(zmq.PUSH)
            self.to_decode.connect(f"tcp://127.0.0.1:{managers['decode'].rank_port}")
        return self.to_decode

    def receive_aborts(self):
        while True:
            _, room = self.socket.recv_multipart()
            self.update_status(int(room), KVPoll.Failed)
            self.tell(b"ABORT_ACK", room)

    def work(self):
        while True:
            sender, pages = self.jobs.get()
            sender.move(pages)
            if "looks_twice" in BUGS and sender.room in self.request_status:
                self.check_status(sender.room)

    def receive(self):
        while True:
            message = self.socket.recv_multipart()
            if message[0] == b"ABORT_ACK":
                continue
            room, status, _ = (int(part) for part in message)
            if "dies" in BUGS and room not in self.request_status:
                raise KeyError(room)
            if "revives" in BUGS or room in self.request_status:
                self.update_status(room, status)

    def update_status(self, room, status):
        old = self.request_status.get(room)
        if old == KVPoll.Failed and "resurrects" not in BUGS:
            return
        self.request_status[room] = status

    def check_status(self, room):
        return self.request_status[room]

class MooncakeKVReceiver:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room=None, prefill_dp_rank=None):
        self.mgr, self.bootstrap_addr, self.bootstrap_room = mgr, bootstrap_addr, bootstrap_room
        mgr.update_status(bootstrap_room, KVPoll.WaitingForInput)
        self.drained = threading.Event()
    def init(self, kv_indices, aux_index=None):
        peer = managers[self.bootstrap_addr]
        peer.transfer_infos[self.bootstrap_room] = ([int(i) for i in kv_indices], aux_index, self)
    def poll(self):
        return self.mgr.check_status(self.bootstrap_room)
    def abort(self):
        self.mgr.update_status(self.bootstrap_room, KVPoll.Failed)
        peer = managers[self.bootstrap_addr]
        if peer not in self.mgr.to_prefill:
            self.mgr.to_prefill[peer] = zmq.Context.instance().socket(zmq.PUSH)
            self.mgr.to_prefill[peer].connect(f"tcp://127.0.0.1:{peer.rank_port}")
        self.mgr.to_prefill[peer].send_multipart([b"ABORT", str(self.bootstrap_room).encode()])
    def clear(self):
        self.mgr.request_status.pop(self.bootstrap_room, None)
    def failure_exception(self):
        raise RuntimeError("failed")

class MooncakeKVSender:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room):
        self.mgr, self.room = mgr, bootstrap_room
        mgr.update_status(self.room, KVPoll.Bootstrapping)
    def poll(self):
        status = self.mgr.request_status.get(self.room, KVPoll.Failed)
        if status == KVPoll.Bootstrapping and self.room in self.mgr.transfer_infos:
            return KVPoll.WaitingForInput
        return status
    def clear(self):
        self.mgr.request_status.pop(self.room, None)
    def init(self, num_kv_indices, aux_index=None):
        self.aux = aux_index
    def send(self, kv_indices):
        self.mgr.jobs.put((self, [int(i) for i in kv_indices]))
    def move(self, mine):
        theirs, aux, receiver = self.mgr.transfer_infos.pop(self.room)
        here, there = self.mgr.args, managers["decode"].args
        for name, source, target in (("kv", mine[0], theirs[0]), ("aux", self.aux, aux)):
            sizes = getattr(here, name + "_item_lens")
            self.mgr.engine.batch_transfer_sync_write(
                "", [p + source * n for p, n in zip(getattr(here, name + "_data_ptrs"), sizes)],
                [p + target * n for p, n in zip(getattr(there, name + "_data_ptrs"), sizes)], sizes)
        receiver.drained.set()
        self.mgr.update_status(self.room, KVPoll.Success)
        self.mgr.tell(*(str(part).encode() for part in (self.room, KVPoll.Success, 0)))
"""

DECODE = """
from dataclasses import dataclass
from typing import Any
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.bugs import BUGS
from sglang.srt.server_args import get_global_server_args

def release_kv_cache(req, tree_cache, is_insert=True):
    tree_cache.cache_finished_req(req, is_insert=is_insert)

@dataclass
class DecodeRequest:
    req: Any
    kv_receiver: Any
    waiting_for_input: bool = False
    metadata_buffer_index: int = -1

class Failure:
    message = "failed"

class DecodeTransferQueue:
    def __init__(self, req_to_metadata_buffer_idx_allocator, metadata_buffers, scheduler, tree_cache):
        assert get_global_server_args().page_size == 1
        self.queue, self.held = [], []
        self.slots, self.buffers = req_to_metadata_buffer_idx_allocator, metadata_buffers
        self.scheduler, self.tree_cache = scheduler, tree_cache
    def extend(self, entries):
        self.queue.extend(entries)
    def release(self, entry):
        release_kv_cache(entry.req, self.tree_cache, is_insert=False)
        self.free(entry)
    def free(self, entry):
        if "stale" not in BUGS:
            self.buffers.bootstrap_room[entry.metadata_buffer_index] = 0
        self.slots.free(entry.metadata_buffer_index)
    def resolve_deferred_releases(self):
        for entry in [e for e in self.held if e.kv_receiver.drained.is_set()]:
            self.held.remove(entry)
            self.release(entry)
    def fail(self, entry):
        entry.req.finished_reason = Failure()
        self.scheduler.stream_output([entry.req], False)
    def pop_transferred(self):
        done, rest = [], []
        for entry in self.queue:
            status, req = entry.kv_receiver.poll(), entry.req
            landed = self.buffers.bootstrap_room[entry.metadata_buffer_index, 0].item()  # before the rest, since it lands last
            token, cached, room = self.buffers.get_buf(entry.metadata_buffer_index)
            if "room_last" in BUGS:
                landed = room[0].item()
            if "torn" not in BUGS and landed and token[0].item() == 0:
                landed = 0
            if status == KVPoll.Failed:
                self.fail(entry)
                if "undrained" in BUGS:
                    self.release(entry)
                else:
                    self.held.append(entry)
            elif status != KVPoll.Success or (landed == 0 and "unchecked" not in BUGS):
                rest.append(entry)
            elif landed != req.bootstrap_room and "unchecked" not in BUGS:
                self.fail(entry)
                self.release(entry)
            else:
                req.output_ids.append(token[0].item())
                req.cached_tokens = cached[0].item()
                if "torn" not in BUGS:
                    self.buffers.output_ids[entry.metadata_buffer_index] = 0
                self.free(entry)
                done.append(req)
        self.queue = rest
        return done
"""

ARGUMENTS = """
def get_global_server_args():
    raise RuntimeError("no server here")
"""


def write(folder: Path, *bugs: str) -> Path:
    """A toy release with `bugs` below `folder`: `stale`, `torn`, `room_last`, `unchecked`, `undrained`, `resurrects`, `revives`, `dies`,
    `looks_twice`, `shares`."""
    package = folder / "sglang" / "srt" / "disaggregation"
    for part in ("base", "mooncake"):
        (package / part).mkdir(parents=True)
        (package / part / "__init__.py").write_text("")
    for parent in (package, package.parent, package.parent.parent):
        (parent / "__init__.py").write_text("import absent_kernels\n")
    (package.parent / "server_args.py").write_text(ARGUMENTS)
    (package / "bugs.py").write_text(f"BUGS = {bugs!r}\n")
    for name, source in (("utils", UTILS), ("base/conn", BASE), ("mooncake/conn", CONN), ("decode", DECODE)):
        (package / f"{name}.py").write_text(source)
    return folder
