"""How far back the checker remembers, in hand-offs: what keeps its memory flat."""

from __future__ import annotations

LAG = 4_096
"""Hand-offs begun after a hand-off's end until it is judged: what is recorded later does not count."""

WINDOW = 16_384
"""Rows made for requests that began at most so many hand-offs before a reader's end are searched for an author."""
