"""Messages of the control plane and their codec: two ZMQ frames, an envelope and a typed body.

The envelope is 4 bytes of magic and the 8-byte tag of the run, so that a message of another run, or of no run, is foreign and never
reaches an engine. The body is msgpack of one tagged struct; AuxData has the raw row in a third frame.
Anything else raises `BadMessage`, which the shell counts and drops.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

MAGIC = b"PDH1"
ENVELOPE = struct.Struct("<4sQ")
BODY_BYTES_MAX = 1 << 20
RAW_BYTES_MAX = 64 << 20

U64 = Annotated[int, Meta(ge=0)]
"""msgpack itself bounds integers to 64 bits."""
I32 = Annotated[int, Meta(ge=0, lt=1 << 31)]
U16 = Annotated[int, Meta(ge=0, lt=1 << 16)]
RoleId = Annotated[int, Meta(ge=0, le=3)]
RoomId = Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
AnyRoom = int
"""What a client calls a room: anything that msgpack carries. The engine refuses what is none, with an answer."""


class BadMessage(Exception):
    """Frames that are not a message of this run."""


class Request(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Driver to prefill and decode: one hand-off. `wants` is a mask of `Wants`, `index` counts from 0."""

    room: AnyRoom
    attempt: I32
    wants: I32
    index: U64
    prefill: I32
    decode: I32


class Session(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Decode to prefill, before its first room: where its memory is. SGLang sends this as room `None`."""

    decode: I32
    incarnation: I32
    descriptor: Annotated[bytes, Meta(max_length=4096)]
    slots: I32
    pages: I32


class SessionAck(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Prefill to decode: the session is open, or why it is not."""

    prefill: I32
    error: Annotated[str, Meta(max_length=500)] = ""


class RoomExchange(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Decode to prefill: where the data of `room` shall go."""

    room: RoomId
    attempt: I32
    decode: I32
    slot: I32
    tenure: I32
    pages: Annotated[list[I32], Meta(max_length=65536)]
    required_dst_info_num: I32 = 1
    prefix_len: I32 = 0


class Status(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Prefill to decode. `status` as SGLang's KVPoll: 0 Failed, 4 Success. `drained`: the transport called the writes done."""

    room: RoomId
    status: Annotated[int, Meta(ge=0, le=4)]
    rank: I32
    drained: bool


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Prefill to decode: no write of this room and tenure is outstanding, and none will come (also the answer to Abort)."""

    room: RoomId
    tenure: I32
    rank: I32 = 0
    """Index of the prefill process that says so."""


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Decode to prefill: the room is gone. `tenure` 0: it never had a slot. The answer is `Drained`; an abort may be repeated."""

    room: RoomId
    tenure: I32
    decode: I32


class AuxData(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Prefill to decode with planes = shared: the row itself, raw in the next frame, field after field."""

    room: RoomId
    slot: I32
    tenure: I32


class Result(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Decode to driver: how the hand-off ended. `reason` 0 is a commit, else `Reason`."""

    room: AnyRoom
    index: U64
    reason: U16
    token: U64


class Register(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Node to registry: I am here. `role` is a `Role`; `inbox` a ZMQ address that peers can reach."""

    role: RoleId
    index: I32
    incarnation: I32
    pid: I32
    inbox: Annotated[str, Meta(max_length=500)]


class Topology(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Registry to everyone, at each change. `incarnation` is the registry's own: one that was started again knows only who has registered since."""

    nodes: Annotated[list[Register], Meta(max_length=4096)]
    incarnation: I32 = 1


class Configure(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Driver to node: build an engine for this run. `settings` is the JSON of a `NodeSettings`."""

    settings: Annotated[bytes, Meta(max_length=65536)]


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Node to driver: configured, or why not."""

    role: RoleId
    index: I32
    error: Annotated[str, Meta(max_length=2000)] = ""


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Sign of life to every peer."""

    role: RoleId
    index: I32
    incarnation: I32


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Driver to nodes: that process has ended; do not wait for its heartbeat to stop."""

    role: RoleId
    index: I32
    incarnation: I32


class CensusRequest(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Driver to node."""

    serial: I32


class Census(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Node to driver: what it holds. Keys are `Resource` numbers, values (held or count, free, size)."""

    role: RoleId
    index: I32
    serial: I32
    counts: Annotated[dict[int, tuple[int, int, int]], Meta(max_length=64)]


class Finish(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Driver to node: the run is over; close its history and forget it. `leave`: end the process as well."""

    leave: bool


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Node to driver: the history is closed."""

    role: RoleId
    index: I32


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Driver to prefill and decode: the client gave the request up."""

    room: AnyRoom


class Arm(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Driver to node: begin with the faults of its settings, or stop (what was held back then comes within its bound)."""

    armed: bool


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Anybody to a node or the registry: who are you? The answer goes to the ZMQ address `reply_to`, once."""

    reply_to: Annotated[str, Meta(max_length=500)]


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Answer to Ping. `registered`: the registry has confirmed this node; `peers`: the (role, index) of all that it knows."""

    role: RoleId
    index: I32
    incarnation: I32
    registered: bool
    peers: Annotated[list[tuple[RoleId, I32]], Meta(max_length=4096)]


class Claim(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """A node that has no index yet to the registry: give me one. The same `token` gets the same index again."""

    role: RoleId
    token: U64
    reply_to: Annotated[str, Meta(max_length=500)]


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Answer to Claim: the lowest index of its role that nobody has, kept for the node until it registers."""

    token: U64
    index: I32


class Rendezvous(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Prefill to decode, in answer to a Session: where a hosted engine's own bootstrap server listens, `host:port`.

    `meeting`: what a reference decode must know of a hosted prefill beside that.
    """

    prefill: I32
    address: Annotated[str, Meta(max_length=500)]
    meeting: Annotated[bytes, Meta(max_length=4096)] = b""


Message = (
    Request | Session | SessionAck | RoomExchange | Status | Drained | Abort | AuxData | Result | Register | Topology
    | Configure | Ready | Beat | Gone | CensusRequest | Census | Finish | Finished | Cancel | Arm | Ping | Pong | Claim
    | Claimed | Rendezvous
)  # fmt: skip

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Message).decode


def envelope(run_tag: int) -> bytes:
    """First frame of every message of this run."""
    return ENVELOPE.pack(MAGIC, run_tag)


def encode(message: Message) -> bytes:
    """Second frame."""
    return _ENCODE(message)


def decode(frames: Sequence[bytes], expected_envelope: bytes) -> tuple[Message, bytes]:
    """The message and, for AuxData, its raw row; raises BadMessage for anything that is not exactly that."""
    if len(frames) < 2 or frames[0] != expected_envelope:
        raise BadMessage("foreign or truncated frames")
    if len(frames[1]) > BODY_BYTES_MAX:
        raise BadMessage(f"body of {len(frames[1])} bytes")
    try:
        message = _DECODE(frames[1])
    except (msgspec.MsgspecError, RecursionError) as error:  # nested too deeply to be a message
        raise BadMessage(str(error)) from error
    raw = frames[2:]
    if len(raw) != (1 if isinstance(message, AuxData) else 0):
        raise BadMessage(f"{len(frames)} frames for {type(message).__name__}")
    return message, raw[0] if raw else b""
