"""Two ranks of torch.distributed's gloo backend, one at each end of a connection that both already have.

The connection carries the rendezvous (instead of a store with a port of its own), and afterwards, before each message, its length: so
that a receiver waits there, where it can be ended, and enters gloo only for a message that is on its way.
"""

from __future__ import annotations

import datetime as dt
import socket
import struct
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroupGloo, Store

SENDER, RECEIVER = 0, 1
TIMEOUT_S = 30.0
"""Of the rendezvous, and of one message: gloo ends the pair when a peer does not take or send it in time."""
_ITEM = struct.Struct("<HI")
"""Bytes of a key and of its value; no key: the end of the rendezvous."""
_LENGTH = struct.Struct("<I")
_VALUE_BYTES_MAX = 1 << 20
_ITEMS_MAX = 64


class _Store(Store):
    """What gloo wants of a store, over the connection: each end is told what the other sets."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self._items: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        """Keep it and tell the other end."""
        self._items[key] = value
        name = key.encode()
        self._connection.sendall(_ITEM.pack(len(name), len(value)) + name + value)

    def get(self, key: str) -> bytes:
        """Wait for it."""
        while key not in self._items:
            if not self._read():
                raise ConnectionResetError(f"the other end never set {key}")
        return self._items[key]

    def wait(self, keys: list[str], timeout: dt.timedelta | None = None) -> None:
        """Wait for all of them, as long as the connection does."""
        del timeout
        for key in keys:
            self.get(key)

    def finish(self) -> None:
        """No more items, of either end: what comes next on the connection is not the store's."""
        self._connection.sendall(_ITEM.pack(0, 0))
        while self._read():
            pass

    def _read(self) -> bool:
        key_bytes, value_bytes = _ITEM.unpack(_exactly(self._connection, _ITEM.size))
        if value_bytes > _VALUE_BYTES_MAX or len(self._items) > _ITEMS_MAX:
            raise ConnectionResetError(f"{len(self._items)} items, and one of {value_bytes} bytes, are not gloo's")
        key = _exactly(self._connection, key_bytes).decode(errors="replace")
        self._items[key] = _exactly(self._connection, value_bytes)
        return bool(key)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = connection.recv(count, socket.MSG_WAITALL) if count else b""
    if len(data) != count:
        raise ConnectionResetError("the other end is gone")
    return data


class Pair:
    """One end; used by one thread. Every failure is an OSError, and ends the pair."""

    def __init__(self, connection: socket.socket, rank: int, host: str) -> None:
        """Meet the other end; gloo listens on `host` meanwhile, on a port of the system's choice. Blocks; raises OSError."""
        self._connection = connection
        self._other = RECEIVER if rank == SENDER else SENDER
        self._rest: memoryview | None = None
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001  the only way to name the interface
        options._devices = [ProcessGroupGloo.create_device(hostname=host)]  # noqa: SLF001
        options._timeout = dt.timedelta(seconds=TIMEOUT_S)  # noqa: SLF001
        options._threads = 1  # noqa: SLF001
        connection.settimeout(TIMEOUT_S)
        store = _Store(connection)
        try:
            self._group: Any = ProcessGroupGloo(store, rank, 2, options)
        except RuntimeError as error:
            raise ConnectionError(f"gloo: {error}") from error
        store.finish()
        connection.settimeout(None)

    def send(self, data: bytearray) -> None:
        """Send one message; `data` must not be empty. Returns when gloo says that it is sent: its bytes left."""
        self._connection.sendall(_LENGTH.pack(len(data)))
        self._run(self._group.send, torch.frombuffer(data, dtype=torch.uint8))

    def recv_into(self, buffer: memoryview) -> int:
        """As a socket's: bytes of the next message, or of the rest of the last one; 0 at the end."""
        if self._rest is None:
            head = self._connection.recv(_LENGTH.size, socket.MSG_WAITALL)
            if len(head) < _LENGTH.size:
                return 0
            (size,) = _LENGTH.unpack(head)
            if size <= len(buffer):
                self._run(self._group.recv, torch.frombuffer(buffer[:size], dtype=torch.uint8))
                return int(size)
            message = bytearray(min(size, MESSAGE_BYTES_MAX))
            self._run(self._group.recv, torch.frombuffer(message, dtype=torch.uint8))
            self._rest = memoryview(message)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:] or None
        return count

    def sendall(self, data: bytes) -> None:
        """An answer to the sender, beside gloo."""
        self._connection.sendall(data)

    def _run(self, operation: Any, tensor: torch.Tensor) -> None:
        try:
            operation([tensor], self._other, 0).wait()
        except RuntimeError as error:
            raise ConnectionResetError(f"gloo: {error}") from error

    def close(self) -> None:
        """End gloo's side of it."""
        self._group = None


MESSAGE_BYTES_MAX = 64 << 20
"""No frame is longer; a longer message is cut, and gloo ends the pair."""
