"""A small exact judge of one schedule: names what went wrong at the step where it goes wrong, with little state of its own.

It speaks the checker's names (`harness.check.rules.ANOMALIES`) and is held to the checker's verdict by `test_basics`. `EXTRA` are
its own. An anomaly is `"name R"`, R the letter of the request that it befell.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.history.event import TAGGED_FIELDS, Kind, Reason, Verb
from harness.protocol.payload import field_mask

EXTRA = {
    "foreign-token": "the client got the other request's first token as its own",
    "unconsumed-stale": "a committed row holds another's value in a field that the request does not use",
    "write-after-abort": "a write was issued after its request was aborted, and no abort message was under way to stop it",
    "commit-after-failed": "a hand-off whose status had been Failed was committed",
}
"""Anomalies of the exploration alone."""

WRONG_DATA = {"misdelivery", "torn", "foreign-kv", "foreign-token", "stale-field", "changed-after-commit"}
"""Anomalies of a request that was given what is not its own."""

LETTERS = {10: "A", 11: "B"}
_FIELDS = range(len(TAGGED_FIELDS))
_U32 = 0xFFFFFFFF
Tags = tuple[int, ...]


class Judge:
    """State is `vars()`; what happened since the last `take` is in `fresh`. One decode slot."""

    def __init__(self, *, clean_slot: bool, drained_release: bool) -> None:
        """Promises as in `Expectations`."""
        self.clean_slot, self.drained_release = clean_slot, drained_release
        self.fresh: list[str] = []
        self.made: dict[int, tuple[int, Tags, int]] = {}
        self.placeholders: dict[int, tuple[int, Tags]] = {}
        self.tokens: dict[int, int] = {}
        self.holder: tuple[int, int] | None = None
        self.freed: list[int] = []
        self.idle: list[int] = []
        self.found: dict[int, int] = {}
        self.failed: list[int] = []
        self.aborted: list[int] = []
        self.committed: list[int] = []
        self.wrong: list[int] = []
        self.kept: dict[int, Tags] = {}
        self.ended: list[int] = []
        self.given_up: list[int] = []

    def take(self) -> frozenset[str]:
        """Anomalies since the last call."""
        fresh, self.fresh = frozenset(self.fresh), []
        return fresh

    def say(self, name: str, room: int) -> None:
        """Note one anomaly."""
        self.fresh.append(f"{name} {LETTERS[room]}")

    # What the cores record --------------------------------------------------------------------------------------

    def event(self, verb: int, room: int, tenure: int, code: int, value: int, b: int) -> None:
        """One event of any stream, in the order of the schedule."""
        if verb == Verb.SENT:
            if b:  # a stage before the last does not know it
                self.tokens[room] = b
        elif verb == Verb.ALLOC:
            self._alloc(room, tenure, value)
        elif verb == Verb.FREE:
            self._free(room, tenure)
        elif verb == Verb.LANDED:
            self._landed(room, tenure)
        elif verb == Verb.ABORT:
            self._abort(room, code, value)
        elif verb == Verb.STATUS and code == 0 and room not in self.failed:
            self.failed.append(room)

    def _alloc(self, room: int, tenure: int, word: int) -> None:
        if self.holder is not None:
            self.say("double-alloc", room)
        if self.clean_slot and word:
            self.say("dirty-slot", room)
        for author in self.idle:
            if word == author:
                self.say("late-write", author)
        self.idle = []
        self.found[room] = word
        self.holder = (room, tenure)

    def _free(self, room: int, tenure: int) -> None:
        if self.holder == (room, tenure):
            self.holder = None
            self.freed.append(room)
            self.found.pop(room)
        else:
            self.say("double-free", room)

    def _landed(self, room: int, tenure: int) -> None:
        if room not in self.freed or self.holder == (room, tenure):
            return
        if self.holder is not None:
            self.say("foreign-write", room)
        elif self.drained_release:
            self.say("late-write", room)
        elif room not in self.idle:
            self.idle.append(room)

    def _abort(self, room: int, reason: int, word: int) -> None:
        self.aborted.append(room)
        if reason == Reason.MISMATCH:
            self.say("false-abort" if word == self.found.get(room) else "foreign-abort", room)
        elif reason == Reason.TIMEOUT:
            self.say("hang", room)
        elif room not in self.given_up or reason not in {Reason.CANCELLED, Reason.PREFILL_FAILED}:
            self.say("abort", room)

    def row(self, verb: int, room: int, wants: int, code: int, flags: int, tags: Sequence[int]) -> None:
        """One row event; `wants` is what the request asked for."""
        if verb == Verb.MADE:
            self.made[room] = (code, tuple(tags), flags)
        elif verb == Verb.PLACEHOLDER:
            self.placeholders[room] = (code, tuple(tags))
        elif verb == Verb.COMMIT:
            self._commit(room, wants, code, flags, tuple(tags))
        elif any(code >> f & 1 and tags[f] != self.kept[room][f] for f in _FIELDS):
            self.say("changed-after-commit", room)

    def _commit(self, room: int, wants: int, consumed: int, kv: int, tags: Tags) -> None:
        if room in self.committed:
            self.say("duplicate", room)
        if room in self.failed:
            self.say("commit-after-failed", room)
        self.committed.append(room)
        self.kept[room] = tags
        if room not in self.made:
            self.say("phantom", room)
            return
        used, made, made_kv = self.made[room]
        assert used == field_mask(wants)
        differs = [f for f in _FIELDS if tags[f] != made[f]]
        if kv != made_kv:
            self.say("foreign-kv", room)
        if any(consumed >> f & 1 and not used >> f & 1 for f in differs):
            self.say("stale-field", room)
        if any(not consumed >> f & 1 for f in differs):
            self.say("unconsumed-stale", room)
        wrong = [f for f in differs if consumed & used & 1 << f]
        own = any(consumed & used & 1 << f and f not in differs for f in _FIELDS)
        if wrong:
            self.wrong.append(room)
            makers = {self._maker(room, f, tags[f]) for f in wrong}
            self.say("torn" if own or len(makers) > 1 else "misdelivery", room)

    def _maker(self, room: int, field: int, tag: int) -> int:
        """Room of the other request that made `tag` for a field that it uses; 0 for nobody."""
        for other, (mask, tags, _) in self.made.items():
            if other != room and mask >> field & 1 and tags[field] == tag:
                return other
        for other, (mask, tags) in self.placeholders.items():
            if mask >> field & 1 and tags[field] == tag:
                return other
        return 0

    # What the client is told ------------------------------------------------------------------------------------

    def result(self, room: int, reason: int, token: int) -> Kind:
        """One terminal answer; returns its kind."""
        kind = Kind.FAIL if reason else Kind.OK
        if room in self.ended:
            self.say("duplicate", room)
        self.ended.append(room)
        if kind is Kind.OK:
            if room not in self.committed:
                self.say("outcome-mismatch", room)
            if room not in self.wrong and token != self.tokens.get(room):
                self.say("wrong-token", room)
            if token in [made for other, made in self.tokens.items() if other != room]:
                self.say("foreign-token", room)
        elif room in self.committed:
            self.say("outcome-mismatch", room)
        return kind

    def rest(self, rooms: Sequence[int]) -> None:
        """Nothing can happen any more."""
        for room in rooms:
            if room not in self.ended:
                self.say("lost", room)
