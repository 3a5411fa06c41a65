"""The conformance suite on released transfer engines, each in a process of its own: one process can load one release of an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.releases import engines
from harness.transport import conformance, registry

DEADLINE_S = 600
NO_ORDER = {"ordered", "room_first"}
UNSEEN = {"visible_when_reported", "ordered", "room_first", "late_draws", "records"}
RELEASES = {
    "mooncake==0.3.10.post2": UNSEEN,
    "mooncake==0.3.13.post1": NO_ORDER,
    "nixl-tcp==1.5.1": NO_ORDER,
    "nixl-shm==1.5.1": NO_ORDER,
}
"""What is not asked of each, by its own word. A release that begins to promise more must be taken off here."""
_CODE = """
import sys
from harness.transport import conformance, registry
transport = registry.get(*registry.split(sys.argv[1]))
print(*conformance.check(transport, deadline_s=120.0))
"""


@pytest.mark.release
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("release", RELEASES)
def test_a_released_engine(release: str) -> None:
    name, version = registry.split(release)
    engines.ensure(str(registry.engine_of(name)), version)
    done = subprocess.run(
        [sys.executable, "-c", _CODE, release], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(done.stdout.split()) == RELEASES[release]


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_release_does_not_promise_is_stated(release: str) -> None:
    transport = registry.get(*registry.split(release))
    assert {name for name in conformance.PROPERTIES if conformance.lacking(transport, name)} == RELEASES[release]


def test_what_needs_no_release_promises_everything() -> None:
    for name in ("shm", "tcp", "gloo"):
        assert not any(conformance.lacking(registry.get(name), prop) for prop in conformance.PROPERTIES)
