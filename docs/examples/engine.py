"""An engine: the reference, but it takes a row only at the second poll that sees it whole, in the hope that late bytes are there by then."""

from typing import Any

from harness.plugin import engine


@engine("second-look")
def make(*arguments: Any, **options: Any) -> Any:
    """A decode engine; called in the node, with what `ReferenceEngine` takes. Nodes alone import torch."""
    from decode_node.engines.reference import ReferenceEngine  # noqa: PLC0415

    class SecondLook(ReferenceEngine):
        _seen = frozenset[int]()

        def _commit(self, handoff: Any, *row: Any) -> None:
            if handoff.room in self._seen:
                self._seen -= {handoff.room}
                super()._commit(handoff, *row)
            else:
                self._seen |= {handoff.room}

    return SecondLook(*arguments, **options)
