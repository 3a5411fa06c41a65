"""Both ends of the gloo transport."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading

from harness.transport.engine import CLOSE_TIMEOUT_S, Wake
from harness.transport.gloo_pair import RECEIVER, SENDER, Pair
from harness.transport.tcp_channel import SEND_BACKLOG_MAX, Pipe, TcpChannel, connect, read_answers
from harness.transport.tcp_frame import HEAD
from harness.transport.tcp_target import Receiver, TcpTarget


class GlooPipe:
    """One pair, and the thread that sends on it: frames wait in a bounded queue."""

    def __init__(self, where: dict[str, object], *, ack: bool) -> None:
        """Connect, show the token and meet; raises OSError."""
        self.socket = connect(where)
        self.backlog_bytes = 0
        self._ack = ack
        self._answers = bytearray()
        self._sent: collections.deque[tuple[int, int]] = collections.deque()
        self._frames: collections.deque[bytearray | None] = collections.deque()
        self._ready = threading.Semaphore(0)
        self._error: OSError | None = None
        self._wake = Wake()
        try:
            self._pair = Pair(self.socket, SENDER, self.socket.getsockname()[0])
        except OSError:
            self.socket.close()
            self._wake.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="gloo", daemon=True)
        self._thread.start()

    def send(self, parts: list[bytes | memoryview]) -> None:
        """Queue one frame; raises OSError when the peer is gone or takes nothing any more."""
        self.flush()
        frame = bytearray().join(parts)
        if self.backlog_bytes + len(frame) > SEND_BACKLOG_MAX:
            raise BrokenPipeError(f"{self.backlog_bytes} bytes wait for a peer that does not read")
        self.backlog_bytes += len(frame)
        self._frames.append(frame)
        self._ready.release()

    def flush(self) -> None:
        """Only says what the thread met: raises its OSError."""
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        with contextlib.closing(self._pair):
            while self._ready.acquire() and (frame := self._frames.popleft()) is not None:
                ticket = HEAD.unpack_from(frame)[-1]
                try:
                    self._pair.send(frame)
                except OSError as error:
                    self._error = error
                    self._wake.signal()
                    return
                self._sent.append((ticket, len(frame)))
                self._wake.signal()

    def answers(self) -> list[tuple[int, int]]:
        """(ticket, applied): frames that were sent, or with `ack` those that were answered; raises OSError when the peer is gone."""
        self._wake.clear()
        sent = []
        while self._sent:
            ticket, size = self._sent.popleft()
            self.backlog_bytes -= size
            sent.append((ticket, 1))
        self.flush()
        answered = read_answers(self.socket, self._answers)  # also says that the peer is gone
        return answered if self._ack else sent

    def descriptors(self) -> list[int]:
        """What makes `answers` worth calling."""
        return [self.socket.fileno(), self._wake.fileno()]

    def close(self) -> None:
        """End the thread; a send that does not return is left to end by itself."""
        self._frames.append(None)
        self._ready.release()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(CLOSE_TIMEOUT_S)
        self.socket.close()
        self._wake.close()


class GlooChannel(TcpChannel):
    """Prefill's end: one pair for each of `settings.connections`."""

    tells_later = True

    def _pipe(self, where: dict[str, object]) -> Pipe:
        return GlooPipe(where, ack=self._ack)

    @property
    def busy(self) -> bool:
        """The pipes' threads move what is queued."""
        return False


class GlooTarget(TcpTarget):
    """Decode's end: what a connection carries after its hello is gloo's."""

    def _serve(self, connection: socket.socket) -> None:
        try:
            pair = Pair(connection, RECEIVER, self.host)
        except OSError:
            self.bad_frames += not self.closing.is_set()
            return
        with contextlib.closing(pair), contextlib.closing(self.recorder("recv")) as record:
            Receiver(self, pair, record).serve()
