"""A toy release whose sides speak SGLang's protocol to another process: its own words for the frames, not the harness's."""

from __future__ import annotations

from pathlib import Path

from releases import toy_release

CONN = """
import json
import struct
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
import zmq
from mooncake.engine import TransferEngine
from sglang.srt.disaggregation.base.conn import KVPoll

context = zmq.Context()
rank = {}
lock = threading.Lock()

class MooncakeKVBootstrapServer:
    def __init__(self, host, port):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                assert "prefill_dp_rank=0" in self.path and "engine_rank=0" in self.path
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(rank).encode())
            def log_message(self, *_):
                pass
        threading.Thread(target=HTTPServer((host, port), Handler).serve_forever, daemon=True).start()

class MooncakeKVManager:
    def __init__(self, args, disaggregation_mode, server_args, is_mla_backend=False):
        self.kv_args, self.engine = args, TransferEngine()
        if disaggregation_mode.value == "prefill":
            return self.begin_prefill()
        self.engine.batch_register_memory(args.kv_data_ptrs, args.kv_data_lens)
        self.engine.batch_register_memory(args.aux_data_ptrs, args.aux_data_lens)
        self.request_status, self.ranks, self.receivers = {}, {}, {}
        self.local_ip, self.socket = "127.0.0.1", context.socket(zmq.PULL)
        self.rank_port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        threading.Thread(target=self.receive, name="decode_thread", daemon=True).start()

    def begin_prefill(self):
        self.decodes, self.wanted, self.given_up, self.out = {}, {}, set(), {}
        self.socket = context.socket(zmq.PULL)
        rank.update(rank_ip="127.0.0.1", rank_port=self.socket.bind_to_random_port("tcp://127.0.0.1"))
        threading.Thread(target=self.hear, name="bootstrap_thread", daemon=True).start()

    def hear(self):
        while True:
            frames = self.socket.recv_multipart()
            if frames[0] == b"None":
                self.decodes[frames[3].decode()] = [struct.unpack(f"{len(f) // 8}Q", f) for f in frames[4:6]]
            elif frames[0] == b"ABORT":
                self.given_up.add(int(frames[1]))
                self.tell(frames[2:4], b"ABORT_ACK", frames[1])
            else:
                self.wanted[int(frames[0])] = frames

    def tell(self, where, *frames):
        address = "tcp://%s:%s" % tuple(part.decode() for part in where)
        with lock:
            if address not in self.out:
                self.out[address] = context.socket(zmq.PUSH)
                self.out[address].connect(address)
            self.out[address].send_multipart(frames)

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

class MooncakeKVSender:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room):
        self.mgr, self.room, self.status = mgr, bootstrap_room, KVPoll.Bootstrapping
    def poll(self):
        if self.room in self.mgr.given_up:
            return KVPoll.Failed
        if self.status == KVPoll.Bootstrapping and self.room in self.mgr.wanted:
            self.status = KVPoll.WaitingForInput
        return self.status
    def init(self, num_kv_indices, aux_index=None):
        self.aux = aux_index
    def send(self, kv_indices):
        frames = self.mgr.wanted.pop(self.room)
        theirs = struct.unpack(f"{len(frames[4]) // 4}i", frames[4])
        session, args = frames[3].decode(), self.mgr.kv_args
        kv, aux = self.mgr.decodes[session]
        blocks = [(p + int(i) * n, q + j * n, n) for p, q, n in zip(args.kv_data_ptrs, kv, args.kv_item_lens)
                  for i, j in zip(kv_indices, theirs)]
        row = [(p + self.aux * n, q + int(frames[5]) * n, n) for p, q, n in zip(args.aux_data_ptrs, aux, args.aux_item_lens)]
        done = [self.mgr.engine.batch_transfer_sync_write(session, *zip(*part)) for part in (blocks, row)]
        self.status = KVPoll.Success if done == [0, 0] else KVPoll.Failed
        self.mgr.tell(frames[1:3], frames[0], b"%d" % self.status, b"0")
    def failure_exception(self):
        raise RuntimeError("failed")
"""


def write(folder: Path, *bugs: str) -> Path:
    """A toy release with `bugs`, as `toy_release.write` makes it, but for its connection. Either side can be hosted, and only one."""
    toy_release.write(folder, *bugs)
    (folder / "sglang" / "srt" / "disaggregation" / "mooncake" / "conn.py").write_text(CONN)
    return folder
