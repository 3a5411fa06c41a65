"""A history to build, in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .builder import History


@pytest.fixture
def h(tmp_path: Path) -> Iterator[History]:
    """A run that has begun: one decode of two slots, two healthy hand-offs of rooms 1 (slot 1) and 2 (slot 0)."""
    history = History(tmp_path / "history")
    history.start().healthy(1, 2)
    yield history
    history.close()
