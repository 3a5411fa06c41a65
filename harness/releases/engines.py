"""Transfer engines by release: which distribution brings one, the release that is used when none is named, and its import.

One release of an engine a process: its libraries cannot be loaded twice.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

from harness.errors import HarnessError
from harness.releases import ibverbs, overlay


@dataclass(frozen=True)
class Engine:
    """One engine. `module` is what a node imports; `environment` is set where the user has not set it."""

    distribution: str
    default: str
    module: str
    verbs: bool = False
    """It needs libibverbs."""
    environment: dict[str, str] = field(default_factory=dict)


ENGINES = {
    "mooncake": Engine(
        "mooncake-transfer-engine-non-cuda",
        "0.3.10.post2",
        "mooncake.engine",
        verbs=True,
        environment={
            "MC_FORCE_TCP": "1",
            "MC_LOG_LEVEL": "ERROR",
            "GLOG_minloglevel": "2",
        },
    ),
    "nixl": Engine(
        "nixl-cu12",
        "1.5.1",
        "nixl_cu12._api",
        environment={"UCX_NET_DEVICES": "lo", "NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "error"},
    ),
}
_loaded: dict[str, str] = {}


def ensure(name: str, version: str) -> Path:
    """Fetch a release of the engine `name`, and what it needs, unless it is there; raises FieldError or HarnessError (one line)."""
    engine = ENGINES[name]
    folder = overlay.install(engine.distribution, version)
    if engine.verbs:
        ibverbs.ensure()
    return folder


def there(name: str, version: str) -> bool:
    """True if that release is in the cache."""
    return overlay.path(ENGINES[name].distribution, version) is not None


def environment(name: str) -> dict[str, str]:
    """The variables that steer the engine, as a process would have them: those of the user, else ours."""
    engine = ENGINES[name]
    prefixes = tuple({variable.partition("_")[0] + "_" for variable in engine.environment})
    return {**engine.environment, **{key: value for key, value in os.environ.items() if key.startswith(prefixes)}}


def load(name: str, version: str) -> ModuleType:
    """Import a release that is in the cache; raises HarnessError (one line) where that is not possible."""
    engine = ENGINES[name]
    if _loaded.setdefault(name, version) != version:
        raise HarnessError(
            f"{name}=={version}: this process has {_loaded[name]} loaded, and one is all that a process can have"
        )
    folder = overlay.path(engine.distribution, version)
    if folder is None:
        raise HarnessError(f"{name}=={version}: not installed; fetch it with: handoff probe {name}=={version}")
    for variable, value in engine.environment.items():
        os.environ.setdefault(variable, value)
    if engine.verbs:
        ibverbs.load()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        return import_module(engine.module)
    except (ImportError, OSError) as error:
        raise HarnessError(f"{name}=={version}: cannot be imported: {error}") from error


def version_of(name: str, version: str) -> str:
    """`version` as it is spelt in the cache, or the default one where it is empty; raises FieldError for one that is none."""
    return overlay.normal("transport.version", version or ENGINES[name].default)
