"""What sharing nodes saves a suite: tests that share one cluster next to tests that start their own, one after the other in one session.

Run as `python benchmarks/plugin.py [--tests N] [--requests N]`. The shared cluster's start and end are counted; exit 1 if sharing costs a
third or more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = """
import pytest

@pytest.mark.parametrize("number", range({tests}))
@pytest.mark.parametrize("how", ["shared", "own"])
@pytest.mark.handoff(requests={requests}, limits__min_window=0)
def test_it(handoff_cluster, how, number):
    with handoff_cluster(fresh=how == "own") as cluster:
        cluster.stress().assert_valid()
"""
CONFTEST = """
import json, pathlib, time
import pytest

SECONDS = {"shared": 0.0, "own": 0.0}

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.callspec.params["number"])  # one of each in turn: drift hits both

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start = time.perf_counter()
    result = yield
    SECONDS[item.callspec.params["how"]] += time.perf_counter() - start
    return result

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish():
    start = time.perf_counter()
    result = yield
    SECONDS["shared"] += time.perf_counter() - start  # the shared nodes end here
    pathlib.Path("seconds.json").write_text(json.dumps(SECONDS))
    return result
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tests", type=int, default=50, help="of each kind (default %(default)s)")
    options.add_argument(
        "--requests", type=int, default=200, help="hand-offs a test, after 200 to warm up (default %(default)s)"
    )
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_sharing.py").write_text(SUITE.format(tests=given.tests, requests=given.requests))
        (folder / "conftest.py").write_text(CONFTEST)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--handoff-runs", name + "/runs"]
        subprocess.run(command, cwd=folder, check=True)
        seconds = json.loads((folder / "seconds.json").read_text())
    for how, total in seconds.items():
        print(
            f"{how:6}: {given.tests} tests of {given.requests} hand-offs in {total:.1f} s, {total / given.tests:.2f} s a test"
        )
    ratio = seconds["shared"] / seconds["own"]
    print(f"sharing costs {ratio:.2f} of starting")
    return int(ratio >= 1 / 3)


if __name__ == "__main__":
    sys.exit(main())
