"""What each guard costs that no release has: CPU time of a hand-off in both cores and the copy, guard on against guard off, in turn.

    python benchmarks/guards.py [--requests N] [--rounds N]

One process, no sockets: the differences are a few microseconds, which the scheduling noise of real processes would hide.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from decode_node.engines.reference import ReferenceEngine
from harness.load import Load
from harness.node.shell import Streams
from harness.protocol import wire
from harness.protocol.guards import PRESETS, PREVENTS
from harness.protocol.layout import Layout
from harness.protocol.memory import Buffers, Memory
from harness.protocol.payload import Payload
from harness.scenario import load, node_settings
from harness.transport import registry
from harness.transport.base import Ownership
from prefill_stub.machine import PrefillMachine

BATCH = 8


class Bench:
    """Both cores of one scenario, joined by a shm channel."""

    def __init__(self, guards: str, scratch: Path) -> None:
        self.scenario = load(None, {"guards": guards, "transport.late_fraction": 0})
        settings = node_settings(self.scenario, scratch, record=False)
        layout = Layout(settings.decode_layout)
        streams = Streams(scratch, "bench", 1, record=False)
        self.memories = [Memory.create("decode", layout.size_bytes), Memory.create("prefill", layout.size_bytes)]
        owners = Ownership(settings.decode_layout.slots, enforce=settings.guards.tenure_on_writes)
        transport = registry.get("shm")
        target = transport.target(settings.transport, self.memories[0], owners, 1, streams)
        self.engine = ReferenceEngine(
            0, settings, Buffers(self.memories[0], layout), Payload(layout), owners, streams("main"), refuses=False
        )
        self.machine = PrefillMachine(0, settings, Buffers(self.memories[1], layout), Payload(layout), streams("main"))
        self.machine.layouts[0] = layout
        self.channel = transport.channel(settings.transport, target.descriptor(), 1, streams)
        self.load = Load(self.scenario)
        self.load.begin(0.0)

    def run(self, requests: int) -> float:
        """Microseconds of CPU time a hand-off."""
        began = time.process_time()
        for _ in range(requests // BATCH):
            self._batch()
        return (time.process_time() - began) / requests * 1e6

    def _batch(self) -> None:
        engine, machine = self.engine, self.machine
        for _ in range(BATCH):
            room, index, wants = self.load.issue(1.0, 1.0)
            request = wire.Request(room, 0, wants, index, 0, 0)
            engine.admit(request, 1.0)
            machine.request(request)
        for _, exchange in _taken(engine.out):
            machine.exchange(exchange)
        for _, write in _taken(machine.out):
            machine.wrote(write.key, self.channel.write(write))
        for _, status in _taken(machine.out):
            engine.deliver(status)
        engine.poll(1.0)
        for _, result in _taken(engine.out):
            assert result.reason == 0
            self.load.finish(result.room, result.reason, 2.0)


def _taken(out: list) -> list:
    taken = out[:]
    out.clear()
    return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=4000)
    options.add_argument("--rounds", type=int, default=9)
    given = options.parse_args()
    newest = PRESETS["sglang-0.5.20"]
    with tempfile.TemporaryDirectory() as scratch:
        base = Bench("hardened", Path(scratch))
        base.run(given.requests)
        print(f"hardened: {statistics.median(base.run(given.requests) for _ in range(given.rounds)):.1f} us a hand-off")
        for name in ("sglang-0.5.20", *(f"hardened,-{guard}" for guard in PREVENTS if not getattr(newest, guard))):
            other = Bench(name, Path(scratch))
            other.run(given.requests)
            pairs = [base.run(given.requests) - other.run(given.requests) for _ in range(given.rounds)]
            print(
                f"over {name}: {statistics.median(pairs):+.1f} us a hand-off ({min(pairs):+.1f} to {max(pairs):+.1f})"
            )


if __name__ == "__main__":
    main()
