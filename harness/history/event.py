"""The record format of a history: 80 bytes an event, the same for every process.

A stream is one append-only file, written by one thread of one process. Order is given only within a stream and
from a send to its receive; `t_ns` (CLOCK_MONOTONIC) serves plots, liveness bounds and, on one host, the order of a
write's begin against a free's end.

Byte layout (little endian): t_ns u64, room u64, slot i32, tenure u32, verb u8, kind u8, code u16, flags u32,
value u64, body 36 bytes, seq u32. `body` is read either as a, b, c, d (u64) and e (u32), or, for row events (`ROW_VERBS`),
as nine u32 tags, one for each metadata field other than the room (`TAGGED_FIELDS`), whose word is in `value`.
`seq` counts from 1 in each stream and is stored last, so that a record cut short by SIGKILL reads as absent.
"""

from __future__ import annotations

import enum
import struct

import numpy as np

SCHEMA = 1
RECORD_BYTES = 80
HEADER_BYTES = 4096
MAGIC = b"PDHIST01"

EVENT_STRUCT = struct.Struct("<QQiIBBHIQQQQQII")
ROW_STRUCT = struct.Struct("<QQiIBBHIQ9II")

TAGGED_FIELDS = (
    "output_ids",
    "cached_tokens",
    "output_token_logprobs_val",
    "output_token_logprobs_idx",
    "output_top_logprobs_val",
    "output_top_logprobs_idx",
    "output_topk_p",
    "output_topk_index",
    "output_hidden_states",
)
"""Fields of a metadata row in the order of their tags and of the bits of a field mask; bit 9 is the room."""

LOGPROB_MASK = 0b000111100
"""Fields that only a request with logprobs uses."""
HIDDEN_MASK = 0b111000000
"""Fields that only a request with hidden states (speculative decoding) uses."""
REQUIRED_MASK = 0b000000011
"""Fields that every request uses: output_ids and cached_tokens."""
ROOM_BIT = 1 << 9
KV_BIT = 1 << 16
"""In `flags` of LANDED and REFUSED: the write carried KV blocks."""

DTYPE = np.dtype(
    {
        "names": [
            "t_ns", "room", "slot", "tenure", "verb", "kind", "code", "flags", "value",
            "a", "b", "c", "d", "e", "tags", "seq",
        ],
        "formats": [
            "<u8", "<u8", "<i4", "<u4", "u1", "u1", "<u2", "<u4", "<u8",
            "<u8", "<u8", "<u8", "<u8", "<u4", ("<u4", (9,)), "<u4",
        ],
        "offsets": [0, 8, 16, 20, 24, 25, 26, 28, 32, 40, 48, 56, 64, 72, 40, 76],
        "itemsize": RECORD_BYTES,
    }
)  # fmt: skip


class Kind(enum.IntEnum):
    """As in Jepsen: an operation's begin, its three ends, and mere observations."""

    OBS = 0
    INVOKE = 1
    OK = 2
    FAIL = 3
    """The hand-off definitely did not happen: the request was told so."""
    INFO = 4
    """Nobody can say: the driver stopped waiting or the node died."""


class Verb(enum.IntEnum):
    """What an event says. Fields that are not named are 0 (slot: -1)."""

    HANDOFF = 1
    """Driver. INVOKE: code = Wants, a = intended time ns, b = request index from 0, c = prefill index, d = decode index,
    e = attempt. OK, FAIL or INFO: code = Reason, b = request index, value = first token received."""
    PHASE = 2
    """Driver. code = Phase."""
    RESOURCE = 3
    """Driver, from a node's census. code = Resource, flags = 0 at baseline and 1 at rest after the drain,
    value = role << 32 | node index, a = held or count, b = free, c = size (0 where it has none)."""
    NODE = 4
    """Driver. code = NodeEvent, value = role << 32 | node index, a = exit status + 2**32, b = pid, flags = 1 where the driver
    or a fault had asked for it."""

    ALLOC = 10
    """Decode. A slot's tenure begins. value = room word found in the slot, a = number of pages, c = prefill index."""
    STATUS = 11
    """Decode. Status received from prefill. code = status (0 Failed, 4 Success), flags = prefill rank,
    a = 1 where the sender knew that its writes were visible."""
    POLL = 12
    """Decode. Success known and the row not ready; recorded when the finding changes. code = Finding,
    value = room word found."""
    COMMIT = 13
    """Decode, row event. The row as handed to the request: code = mask of the fields that the request consumes,
    flags = digest of its KV pages (the upper 32 bits, on which every bit of the pages tells), value = room word, tags = one for each field as read."""
    ABORT = 14
    """Decode. The request is failed. code = Reason, value = room word found."""
    FREE = 15
    """Decode. A tenure ended; recorded after the slot was cleared, before it can be allocated again.
    value = room word left in the slot."""
    KV_PAGE = 16
    """Decode, at commit, only for a page that is not this room's. value = room named in the page, code = 1 where the page
    is not whole (mixed or torn), a = layer, b = page index on decode, c = position in the request."""
    USE = 17
    """Decode, row event. A row that was handed out by reference is read again when the request uses it.
    code = mask of the fields read again; other tags are 0."""
    HOLD = 18
    """Decode. The request ended but its slot and pages are held until their writer has drained."""

    MADE = 30
    """Prefill, row event. What this request's row must be: code = mask of fields the request uses, flags = KV digest,
    value = room, tags = one for each field (unused optional fields: that of the cleared field); slot = prefill's own slot."""
    SENT = 31
    """Prefill. Status sent. code = status, flags = 1 where the sender knew that its writes were visible,
    a = time its write was posted, ns."""
    LANDED = 32
    """Whoever moved the bytes. Blocks are in decode's memory. room, slot, tenure = the write's author and target,
    a = begin ns (t_ns is the end), flags = mask of fields | KV_BIT, code = 1 for a part of a write: one
    of its parts has 0, the last one unless several connections carried them;
    b = rank of the writer within its prefill instance."""
    REFUSED = 33
    """Decode's receive thread. A write was not applied. Fields as LANDED; code = Refusal."""
    PLACEHOLDER = 34
    """Prefill, row event. What a pipeline stage before the last sends along as the request's row, though only the last stage knows it. Fields as MADE."""

    FAULT = 40
    """Whoever injects. code = FaultEvent, flags = FaultKind << 16 | number of the fault in the scenario's list, room = the room hit (0 for none),
    value = role << 32 | index of the node hit (0 for none), a = ns by which something was held up, b = index of a probe, c = Loss, or the Reason that a probe was answered."""


ROW_VERBS = frozenset({Verb.COMMIT, Verb.USE, Verb.MADE, Verb.PLACEHOLDER})


class Wants(enum.IntFlag):
    """What a request asks for: decides which optional fields it uses."""

    LOGPROBS = 1
    HIDDEN = 2


class Phase(enum.IntEnum):
    """Marks in the driver's stream."""

    WARMUP = 1
    LOAD = 2
    DRAIN = 3
    REST = 4
    """Every node reported its census; nothing is in flight."""
    INTERRUPTED = 5
    """The user stopped the run; the load ended early."""
    FINISHED = 6
    """Last record of a run that was not cut off."""


class Reason(enum.IntEnum):
    """Why a hand-off ended as it did."""

    NONE = 0
    MISMATCH = 1
    """The row's room was another's: the engine calls the data corrupt."""
    TIMEOUT = 2
    """The engine's own transfer time-out."""
    PEER_LOST = 3
    PREFILL_FAILED = 4
    REJECTED = 5
    """Refused at admission: bad room, duplicate room or full queue."""
    CANCELLED = 6
    """Aborted on purpose by the client."""
    DRIVER_TIMEOUT = 7
    """The driver stopped waiting: nobody ended the request within its bound."""
    NODE_EXIT = 8
    """The driver saw the node's process end."""
    INTERRUPTED = 9
    """The user ended the run with requests still open."""


class Finding(enum.IntEnum):
    """Why a row with a known Success was not committed at this poll, or what was wrong with it when it was."""

    EMPTY = 1
    FOREIGN = 2
    TORN = 3
    KV_MISSING = 4


class Refusal(enum.IntEnum):
    """Why the receive thread did not apply a write."""

    TENURE = 1
    """The slot belongs to another tenure now."""
    BOUNDS = 2
    """A block lies outside the exposed memory."""


class NodeEvent(enum.IntEnum):
    """Life of a node process as the driver saw it."""

    UP = 1
    EXIT = 2
    LOST = 3
    """No sign of life within the heartbeat bound."""
    STALLED = 4
    """The driver itself, which never waits long, was not run for `a` ns: the machine stood still, or all of it went to others."""


class FaultKind(enum.IntEnum):
    """What was injected; `harness.faults.catalogue` says what each does."""

    ABORT = 1
    HOLD_WRITE = 2
    DELAY = 3
    DROP = 4
    DUPLICATE = 5
    REORDER = 6
    FAIL = 7
    CORRUPT = 8
    KILL = 9
    STOP = 10
    SLOW = 11
    PARTITION = 12
    DUPLICATE_ROOM = 13
    BAD_ROOM = 14
    ORPHAN_ROOM = 15
    BURST = 16
    STARVE = 17
    FILL_QUEUE = 18
    LINK = 19


class Loss(enum.IntEnum):
    """What a FAULT HIT took away for good."""

    NONE = 0
    NEEDED = 1
    """Something without which decode cannot end the hand-off well: it has to give up in its own time."""
    CLIENT = 2
    """What the client sends to decode, or is told by it: only the client's own patience ends it."""


class FaultEvent(enum.IntEnum):
    """What a FAULT event says."""

    HIT = 1
    """Something was done to one room, or once to a node."""
    BEGIN = 2
    """A node is hit from here on ..."""
    END = 3
    """... until here, and works again."""
    ANSWERED = 4
    """A probe (a request that must be refused) was answered."""
    SILENT = 5
    """A probe was not answered within its bound."""


class Role(enum.IntEnum):
    """Roles of processes; the `value` of NODE and RESOURCE names one."""

    DRIVER = 0
    PREFILL = 1
    DECODE = 2
    REGISTRY = 3


class Resource(enum.IntEnum):
    """What a census counts."""

    SLOTS = 1
    PAGES = 2
    ROOMS = 3
    """Open rooms, held."""
    THREADS = 4
    DESCRIPTORS = 5
    BAD_MESSAGES = 6
    """Malformed, oversized or foreign messages that were counted and dropped."""
    LATE_MESSAGES = 7
    """Well-formed messages for rooms that are gone."""
    RSS_KIB = 8
    """Peak resident set."""
    POLL_GAP_US = 9
    """Decode: how long what there was to look at waited for a poll, since the warm-up. held = slowest, free = 99.9 %, size = median, µs."""
