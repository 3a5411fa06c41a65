"""The frames of SGLang's hand-off between its nodes, as a reference node reads and writes them (facts: releases 0.5.8 to 0.5.23).

Multipart ZMQ messages; numbers are decimal text, pointers packed as native uint64, page indices as int32. Releases have appended frames to
a message over time and read what they find by its length: what is written here is what all of them know, what is read here is the same.

Decode to prefill: `Registration` (once for each prefill), `Destination` (each room), `Abort` (from 0.5.13).
Prefill to decode: `Status`, `AbortAck` (its rank from 0.5.20, the generation from 0.5.23; older releases skip what they do not know).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Frames = list[bytes]
REGISTERS, ABORTS, ACKS = b"None", b"ABORT", b"ABORT_ACK"
PAGES_MAX = 65_536
"""Of one request."""


class BadFrames(ValueError):
    """Frames that are no message of this protocol."""


def _text(value: object) -> bytes:
    return str(value).encode("ascii")


def _pointers(frame: bytes) -> list[int]:
    return list(struct.unpack(f"{len(frame) // 8}Q", frame))


def _packed(pointers: Sequence[int]) -> bytes:
    return struct.pack(f"{len(pointers)}Q", *pointers)


@dataclass(frozen=True)
class Registration:
    """Where a decode rank's memory is: `kv` has a base pointer for each tensor (keys of all layers, then values), `aux` one for each field of the row."""

    endpoint: str
    port: int
    session: str
    kv: list[int]
    aux: list[int]
    kv_item_bytes: int
    rank: int = 0
    ranks: int = 1

    def frames(self) -> Frames:
        """As decode sends it; no state (Mamba and the like) is registered."""
        return [
            REGISTERS, _text(self.endpoint), _text(self.port), _text(self.session), _packed(self.kv),
            _packed(self.aux), b"", _text(self.rank), _text(self.ranks), _text(self.kv_item_bytes), b"", b"",
        ]  # fmt: skip

    @classmethod
    def of(cls, frames: Frames) -> Registration:
        """Read it; raises ValueError, struct.error."""
        _, endpoint, port, session, kv, aux, _, rank, ranks, item = frames[:10]
        return cls(
            endpoint.decode("ascii"), int(port), session.decode("ascii"), _pointers(kv), _pointers(aux), int(item),
            int(rank), int(ranks),
        )  # fmt: skip


@dataclass(frozen=True)
class Destination:
    """Where the data of `room` shall go. `needed`: how many decode ranks tell one prefill rank."""

    room: int
    endpoint: str
    port: int
    session: str
    pages: list[int]
    slot: int
    needed: int = 1
    prefix: int = 0

    def frames(self) -> Frames:
        """As decode sends it."""
        return [
            _text(self.room), _text(self.endpoint), _text(self.port), _text(self.session),
            np.asarray(self.pages, np.int32).tobytes(), _text(self.slot), b"", _text(self.needed), _text(self.prefix),
        ]  # fmt: skip

    @classmethod
    def of(cls, frames: Frames) -> Destination:
        """Read it; raises ValueError, struct.error."""
        room, endpoint, port, session, pages, slot, _, needed = frames[:8]
        if len(pages) > 4 * PAGES_MAX:
            raise BadFrames(f"{len(pages) // 4} pages")
        prefix = frames[8] if len(frames) > 8 else b""  # from 0.5.12
        return cls(
            int(room), endpoint.decode("ascii"), int(port), session.decode("ascii"),
            np.frombuffer(pages, np.int32).tolist(), int(slot), int(needed), int(prefix or 0),
        )  # fmt: skip


@dataclass(frozen=True)
class Abort:
    """Decode gave a room up, and wants to hear at `endpoint`:`port` that nothing is written for it any more. `generation`: from 0.5.23."""

    room: int
    endpoint: str = ""
    port: int = 0
    generation: int | None = None

    def frames(self) -> Frames:
        """As decode sends it."""
        back = [_text(self.endpoint), _text(self.port)] if self.port else []
        return [ABORTS, _text(self.room), *back, *([] if self.generation is None else [_text(self.generation)])]

    @classmethod
    def of(cls, frames: Frames) -> Abort:
        """Read it; raises ValueError, struct.error."""
        _, room, *back = frames
        endpoint, port = (back[0].decode("ascii"), int(back[1])) if len(back) > 1 else ("", 0)
        return cls(int(room), endpoint, port, int(back[2]) if len(back) > 2 else None)


@dataclass(frozen=True)
class Status:
    """How the transfer of `room` ended at prefill rank `rank`: 0 Failed, 4 Success."""

    room: int
    status: int
    rank: int = 0

    def frames(self) -> Frames:
        """As prefill sends it."""
        return [_text(self.room), _text(self.status), _text(self.rank)]

    @classmethod
    def of(cls, frames: Frames) -> Status:
        """Read it; raises ValueError. From 0.5.20 a reason may follow."""
        room, status, rank = frames[:3]
        return cls(int(room), int(status), int(rank))


@dataclass(frozen=True)
class AbortAck:
    """Prefill rank `rank` writes nothing more for `room`."""

    room: int
    rank: int = 0
    generation: int | None = None

    def frames(self) -> Frames:
        """As prefill sends it."""
        last = [] if self.generation is None else [_text(self.generation)]
        return [ACKS, _text(self.room), _text(self.rank), *last]

    @classmethod
    def of(cls, frames: Frames) -> AbortAck:
        """Read it; raises ValueError, struct.error."""
        _, room, *rest = frames
        numbers = [int(part) for part in rest]
        return cls(int(room), *numbers[:2])


def to_prefill(frames: Frames) -> Registration | Destination | Abort:
    """What decode says to prefill; raises BadFrames for anything else."""
    with _explained():
        if frames[0] == REGISTERS:
            return Registration.of(frames)
        return Abort.of(frames) if frames[0] == ABORTS else Destination.of(frames)


def to_decode(frames: Frames) -> Status | AbortAck:
    """What prefill says to decode; raises BadFrames for anything else."""
    with _explained():
        return AbortAck.of(frames) if frames[0] == ACKS else Status.of(frames)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (ValueError, IndexError, struct.error) as error:
        raise BadFrames(str(error)) from error
