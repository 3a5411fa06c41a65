"""Which processes of an instance a message of the router goes to, which instances can serve, and which DP rank a request goes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.history.event import Role
from harness.node.post import Outbox
from harness.protocol import wire
from harness.protocol.ranks import Ranks

Node = tuple[int, int]
"""(Role, index)."""


ONE_EACH = Ranks()
"""Instances of one process each."""


def deliver(
    ranks: Ranks, peers: Mapping[Node, Outbox], node: Node, message: wire.Message, raw: bytes | None = None
) -> None:
    """Send to a node, or to those ranks of its instance that the message is for; one that is not among `peers` loses it."""
    for index in addressed(ranks, node, message):
        outbox = peers.get((node[0], index))
        if outbox is not None:
            outbox.send(message, raw)


def addressed(ranks: Ranks, node: Node, message: wire.Message) -> Iterable[int]:
    """Indices of the processes that `message` to `node` is for: of an instance those that a request enters at, all, or the one alone."""
    kind = type(message)
    if ranks.single:
        return (node[1],)
    if kind is wire.Request:
        return ranks.entries(*node)
    if kind is wire.Cancel or kind is wire.Arm:
        return ranks.members(*node)
    return (node[1],)


def serving(ranks: Ranks, role: int, there: Iterable[Node]) -> list[Node]:
    """Instances of a role of which every rank is among `there`, by their leaders, in order."""
    indices = {index for found, index in there if found == role}
    leaders = sorted({ranks.leader(role, index) for index in indices})
    return [(role, leader) for leader in leaders if indices.issuperset(ranks.members(role, leader))]


def choose(
    ranks: Ranks, routing: str, leaders: Sequence[Node], index: int, room: int, is_open: Mapping[int, int]
) -> Node:
    """The DP rank that request `index` goes to, of the instance whose turn it is; `leaders`, of one role and not empty, can serve.

    With `routing` "room" prefill's is the one that the room names (another where that is not there), and decode's take turns. With "least-open"
    it is the one with the fewest open hand-offs; `is_open` counts them by leader.
    """
    instances = sorted({ranks.instance(*leader) for leader in leaders})
    own = instances[index % len(instances)]
    there = [leader for leader in leaders if ranks.instance(*leader) == own]
    if routing != "room":
        return min(there, key=lambda leader: is_open.get(leader[1], 0))
    role, first = there[0]
    if role == Role.PREFILL and (named := (role, ranks.of_room(first, room))) in there:
        return named
    return there[index // len(instances) % len(there)]
