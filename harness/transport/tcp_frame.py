"""Frames of the tcp transport's data connections (little endian)."""

from __future__ import annotations

import struct

MAGIC = 0x50444854
HELLO = struct.Struct("<I16s")
HEAD = struct.Struct("<IIQIIIII")
"""magic, bytes of the whole frame, room, slot, tenure, blocks, flags, ticket."""
ENTRY = struct.Struct("<QII")
"""offset, bytes, bit."""
ACK = struct.Struct("<II")
"""ticket, 1 applied or 0 refused."""
WANT_ACK, MORE = 1, 2
WRITER_SHIFT = 8
"""The flags' upper bits: which writer of the slot sent the frame."""
FRAME_BYTES_MAX = 64 << 20
FRAME_BLOCKS_MAX = 1000
"""Below the parts that one sendmsg takes (IOV_MAX, 1024 on Linux); more blocks go in several frames."""
CONNECT_TIMEOUT_S = 5.0
