"""The same workload through the reference and through a released engine, in one run: hand-offs a second of both, and their ratio.

    python benchmarks/engines.py [--release V] [--mooncake V] [--requests N] [--rounds N] [--json FILE]

Each round runs both one after the other, in processes of their own, so that a drift of the machine hits both. The rate is that of the load:
starting, importing and checking are not in it. Both get rows and pages of the same sizes, the same pace of the decode loop, and `engine.transfer_nice=0`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from harness.releases.cells import Cell, Runner
from harness.releases.fetch import fetch

SAME = ("--set", "engine.hidden=4096", "--set", "engine.transfer_nice=0", "--set", "limits.min_window=0")


def cells(release: str, mooncake: str, requests: int) -> list[Cell]:
    common = ("--requests", str(requests), *SAME)
    transport = f"mooncake=={mooncake}"
    return [
        Cell("reference", "tcp", "", ("--guards", "hardened", "--transport", "tcp", *common)),
        Cell(release, "mooncake", mooncake, ("--engine", f"sglang=={release}", "--transport", transport, *common)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="0.5.13")
    parser.add_argument("--mooncake", default="0.3.10.post2")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ours, theirs = cells(options.release, options.mooncake, options.requests)
    fetch([theirs], lambda text: print(text, file=sys.stderr))
    rates: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the first round")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for cell in (ours, theirs):
                result = Runner(Path(folder)).run(cell)
                if "rate_per_s" not in result:
                    sys.exit(f"{cell.name}: {result['verdict']}: {result['error']}")
                rates[cell.name].append(result["rate_per_s"])
                print(
                    f"round {number + 1}: {cell.name}: {result['rate_per_s']:.0f} /s, {result['verdict']}", flush=True
                )
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    for name, found in rates.items():
        print(f"{name}: median {statistics.median(found):.0f} /s ({min(found):.0f} to {max(found):.0f})")
    print(f"the reference is {statistics.median(ratios):.1f} times as fast (median of {len(ratios)} rounds)")
    if options.json:
        options.json.write_text(json.dumps({"rates_per_s": rates, "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
