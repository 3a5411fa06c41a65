"""The floor: a bare loop of the messages and copies of a hand-off between three processes. No engine, no history, no check.

Five messages of two frames each, as the harness sends them, and the blocks of one row and its KV pages, copied into shared memory or
sent over one TCP connection and copied by a receive thread. Nothing is decoded, looked at or recorded.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import threading
import time

import zmq
from multiprocess import get_context

ENVELOPE = b"PDH1" + bytes(8)
SIZES = {"request": 24, "exchange": 36, "status": 16, "result": 24}
ROW_BLOCKS = (64, 64, 64, 64, 512, 512, 64, 128, 64, 64)
KV_BLOCKS = (1024,) * 8
BLOCKS = KV_BLOCKS + ROW_BLOCKS
BYTES = sum(BLOCKS)
SLOTS = 32
_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


class Ends:
    """One PULL inbox and PUSH ends, used as the harness uses them."""

    def __init__(self, name: str, who: str) -> None:
        self.context = zmq.Context()
        self.name = name
        self.inbox = self.context.socket(zmq.PULL)
        self.inbox.set_hwm(0)
        self.inbox.bind(f"ipc://@floor-{name}-{who}")

    def to(self, who: str, kind: str):  # noqa: ANN201
        end = self.context.socket(zmq.PUSH)
        end.set_hwm(0)
        end.connect(f"ipc://@floor-{self.name}-{who}")
        send, body = super(zmq.Socket, end).send, secrets.token_bytes(SIZES[kind])

        def one(head: bytes) -> None:
            send(ENVELOPE, _MORE)
            send(head + body, _NOBLOCK)

        return one

    def drain(self) -> list[bytes]:
        found = []
        receive = self.inbox.recv
        for _ in range(256):
            try:
                frame = receive(_NOBLOCK, copy=False)
            except zmq.Again:
                break
            while frame.more:
                frame = receive(_NOBLOCK, copy=False)
            found.append(frame.bytes)
        if not found:
            self.inbox.poll(1000)
        return found


def _prefill(name: str, path: str, port: int) -> None:
    ends = Ends(name, "prefill")
    status = ends.to("decode", "status")
    source = memoryview(bytearray(os.urandom(BYTES)))
    blocks, at = [], 0
    for size in BLOCKS:
        blocks.append((at, source[at : at + size]))
        at += size
    data, target = None, None
    if port:
        data = socket.create_connection(("127.0.0.1", port))
        data.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        descriptor = os.open(path, os.O_RDWR)
        target = memoryview(mmap.mmap(descriptor, BYTES * SLOTS))
    seen: set[bytes] = set()
    while True:
        done = []
        for message in ends.drain():
            kind, head = message[:1], message[1:9]
            if kind == b"q":
                return
            if head not in seen:  # both halves must be there, as in a real hand-off
                seen.add(head)
                continue
            seen.discard(head)
            slot = int.from_bytes(head, "little") % SLOTS
            if data is not None:
                data.sendmsg([block for _, block in blocks])
            else:
                base = slot * BYTES
                for offset, block in blocks:
                    target[base + offset : base + offset + len(block)] = block
            done.append(b"s" + head)
        for head in done:
            status(head)


def _receive(listener: socket.socket, target: memoryview) -> None:
    connection, _ = listener.accept()
    buffer = memoryview(bytearray(1 << 20))
    have = 0
    slot = 0
    while got := connection.recv_into(buffer[have:]):
        have += got
        at = 0
        while have - at >= BYTES:
            base = slot % SLOTS * BYTES
            offset = 0
            for size in BLOCKS:
                target[base + offset : base + offset + size] = buffer[at + offset : at + offset + size]
                offset += size
            at += BYTES
            slot += 1
        buffer[: have - at] = buffer[at:have]
        have -= at


def _decode(name: str, pipe) -> None:  # noqa: ANN001
    ends = Ends(name, "decode")
    descriptor = os.memfd_create("floor")
    os.ftruncate(descriptor, BYTES * SLOTS)
    target = memoryview(mmap.mmap(descriptor, BYTES * SLOTS))
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_receive, args=(listener, target), daemon=True).start()
    pipe.send((f"/proc/{os.getpid()}/fd/{descriptor}", listener.getsockname()[1]))
    exchange, result = ends.to("prefill", "exchange"), ends.to("driver", "result")
    while True:
        rooms, done = [], []
        for message in ends.drain():
            kind, head = message[:1], message[1:9]
            if kind == b"q":
                return
            (rooms if kind == b"r" else done).append(head)
        for head in rooms:
            exchange(b"x" + head)
        for head in done:
            result(b"d" + head)


def run(transport: str, count: int, concurrency: int = 32) -> float:
    """Hand-offs a second of the bare loop."""
    name = secrets.token_hex(8)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # as the harness runs; children inherit it
    context = get_context("spawn")
    here, there = context.Pipe()
    ends = Ends(name, "driver")
    decode = context.Process(target=_decode, args=(name, there))
    decode.start()
    path, port = here.recv()
    prefill = context.Process(target=_prefill, args=(name, path, port if transport == "tcp" else 0))
    prefill.start()
    to_prefill, to_decode = ends.to("prefill", "request"), ends.to("decode", "request")
    try:
        _loop(ends, to_prefill, to_decode, 500, concurrency, 0)
        began = time.perf_counter()
        _loop(ends, to_prefill, to_decode, count, concurrency, 500)
        return count / (time.perf_counter() - began)
    finally:
        to_prefill(b"q")
        to_decode(b"q")
        for process in (prefill, decode):
            process.join(5)
            process.kill()


def _loop(ends, to_prefill, to_decode, count: int, concurrency: int, base: int) -> None:  # noqa: ANN001
    issued = ended = 0
    while ended < count:
        while issued < count and issued - ended < concurrency:
            head = b"r" + (base + issued).to_bytes(8, "little")
            to_decode(head)
            to_prefill(head)
            issued += 1
        ended += len(ends.drain())
