"""From a node's settings to a loaded release."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from harness.hosting import nixl
from harness.hosting.integrity import verify
from harness.hosting.mover import Plane, install_as_mooncake
from harness.hosting.sglang.load import Loaded, load
from harness.hosting.sglang.release import Release
from harness.protocol.settings import NodeSettings
from harness.releases import engines as transfer_engines
from harness.transport.nixl import NAME as NIXL

TIMEOUTS = ("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT")
"""SGLang's own bounds on a request, 300 s by default; here the client's bound, so that it gives up what hangs."""
STAND_IN_ENGINE = "mooncake.engine: takes note of registered memory; the harness's own transport brings the bytes there"


def start(settings: NodeSettings, plane: Plane | None = None) -> Release:
    """Load the transfer engine (or `plane` in place of Mooncake's) and the release that `settings` name; raises HarnessError."""
    transport, engine = settings.transport, settings.engine
    if plane is not None:
        install_as_mooncake(plane)
    elif engine.backend == NIXL:
        nixl.install(transport.name, transport.version)
    else:
        transfer_engines.load(engine.backend, transport.version)
    for name in TIMEOUTS:
        os.environ.setdefault(name, str(math.ceil(settings.request_timeout_s)))
    return Release(load(engine.first, engine.last, backend=engine.backend))


def facts(settings: NodeSettings, loaded: Loaded) -> dict[str, Any]:
    """What was loaded, for the run's results: whether it is as released, and what was replaced."""
    finding = verify(Path(settings.engine.first[0]))
    return {
        "engine": settings.engine.name, "files_loaded": finding.checked, "files_changed": finding.differ,
        "files_not_of_a_wheel": len(finding.unlisted), "replaced_lookups": loaded.replaced,
        "absent_packages": sorted(loaded.absent), "asked_for": sorted(loaded.answers.asked),
        "stands_in": stands_in(settings),
    }  # fmt: skip


def stands_in(settings: NodeSettings) -> list[str]:
    """What of the engine's surroundings is not the real thing, beside its configuration."""
    engine = settings.engine
    if engine.side != "both":
        other = "prefill" if engine.side == "decode" else "decode"
        return [STAND_IN_ENGINE, f"{other}: the reference, with the engine's own frames"]
    return [nixl.STANDS_IN] if engine.backend == NIXL else []
