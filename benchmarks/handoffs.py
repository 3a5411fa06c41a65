"""Hand-offs a second, next to the floor in the same run, and what recording and checking cost.

    python benchmarks/handoffs.py [--requests N] [--rounds N] [--memory] [--json FILE]

Each round runs floor, bare (no history, no check) and verified (recorded and checked) one after the other, so that a drift of the
machine hits all of them; the ratios are taken round by round and the median is shown. "Verified" counts the time of the check, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import floor

from harness.live import Quiet
from harness.runfolder import RunFolder, machine, versions
from harness.scenario import load
from harness.stress import drive, expectations, judge


def scenario_of(transport: str, requests: int, guards: str = "hardened"):  # noqa: ANN201
    return load(
        None, {"transport.name": transport, "workload.requests": requests, "guards": guards, "limits.min_window": 0}
    )


def one(runs: Path, transport: str, requests: int, *, record: bool, guards: str = "hardened") -> dict[str, float]:
    scenario = scenario_of(transport, requests, guards)
    folder = RunFolder.create(runs, scenario, expectations(scenario), ["bench"])
    load_ = drive(scenario, folder, Quiet(), record=record)
    seconds = load_.last_end - load_.began
    if not record:
        return {"rate": requests / seconds}
    outcome = judge(folder)
    results = outcome.results
    assert results["verdict"] == "valid", results["verdict"]
    assert results["committed"] == results["requests"]
    for stream in folder.history.glob("*"):
        stream.unlink()
    return {
        "rate": requests / seconds,
        "verified": requests / (seconds + results["check_s"]),
        "check_us": results["check_s"] / requests * 1e6,
        "nodes_rss_mib": max(int(values.get("RSS_KIB", 0)) for values in _resources(results)) / 1024,
        "driver_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _resources(results: dict) -> list[dict]:
    return [
        {name.upper(): (value.get("held") if isinstance(value, dict) else value) for name, value in node.items()}
        for node in results["resources"].values()
    ]


def rates(runs: Path, requests: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    table: dict[str, dict[str, list[float]]] = {}
    for transport in ("shm", "tcp"):
        rows = table[transport] = {"floor": [], "bare": [], "recorded": [], "verified": [], "check_us": []}
        for number in range(rounds):
            rows["floor"].append(floor.run(transport, requests))
            rows["bare"].append(one(runs, transport, requests, record=False)["rate"])
            full = one(runs, transport, requests, record=True)
            rows["recorded"].append(full["rate"])
            rows["verified"].append(full["verified"])
            rows["check_us"].append(full["check_us"])
            print(
                f"{transport} round {number + 1}: "
                + ", ".join(f"{name} {values[-1]:.0f}" for name, values in rows.items())
            )
    return table


def report(table: dict[str, dict[str, list[float]]]) -> None:
    print(f"{'':4} {'floor/s':>9} {'bare/s':>9} {'verified/s':>10} {'of floor':>9} {'recording + check':>18}")
    for transport, rows in table.items():
        of_floor = statistics.median(v / f for v, f in zip(rows["verified"], rows["floor"], strict=True))
        cost = statistics.median(1 - v / b for v, b in zip(rows["verified"], rows["bare"], strict=True))
        middle = {name: statistics.median(values) for name, values in rows.items()}
        print(
            f"{transport:4} {middle['floor']:9.0f} {middle['bare']:9.0f} {middle['verified']:10.0f} {of_floor:9.2f} {cost:17.0%}"
        )


def memory(runs: Path) -> dict[str, dict[str, float]]:
    found = {}
    for requests in (100_000, 1_000_000):
        result = one(runs, "shm", requests, record=True)
        found[str(requests)] = result
        print(
            f"{requests} hand-offs: largest node {result['nodes_rss_mib']:.0f} MiB, driver with checker {result['driver_rss_mib']:.0f} MiB"
        )
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=60_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--memory", action="store_true", help="peak memory at 100,000 and 1,000,000 hand-offs instead")
    options.add_argument("--json", type=Path, help="also write the figures here")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch)
        if given.memory:
            figures: object = memory(runs)
        else:
            figures = rates(runs, given.requests, given.rounds)
            report(figures)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "versions": versions(), "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
