"""`python -m prefill_stub`."""

import sys
from typing import Any

from harness.history.event import Role
from harness.node.entry import run


def _make(*arguments: Any, **options: Any) -> Any:
    from prefill_stub.hosted import make  # noqa: PLC0415  torch comes after the process has its title

    return make(*arguments, **options)


if __name__ == "__main__":
    sys.exit(run("prefill_stub", Role.PREFILL, _make, "Prefill stub of the prefill/decode hand-off."))
