"""A fault: a transfer that stops half-way, and goes on later."""

from collections.abc import Sequence

from harness.plugin import Block, Param, Rule, Write, write_fault


@write_fault("pause-write", "the second half of a write moves later", ms=Param(20, "by up to so many ms", 0, 10_000))
def pause_write(rule: Rule, write: Write, blocks: Sequence[Block]) -> list[tuple[float, Sequence[Block]]]:
    """Stages of one write: seconds to wait, and the blocks that move then."""
    middle = len(blocks) // 2
    pause_s = rule.amount(write.room, rule.fault.f("ms")) * 1e-3
    return [(0.0, blocks[:middle]), (pause_s, blocks[middle:])]
