"""Ranks of an instance: who is who, who writes to whom, and which part. Arithmetic only.

A prefill instance has TP x PP ranks, a decode instance has TP ranks; each rank is a process, and processes of a role are numbered through:
`index = instance * ranks + rank`, a prefill rank being `stage * tp + tp_rank`, as SGLang numbers its engine ranks. An instance is
called by the index of its rank 0, its leader; with one rank each, node and leader are the same.

With data parallel (DP) ranks an instance is so many such groups, one behind the other: `index = (instance * dp + dp_rank) * ranks + rank`. A hand-off
concerns one DP rank of each side, which has slots, pages and queues of its own; so everything here but `instance`, `dp_rank` and `of_room` takes a DP rank for an instance.

As in SGLang for models with heads to share out, decode rank d is written by those prefill TP ranks that hold its part, `prefill_tp / decode_tp`
of them in each stage: each writes its share of the bytes of every page, of the layers of its stage. Decode so waits for
`prefill_tp / decode_tp * prefill_pp` reports (SGLang's `required_prefill_response_num`). Where decode has more TP ranks, one prefill rank of
each stage serves `decode_tp / prefill_tp` of them and waits for as many transfer infos (SGLang's `required_dst_info_num`).
"""

from __future__ import annotations

import msgspec

from harness.history.event import Role

_PREFILL, _DECODE = int(Role.PREFILL), int(Role.DECODE)
SHARD_SHIFT, STAGE_SHIFT = 16, 24
"""Where an attempt, as payloads take it, has the decode rank and the stage: what is not the same for all is not the same in content."""


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Parallel sizes of every prefill and every decode instance; of `prefill_tp` and `decode_tp` one is a multiple of the other."""

    prefill_tp: int = 1
    prefill_pp: int = 1
    decode_tp: int = 1
    prefill_dp: int = 1
    decode_dp: int = 1

    def count(self, role: int) -> int:
        """Processes of one instance, or of one DP rank of it."""
        return self.prefill_tp * self.prefill_pp if role == _PREFILL else self.decode_tp if role == _DECODE else 1

    def leader(self, role: int, index: int) -> int:
        """Index of rank 0 of the instance of process `index`."""
        return index - index % self.count(role)

    def members(self, role: int, index: int) -> range:
        """Indices of all ranks of the instance of process `index`."""
        leader = self.leader(role, index)
        return range(leader, leader + self.count(role))

    def dp(self, role: int) -> int:
        """DP ranks of one instance."""
        return self.prefill_dp if role == _PREFILL else self.decode_dp if role == _DECODE else 1

    def instance(self, role: int, index: int) -> int:
        """The instance, counted from 0, that a process belongs to, whatever its DP rank."""
        return index // self.count(role) // self.dp(role)

    def dp_rank(self, role: int, index: int) -> int:
        """DP rank of a process in its instance."""
        return index // self.count(role) % self.dp(role)

    def of_room(self, prefill: int, room: int) -> int:
        """Leader of the DP rank that `room` names, in the instance of a prefill process: the room modulo their number, as SGLang has it where nobody says otherwise."""
        own = self.instance(_PREFILL, prefill) * self.prefill_dp
        return (own + room % self.prefill_dp) * self.count(_PREFILL)

    def stage(self, prefill: int) -> int:
        """Pipeline stage of a prefill process."""
        return prefill % self.count(_PREFILL) // self.prefill_tp

    def is_last(self, prefill: int) -> bool:
        """Whether a prefill process belongs to the last stage, which alone knows the first token."""
        return self.stage(prefill) == self.prefill_pp - 1

    def next_stage(self, prefill: int) -> int:
        """The same TP rank of the next stage."""
        return prefill + self.prefill_tp

    @property
    def group(self) -> int:
        """Prefill ranks of one stage that write to one decode rank."""
        return max(self.prefill_tp // self.decode_tp, 1)

    @property
    def fan_out(self) -> int:
        """Decode ranks that one prefill rank writes to."""
        return max(self.decode_tp // self.prefill_tp, 1)

    def part(self, prefill: int) -> int:
        """Which of its group a prefill process is, from 0: its share of each page, and whether it leads."""
        return prefill % self.prefill_tp % self.group

    def served(self, prefill: int) -> range:
        """Ranks of each decode instance that a prefill process writes to."""
        first = prefill % self.prefill_tp * self.decode_tp // self.prefill_tp
        return range(first, first + self.fan_out)

    def rank(self, role: int, index: int) -> int:
        """Rank of a process in its instance."""
        return index % self.count(role)

    def writers(self, prefill: int, decode: int) -> tuple[int, ...]:
        """Prefill processes of the instance of `prefill` that write to decode process `decode`, by stage."""
        leader, first = self.leader(_PREFILL, prefill), self.rank(_DECODE, decode) * self.prefill_tp // self.decode_tp
        return tuple(
            leader + stage * self.prefill_tp + first + part
            for stage in range(self.prefill_pp)
            for part in range(self.group)
        )

    def entries(self, role: int, index: int) -> range:
        """Ranks of an instance that the router's request goes to: the first stage of prefill, which passes it on; all of decode."""
        leader = self.leader(role, index)
        return range(leader, leader + (self.prefill_tp if role == _PREFILL else self.count(role)))

    def layers(self, prefill: int, layers: int) -> range:
        """Layers of a prefill process's stage, of `layers`."""
        stage = self.stage(prefill)
        return range(layers * stage // self.prefill_pp, layers * (stage + 1) // self.prefill_pp)

    def share(self, prefill: int, page_bytes: int) -> tuple[int, int]:
        """(first byte, end) of a prefill process's share of each page; whole words of 8 bytes."""
        words, part = page_bytes // 8, self.part(prefill)
        return words * part // self.group * 8, words * (part + 1) // self.group * 8

    def names(self, prefill: int, decode: int) -> dict[str, str]:
        """What each of so many prefill and decode instances' processes is, by process name; empty with one rank each."""
        if self.single and self.prefill_dp == self.decode_dp == 1:
            return {}
        prefills = {
            f"prefill-{index}": f"{self._group(_PREFILL, index)}, stage {self.stage(index)}, tp {index % self.prefill_tp}"
            for index in range(prefill * self.prefill_dp * self.count(_PREFILL))
        }
        decodes = {
            f"decode-{index}": f"{self._group(_DECODE, index)}, tp {index % self.decode_tp}"
            for index in range(decode * self.decode_dp * self.decode_tp)
        }
        return prefills | decodes

    def _group(self, role: int, index: int) -> str:
        """Instance and, where there are several, DP rank of a process, in words."""
        which = f", dp {self.dp_rank(role, index)}" if self.dp(role) > 1 else ""
        return f"instance {self.instance(role, index)}{which}"

    @property
    def single(self) -> bool:
        """One rank each: nothing to share out or to agree on."""
        return self.prefill_tp == self.prefill_pp == self.decode_tp == 1


def shard(attempt: int, decode_rank: int) -> int:
    """The attempt as KV pages of a decode rank take it: each rank's pages have a content of their own."""
    return attempt | decode_rank << SHARD_SHIFT


def placeholder(attempt: int, stage: int) -> int:
    """The attempt as the row of a stage before the last takes it: not the request's row, and it says whose it is."""
    return attempt | (stage + 1) << STAGE_SHIFT
