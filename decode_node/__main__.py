"""`python -m decode_node`."""

import sys
from typing import Any

from harness.history.event import Role
from harness.node.entry import run


def _make(*arguments: Any, **options: Any) -> Any:
    from decode_node.hosted import make  # noqa: PLC0415  torch comes after the process has its title

    return make(*arguments, **options)


if __name__ == "__main__":
    sys.exit(run("decode_node", Role.DECODE, _make, "Decode node of the prefill/decode hand-off."))
