"""What the hosted hand-off is told where SGLang looks something up behind its constructors' backs.

These look-ups, and nothing else of SGLang, are replaced while a release is hosted: they read process-wide configuration that only a
whole server has. They are replaced by name in each module that imported one, never by version.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.hosting.stubs import Absent

LOOPBACK = "127.0.0.1"
_BAGS = (
    "get_parallel", "get_disagg", "get_serving", "get_memory", "get_schedule", "get_device", "get_observability",
    "get_spec", "get_exec", "get_server_args", "get_global_server_args",
)  # fmt: skip
_GROUPS = ("get_pp_group", "get_world_group")
_ATTENTION = ("tp", "cp", "dp")
_KNOWN: Mapping[str, Any] = {
    "host": LOOPBACK, "nnodes": 1, "page_size": 1, "device": "cpu", "kv_cache_dtype": "auto",
    "load_balance_method": "follow_bootstrap_room", "disaggregation_transfer_backend": "mooncake",
    "disaggregation_decode_allocation_policy": "early", "disaggregation_decode_host_receive_threshold": 1.0,
    "max_prefill_tokens": 1024, "tokenizer_worker_num": 1,
}  # fmt: skip


class Answers:
    """Configuration of a server with one rank of everything and nothing optional switched on.

    What is not known by name is answered by the kind of its name: a size is 1, a rank 0, a switch off, anything else None.
    """

    def __init__(self, group: Any, **known: Any) -> None:
        """`group`: process group of this one rank. `known` overrides the answers of this module."""
        self._group = types.SimpleNamespace(
            cpu_group=group, device_group=group, rank_in_group=0, rank=0, world_size=1, ranks=[0]
        )
        self.__dict__.update({**_KNOWN, **known})
        self.asked: set[str] = set()

    def know(self, **known: Any) -> None:
        """Add answers."""
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        """The answer to a name that is not known."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.asked.add(name)
        if name.endswith("_group"):
            return self._group
        if name.endswith("_size") or name.startswith("num_"):
            return 1
        if name.endswith(("_rank", "_offset", "_port")):
            return 0
        return False if name.startswith("enable") or name.endswith("enabled") else None

    def lookups(self) -> dict[str, Callable[..., Any]]:
        """Replacement for each look-up, by the name that SGLang gives it."""
        table: dict[str, Callable[..., Any]] = {name: lambda *_, **__: self for name in _BAGS}
        table |= {name: lambda *_, **__: self._group for name in _GROUPS}
        for name in _ATTENTION:
            table[f"get_attention_{name}_size"] = lambda: 1
            table[f"get_attention_{name}_rank"] = lambda: 0
        table["get_local_ip_auto"] = lambda *_, **__: LOOPBACK
        table["linear_attn_tp_size"] = lambda: 1
        table["max_prefill_buffer_tokens"] = lambda: 1024
        return table


def replace_lookups(modules: Iterable[types.ModuleType], answers: Answers) -> list[str]:
    """Put the replacements where `modules` have a look-up of that name; returns what was replaced, as `module.name`."""
    table = answers.lookups()
    replaced = []
    for module in modules:
        for name in table.keys() & vars(module).keys():
            setattr(module, name, table[name])
            replaced.append(f"{module.__name__}.{name}")
    return sorted(replaced)


def scheduler(answers: Answers, stream: Callable[..., None]) -> types.SimpleNamespace:
    """What the transfer queue asks of its scheduler. `stream(requests, ...)` is told of every request that it aborts."""
    return types.SimpleNamespace(
        server_args=answers,
        spec_algorithm=types.SimpleNamespace(is_none=lambda: False),
        enable_hisparse=False, enable_metrics=False, enable_decode_hicache=False, kv_checksum_computer=None,
        stream_output=stream, output_streamer=types.SimpleNamespace(stream_output=stream),
        metrics_reporter=types.SimpleNamespace(enable_metrics=False), metrics_collector=Absent("metrics"),
        disagg_decode_prealloc_queue=None, batch_result_processor=Absent("batch_result_processor"),
        hisparse_coordinator=None,
    )  # fmt: skip
