"""Names of streams: who of a process recorded, and for which decode rank where its process serves several."""

from __future__ import annotations

MAIN = "main"
_FOR = "@"


def thread_to(thread: str, decode_rank: int) -> str:
    """Name of the stream in which `thread` of a prefill process that serves several decode ranks records what concerns one of them."""
    return f"{thread}{_FOR}{decode_rank}"


def rank_of_thread(name: str) -> int | None:
    """The decode rank that `thread_to` has put into a stream's name (also `mover@1-2`, the second of that name); None for any other."""
    rank = name.partition(_FOR)[2].partition("-")[0]
    return int(rank) if rank.isdecimal() else None


def is_main(name: str) -> bool:
    """Whether the process's main thread records there: all that run on it share the stream."""
    return name.partition(_FOR)[0] == MAIN
