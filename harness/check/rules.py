"""Names and meanings of everything the checker can find."""

from __future__ import annotations

from collections.abc import Mapping

ANOMALIES: Mapping[str, str] = {
    "lost": "a hand-off was begun and nobody ever said how it ended",
    "duplicate": "a hand-off ended twice or its row was committed twice",
    "outcome-mismatch": "the driver was told the opposite of what decode did",
    "misdelivery": "a request was given a row that is another request's",
    "torn": "a request was given a row with fields of more than one author",
    "stale-field": "a request used an optional field that it never asked for and that holds another's value",
    "wrong-token": "the committed row was right and the client still got another first token",
    "phantom": "a row was committed that prefill never made",
    "foreign-kv": "a request was given KV pages that are not the ones made for it",
    "changed-after-commit": "a row handed out by reference changed before the request had used it",
    "false-abort": "a request was aborted because of the room its slot held before it came; its data was merely late",
    "foreign-abort": "a request was aborted because another request's write landed in its slot",
    "unexplained-abort": "a request was aborted as mismatched and nothing recorded explains the room that was read",
    "abort": "a request failed and no fault asked for it",
    "double-alloc": "a slot was given out while a request held it",
    "double-free": "a slot was freed by a request that did not hold it",
    "dirty-slot": "a slot that is promised to be clear held a room when it was given out",
    "foreign-write": "a write began in a slot while another request held it",
    "late-write": "a write began in a slot after its own request had given it back",
    "leak": "at rest a node still held slots, pages, rooms, threads or descriptors",
    "crash": "a node's process ended and nobody had asked for it",
    "hang": "a hand-off did not end within its bound",
    "not-refused": "a request that must be refused was served, or nobody answered it",
}
"""Every anomaly, with its meaning in one line."""

RULES: Mapping[str, tuple[str, ...]] = {
    "delivery": (
        "lost",
        "duplicate",
        "outcome-mismatch",
        "misdelivery",
        "torn",
        "stale-field",
        "wrong-token",
        "phantom",
        "foreign-kv",
        "changed-after-commit",
    ),
    "aborts": ("false-abort", "foreign-abort", "unexplained-abort", "abort"),
    "ownership": ("double-alloc", "double-free", "dirty-slot", "foreign-write", "late-write"),
    "resources": ("leak", "crash"),
    "liveness": ("hang",),
    "faults": ("not-refused",),
}
"""Anomalies by the subject that finds them; the module of that name holds the rule."""

_OF = {
    "requests": (
        "lost",
        "duplicate",
        "outcome-mismatch",
        "false-abort",
        "foreign-abort",
        "unexplained-abort",
        "abort",
        "hang",
        "not-refused",
    ),
    "committed": (
        "misdelivery",
        "torn",
        "stale-field",
        "wrong-token",
        "phantom",
        "foreign-kv",
        "changed-after-commit",
    ),
    "tenures": ("double-alloc", "double-free", "dirty-slot"),
    "writes": ("foreign-write", "late-write"),
    "census lines": ("leak",),
    "node starts": ("crash",),
}
DENOMINATORS: Mapping[str, str] = {name: of for of, names in _OF.items() for name in names}
"""What each anomaly is counted against."""
