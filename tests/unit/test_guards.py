"""Guards: the presets as the table of releases says, and the way to edit them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EXIT_USAGE, FieldError
from harness.protocol import guards

ALL = set(guards.Guards.__struct_fields__) - {"own"}
ON = {
    "sglang-0.5.8": {"requested_fields_only", "refuse_duplicate"},
    "sglang-0.5.9": {"requested_fields_only", "refuse_duplicate", "validate_room"},
    "sglang-0.5.12": {"requested_fields_only", "refuse_duplicate", "validate_room", "copy_row"},
    "sglang-0.5.13": {"requested_fields_only", "refuse_duplicate", "validate_room", "copy_row", "clear_on_free", "notify_abort", "notify_failed"},
    "sglang-0.5.20": {
        "requested_fields_only", "refuse_duplicate", "validate_room", "copy_row", "clear_on_free", "notify_abort", "notify_failed",
        "drain_on_abort", "terminal_failed",
    },
    "hardened": ALL,
}  # fmt: skip
"""Up to 0.5.8 no room in the row; 0.5.9 room checked; views up to 0.5.10, clones from 0.5.12; 0.5.13 room cleared on free and ABORT sent;
0.5.20 deferred release and Failed terminal."""
for (
    _name,
    _guards,
) in ON.items():  # of ranks: awaited and agreed on in every release, with the gate before the minimum from 0.5.13 on
    _guards |= {"await_all_ranks", "min_over_ranks", "count_destinations"} | (
        {"gate_before_min"} if _name not in {"sglang-0.5.8", "sglang-0.5.9", "sglang-0.5.12"} else set()
    )


def _on(record: guards.Guards) -> set[str]:
    return {name for name in ALL if getattr(record, name)}


def test_presets_are_what_the_releases_do() -> None:
    assert {name: _on(record) for name, record in guards.PRESETS.items()} == ON


def test_every_guard_says_what_it_prevents_and_the_default_has_all() -> None:
    assert set(guards.PREVENTS) == ALL
    assert all(guards.PREVENTS.values())
    assert _on(guards.parse(guards.DEFAULT)) == ALL
    assert _on(guards.Guards()) == set()


@given(st.sampled_from(sorted(ON)), st.lists(st.tuples(st.sampled_from("+-"), st.sampled_from(sorted(ALL)))))
def test_edits_apply_in_order(preset: str, edits: list[tuple[str, str]]) -> None:
    wanted = set(ON[preset])
    for sign, guard in edits:
        (wanted.add if sign == "+" else wanted.discard)(guard)
    text = ",".join([preset, *(sign + guard for sign, guard in edits)])
    assert _on(guards.parse(text)) == wanted
    assert _on(guards.parse(text.replace(",", " , "))) == wanted
    assert _on(guards.PRESETS[preset]) == ON[preset]


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("sglang-0.5.11", "sglang-0.5.11", "did you mean sglang-0.5.1"),
        ("hardend", "hardend", "did you mean hardened?"),
        ("", "", "one of sglang-0.5.8"),
        ("zzz", "zzz", "one of sglang-0.5.8"),
        ("hardened,copy_row", "copy_row", "+GUARD or -GUARD"),
        ("hardened,+copyrow", "+copyrow", "did you mean copy_row?"),
        ("hardened,-nothing", "-nothing", "one of validate_room"),
        ("hardened,", "", "+GUARD or -GUARD"),
        ("+copy_row", "+copy_row", "one of sglang-0.5.8"),
    ],
)
def test_what_is_not_known_is_one_line_with_value_and_choices(text: str, value: str, says: str) -> None:
    with pytest.raises(FieldError) as caught:
        guards.parse(text)
    message = str(caught.value)
    assert message.startswith(f"guards: {value!r} is not allowed; use ")
    assert says in message
    assert "\n" not in message
    assert caught.value.exit_code == EXIT_USAGE
