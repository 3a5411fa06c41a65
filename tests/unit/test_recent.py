"""What came last is there, what came before it is not."""

from __future__ import annotations

from collections import OrderedDict

from harness.protocol.recent import keep_last


def test_the_last_ones_are_kept() -> None:
    kept: OrderedDict[int, str] = OrderedDict()
    for key in (1, 2, 3):
        keep_last(kept, key, str(key), 2)
    assert dict(kept) == {2: "2", 3: "3"}


def test_a_key_that_is_put_again_keeps_its_place() -> None:
    kept: OrderedDict[int, str] = OrderedDict()
    for key, value in ((1, "a"), (2, "b"), (1, "c")):
        keep_last(kept, key, value, 2)
    assert kept[1] == "c"
    keep_last(kept, 3, "d", 2)
    assert list(kept) == [2, 3]
