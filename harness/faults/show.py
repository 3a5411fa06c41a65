"""The list of faults for people and programs."""

from __future__ import annotations

from typing import Any

from harness.faults.catalogue import kinds
from harness.faults.spec import WHEN, Param


def _param(name: str, param: Param) -> str:
    default = param.default if isinstance(param.default, str) else f"{param.default:g}"
    allowed = "|".join(param.choices) if param.choices else f"{param.low:g} to {param.high:g}"
    return f"{name}={default}  {param.doc} ({allowed})"


def as_text() -> str:
    """All of them, a few lines each."""
    lines = ["Write one as NAME:PARAMETER=VALUE,... ; values shown are the defaults.", ""]
    for kind in kinds().values():
        lines += [f"{kind.name}: {kind.doc}", f"    at {kind.point}; by {kind.by}; excuses {kind.excuses}"]
        lines += [f"    {_param(name, param)}" for name, param in kind.params.items() if name not in WHEN]
        lines.append("")
    lines += ["Every fault also takes:", *(f"    {_param(name, param)}" for name, param in WHEN.items())]
    return "\n".join(lines)


def as_json() -> dict[str, Any]:
    """An object whose `faults` have name, doc, point, by, excuses and params."""
    return {
        "faults": [
            {
                "name": kind.name,
                "doc": kind.doc,
                "point": kind.point,
                "by": kind.by,
                "excuses": kind.excuses,
                "params": {
                    name: {"default": param.default, "allowed": param.allowed, "doc": param.doc}
                    for name, param in kind.params.items()
                },
            }
            for kind in kinds().values()
        ]
    }
