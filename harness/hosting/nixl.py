"""NIXL under the name that SGLang imports, `nixl`, from whichever release of it lies in the cache.

The package `nixl` itself is only a name for the build that fits the machine; here it is that of `nixl_cu12`, which works without a GPU.
"""

from __future__ import annotations

import os
import sys
import types
from importlib import import_module
from typing import Any

from harness.releases import engines
from harness.transport.nixl import NAME, PLANES, USER_PLANE

STANDS_IN = "nixl: memory kind VRAM means DRAM, which is all that a machine without a GPU has"
"""For the results: what of the transfer engine is not as the engine asked for it."""


def install(transport: str, version: str) -> None:
    """Be `nixl` in this process, over the UCX transports of `transport`, before an engine imports it; raises HarnessError."""
    os.environ["UCX_TLS"] = USER_PLANE or PLANES[transport]
    real = engines.load(NAME, version)
    api = types.ModuleType("nixl._api")
    vars(api).update({name: value for name, value in vars(real).items() if not name.startswith("__")})
    api.nixl_agent = _in_main_memory(real.nixl_agent)  # type: ignore[attr-defined]
    package = types.ModuleType("nixl")
    package.__path__ = []
    bindings = import_module(f"{real.__name__.rpartition('.')[0]}._bindings")
    package._api, package._bindings = api, bindings  # type: ignore[attr-defined]  # noqa: SLF001  NIXL's own names
    sys.modules |= {"nixl": package, "nixl._api": api, "nixl._bindings": bindings}


def _in_main_memory(kind: Any) -> type:
    """A NIXL agent to which `VRAM`, where SGLang says that its KV lies, is a name for main memory."""

    class MainMemoryAgent(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.nixl_mems["VRAM"] = self.nixl_mems["DRAM"]

    return MainMemoryAgent
