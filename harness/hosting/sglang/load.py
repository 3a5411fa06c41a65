"""Loads one release of SGLang into this process, unmodified, on a machine without a GPU."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from harness.errors import HarnessError
from harness.hosting import stubs
from harness.hosting.sglang.answers import LOOPBACK, Answers, replace_lookups

REQUIRED = (
    "torch", "numpy", "zmq", "msgspec", "aiohttp", "requests", "dill", "packaging", "regex", "pydantic", "mooncake",
    "nixl",
)  # fmt: skip
"""Packages that must be real: the hosted code works with them."""
ENVIRONMENT = {
    "SGLANG_HOST_IP": LOOPBACK, "HOST_IP": LOOPBACK, "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1", "MC_FORCE_TCP": "1", "MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2",
}  # fmt: skip
_PACKAGE = "sglang.srt.disaggregation"
SHARED_ENGINE = "sglang.srt.distributed.device_communicators.mooncake_transfer_engine"
"""Where releases from 0.5.9 keep the Mooncake engine that managers of one process share."""
_LOOKED_UP_IN = (SHARED_ENGINE, "sglang.srt.mem_cache.common")
BACKENDS = {"mooncake": "Mooncake", "nixl": "Nixl"}
"""Transfer backends that can be hosted, and how the names of their classes begin."""


@dataclass
class Loaded:
    """The modules of a release that are hosted, and what was done to the process for them."""

    utils: Any
    decode: Any
    base: Any
    backend: Any
    backend_prefix: str
    answers: Answers
    group: Any
    replaced: list[str]
    """Configuration look-ups that were replaced, as `module.name`."""
    absent: dict[str, str]
    """Packages that are not installed and were answered for, with the module that asked first."""

    def find(self, name: str) -> Any:
        """Class `name` of the transfer backend, for example `KVManager`."""
        return getattr(self.backend, self.backend_prefix + name)


_loaded: Loaded | None = None


def load(first: Sequence[str], last: Sequence[str], *, backend: str = "mooncake", **known: Any) -> Loaded:
    """Load the release in `first` (folders put first on `sys.path`); `last` are looked in after the project's own environment.

    `known`: answers to configuration look-ups. One release a process: raises HarnessError at a second call, and when the release
    cannot be imported.
    """
    global _loaded  # noqa: PLW0603  a process can host one release, whoever asks
    if _loaded is not None:
        raise HarnessError("this process already hosts an engine; start a new one")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    sys.path[:0] = [str(path) for path in first]
    sys.path += [str(path) for path in last]
    finder = stubs.install(("sglang",), required=REQUIRED)
    torch.compile = stubs.uncompiled  # type: ignore[assignment]
    if not hasattr(logging.Logger, "warning_once"):
        logging.Logger.warning_once = stubs.warning_once  # type: ignore[attr-defined]
    group = _one_rank()
    answers = Answers(group, disaggregation_transfer_backend=backend, **known)
    _loaded = _import(backend, answers, group, finder)
    return _loaded


def _import(backend: str, answers: Answers, group: Any, finder: stubs.Finder) -> Loaded:
    prefix = BACKENDS[backend]
    try:
        utils, base, conn, decode = (
            importlib.import_module(f"{_PACKAGE}.{name}")
            for name in ("utils", "base.conn", f"{backend}.conn", "decode")
        )
    except Exception as error:  # whatever a release's modules raise while they are imported
        raise HarnessError(f"the release cannot be imported: {type(error).__name__}: {error}") from error
    for name in _LOOKED_UP_IN:
        _import_if_there(name)
    modules = [
        module for name, module in list(sys.modules.items()) if name.startswith(_PACKAGE) or name in _LOOKED_UP_IN
    ]
    replaced = replace_lookups(modules, answers)
    return Loaded(utils, decode, base, conn, prefix, answers, group, replaced, finder.absent)


def _import_if_there(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _one_rank() -> Any:
    """A gloo process group of this process alone: SGLang reduces its polls over one."""
    dist: Any = torch.distributed
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD
