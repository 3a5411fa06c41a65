"""Which faults reach a hand-off of which a part is somebody else's code: only what our own nodes do can be changed."""

from __future__ import annotations

from harness.faults.spec import Fault
from harness.history.event import FaultKind

SENDERS = {
    "request": "driver", "result": "decode", "exchange": "decode", "abort": "decode", "status": "prefill",
    "drained": "prefill",
}  # fmt: skip
"""Who sends each message; the driver is ours always, and so is what a hosted decode tells it."""
_ALWAYS = ("request", "result")
_ENDS = (FaultKind.KILL,)
"""A process hosts an engine for one run: what is started again in its place is another engine."""


def out_of_reach(fault: Fault, side: str) -> str:
    """Why `fault` cannot be done where nodes of `side` (`both`, `prefill`, `decode`) host an engine; empty where it can."""
    theirs = {"prefill", "decode"} if side == "both" else {side}
    kind = fault.kind
    if kind.by in theirs:
        return f"{kind.name} is done inside {kind.by}"
    message = str(fault.values.get("message", ""))
    if message and message not in _ALWAYS and SENDERS[message] in theirs:
        return f"{SENDERS[message]} sends the {message}"
    if kind.number is FaultKind.PARTITION and (fault.s("direction") == "both" or theirs & _senders_of(fault)):
        return "messages of both sides would be lost"
    return _process(fault, theirs) or _state(fault, theirs)


def _process(fault: Fault, theirs: set[str]) -> str:
    """Faults that the driver does to a whole process, or to all that it sends."""
    kind = fault.kind
    if kind.number in _ENDS and (fault.s("node") == "any" or fault.s("node") in theirs):
        return f"{kind.name} needs a {fault.s('node')} node that can be started again"
    if kind.number is FaultKind.LINK:
        return "an engine chooses the addresses that it listens on by itself"
    if kind.number is FaultKind.FILL_QUEUE and theirs - {fault.s("node")}:
        return "the engine has queues of its own to its peers"
    return ""


def _senders_of(fault: Fault) -> set[str]:
    return {"decode"} if fault.s("direction") == "to-prefill" else {"prefill"}


def _state(fault: Fault, theirs: set[str]) -> str:
    """Aborts that strike in a state which only one side knows."""
    state = str(fault.values.get("state", ""))
    knows = {"exchange": "decode", "writing": "prefill", "sent": "prefill", "status": "prefill"}.get(state, "")
    return f"only {knows} knows the state {state!r}" if knows in theirs else ""
