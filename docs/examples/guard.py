"""A guard with its mutant: another fix of sgl-project/sglang#27374, which clears a slot when it is taken, not when it is freed."""

from typing import Any

from harness.plugin import bug, guard


@guard("clear_on_take", "false abort on slot reuse: the room word is zeroed when a slot is given out")
def clear_on_take(engine: Any) -> None:
    """Change one decode engine before its run."""
    take = engine.slots.take

    def patched() -> int:
        slot: int = take()
        engine.buffers.clear_room(slot)
        return slot

    engine.slots.take = patched


bug(
    "stale-room", kind="K1", anomaly="false-abort", guards="sglang-0.5.12", transport__name="tcp",
    mechanism="a slot is given out with the room of its last owner", transport__late_fraction=0.2, transport__delay_us=3000.0,
)  # fmt: skip
