"""A toy release whose decode speaks SGLang's protocol to another process: its own words for the frames, not the harness's."""

from __future__ import annotations

from pathlib import Path

from releases import toy_release

CONN = """
import json
import struct
import threading
import urllib.request
import zmq
from mooncake.engine import TransferEngine
from sglang.srt.disaggregation.base.conn import KVPoll

context = zmq.Context()

class MooncakeKVManager:
    def __init__(self, args, disaggregation_mode, server_args, is_mla_backend=False):
        self.kv_args, self.engine = args, TransferEngine()
        self.engine.batch_register_memory(args.kv_data_ptrs, args.kv_data_lens)
        self.engine.batch_register_memory(args.aux_data_ptrs, args.aux_data_lens)
        self.request_status, self.ranks, self.receivers = {}, {}, {}
        self.local_ip, self.socket = "127.0.0.1", context.socket(zmq.PULL)
        self.rank_port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        threading.Thread(target=self.receive, name="decode_thread", daemon=True).start()

    def receive(self):
        while True:
            frames = self.socket.recv_multipart()
            if frames[0] == b"ABORT_ACK":
                self.receivers[int(frames[1])].drained.set()
                continue
            room, status, rank = (int(frame) for frame in frames)
            if status == KVPoll.Failed:
                self.receivers[room].drained.set()
            if self.request_status.get(room) not in (None, KVPoll.Failed):
                self.request_status[room] = status

    def check_status(self, room):
        return self.request_status[room]

    def rank(self, address):
        if address not in self.ranks:
            here = ask(address, -1)
            assert here["attn_tp_size"] == here["pp_size"] == 1 and here["kv_cache_dtype"] == "auto"
            where = ask(address, 0)
            socket = self.ranks[address] = context.socket(zmq.PUSH)
            socket.connect(f"tcp://{where['rank_ip']}:{where['rank_port']}")
            args = self.kv_args
            socket.send_multipart([
                b"None", *self.back(), *(b"".join(struct.pack("Q", p) for p in ptrs) for ptrs in (args.kv_data_ptrs, args.aux_data_ptrs)),
                b"", b"0", b"1", b"%d" % args.kv_item_lens[0], b"", b"", b"", b""])
        return self.ranks[address]

    def back(self):
        return [b"127.0.0.1", b"%d" % self.rank_port, b"127.0.0.1:1"]

def ask(address, rank):
    url = f"http://{address}/route?prefill_dp_rank={rank}&prefill_cp_rank={rank}&target_tp_rank={rank}&target_pp_rank={rank}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)

class MooncakeKVReceiver:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room=None, prefill_dp_rank=None):
        self.mgr, self.bootstrap_room = mgr, bootstrap_room
        self.rank, self.drained = mgr.rank(bootstrap_addr), threading.Event()
        mgr.receivers[bootstrap_room] = self
        mgr.request_status[bootstrap_room] = KVPoll.WaitingForInput
    def init(self, kv_indices, aux_index=None):
        self.rank.send_multipart([
            b"%d" % self.bootstrap_room, *self.mgr.back(), kv_indices.tobytes(), b"%d" % aux_index, b"", b"1", b"0"])
    def poll(self):
        return self.mgr.check_status(self.bootstrap_room)
    def abort(self):
        self.mgr.request_status[self.bootstrap_room] = KVPoll.Failed
        self.rank.send_multipart([b"ABORT", b"%d" % self.bootstrap_room, *self.mgr.back()[:2]])
    def clear(self):
        self.mgr.request_status.pop(self.bootstrap_room, None)
    def failure_exception(self):
        raise RuntimeError("failed")
"""


def write(folder: Path, *bugs: str) -> Path:
    """A toy release with `bugs`, as `toy_release.write` makes it, but for its connection. It can only be hosted at decode."""
    toy_release.write(folder, *bugs)
    (folder / "sglang" / "srt" / "disaggregation" / "mooncake" / "conn.py").write_text(CONN)
    return folder
