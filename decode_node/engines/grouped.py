"""The reference engine as one rank of a decode instance of several: each has its own slots, pages and data, all end a request the same way.

What this rank would do with a request (commit it, fail it and why, or wait) is its vote, and MIN over the votes of all ranks says what is done. With `vote_on_data` a rank votes for a commit after it has checked the data, and commits what it has checked. Without it, as in releases, it votes
on the received status and looks at the row afterwards: then one rank can abort what another commits. Only rank 0 answers the driver.
"""

from __future__ import annotations

from typing import Any

from decode_node.agreement import READY, WAIT, Agreement, ballot, decided
from decode_node.engines.handoff import Handoff
from decode_node.engines.reference import FAILED, ReferenceEngine
from harness.history.event import Reason, Role
from harness.protocol.memory import Words
from harness.protocol.rooms import NO_ROOM

_DRIVER = int(Role.DRIVER)


class _Unanswering(list[Any]):
    """Actions of a rank that does not answer the driver."""

    def append(self, action: Any) -> None:
        if action[0][0] != _DRIVER:
            super().append(action)


class GroupedEngine(ReferenceEngine):
    """See the module. `agreement` is None where `min_over_ranks` is off: every rank then decides for itself, a mutant."""

    def __init__(self, *arguments: Any, agreement: Agreement | None, **options: Any) -> None:
        """Nothing voted."""
        super().__init__(*arguments, **options)
        self._agreement = agreement
        self._votes: dict[int, int] = {}
        """By request index: the order in which requests came is the same on all ranks, their slots need not be."""
        self._balloted: dict[int, Handoff] = {}
        """What the reduction that goes on is about."""
        self._rows: dict[int, tuple[Words, list[int] | None, int]] = {}
        self._words: dict[int, int] = {}
        self._wanting: dict[int, tuple[Handoff, float]] = {}
        """When this rank first wanted to fail what it has not failed yet."""
        self._settled: set[int] = set()
        """Requests whose commit is agreed on, of which this rank still looks at the row."""
        if self._rank:
            self.out = _Unanswering()

    @property
    def awaiting(self) -> bool:
        """While anything is open the other ranks may wait for this one's vote."""
        return super().awaiting or (self._agreement is not None and bool(self.open))

    # Votes ---------------------------------------------------------------------------------------------------------

    def _vote(self, handoff: Handoff, vote: int) -> None:
        """Note what this rank would do; wanting to fail a request once is final."""
        self.ready.pop(handoff.room, None)
        index = handoff.index
        if self._votes.get(index, READY) == READY:
            self._votes[index] = vote

    def _decides_alone(self, handoff: Handoff) -> bool:
        return self._agreement is None or handoff.index in self._settled

    def _try(self, handoff: Handoff) -> None:
        if self._decides_alone(handoff) or self.guards.vote_on_data:
            super()._try(handoff)
        elif handoff.status == FAILED:
            self._fail(handoff, Reason.PREFILL_FAILED)
        elif not self.guards.gate_before_min or self.buffers.room_word(handoff.slot) != NO_ROOM:
            self._vote(handoff, READY)

    def _commit(self, handoff: Handoff, row: Words, sums: list[int] | None, kv_digest: int) -> None:
        if self._decides_alone(handoff):
            self._settled.discard(handoff.index)
            super()._commit(handoff, row, sums, kv_digest)
            return
        self._rows[handoff.index] = (row, sums, kv_digest)
        self._vote(handoff, READY)

    def _fail(self, handoff: Handoff, reason: Reason, word: int = 0) -> None:
        if self._decides_alone(handoff):
            self._settled.discard(handoff.index)
            super()._fail(handoff, reason, word)
            return
        self._words.setdefault(handoff.index, word)
        self._wanting.setdefault(handoff.index, (handoff, self._now))
        self._vote(handoff, int(reason))

    # Decisions -----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> None:
        """As the reference; then take the last reduction's result and begin the next one."""
        super().poll(now)
        agreement = self._agreement
        if agreement is None:
            return
        lowest = agreement.result()
        if lowest is not None:
            for index, vote in decided(lowest).items():
                self._settle(self._balloted[index], vote)
            self._fill()
        self._give_up(now)
        if not agreement.busy:
            self._balloted = {handoff.index: handoff for handoff in self.open.values()}
            agreement.begin(ballot({index: self._votes.get(index, WAIT) for index in self._balloted}))

    def _settle(self, handoff: Handoff, vote: int) -> None:
        """Do what all ranks have agreed on."""
        index, row = handoff.index, self._rows.get(handoff.index)
        word = self._words.get(index, 0)
        self._forget(index)
        if self.open.get(handoff.room) is not handoff:
            return
        self._settled.add(index)
        if vote != READY:
            self._fail(handoff, Reason(vote), word)
        elif row is not None:
            self._commit(handoff, *row)
        else:
            self.ready[handoff.room] = handoff
            self._try(handoff)

    def _forget(self, index: int) -> None:
        for table in (self._votes, self._rows, self._words, self._wanting):
            table.pop(index, None)

    def _give_up(self, now: float) -> None:
        """Fail alone what no other rank has: a room that only this one took, or whose rank has ended it for itself."""
        for index, (handoff, since) in list(self._wanting.items())[:16]:
            if now - since > self.settings.transfer_timeout_s:
                self._settle(handoff, self._votes[index])
