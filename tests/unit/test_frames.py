"""Frames of SGLang's hand-off: what is written is read back, and what is none is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.hosting.sglang import frames

rooms = st.integers(1, (1 << 63) - 1)
ports = st.integers(1, 65535)
pointers = st.lists(st.integers(0, (1 << 64) - 1), max_size=20)
hosts = st.sampled_from(["127.0.0.1", "10.0.0.7"])

to_prefill = st.one_of(
    st.builds(frames.Registration, hosts, ports, st.just("127.0.0.1:1"), pointers, pointers, st.integers(1, 1 << 30)),
    st.builds(
        frames.Destination, rooms, hosts, ports, st.just("127.0.0.1:1"),
        st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=50), st.integers(0, 1 << 20),
        st.integers(1, 8), st.integers(0, 100),
    ),
    st.builds(frames.Abort, rooms),
    st.builds(frames.Abort, rooms, hosts, ports, st.one_of(st.none(), st.integers(0, 1 << 31))),
)  # fmt: skip
to_decode = st.one_of(
    st.builds(frames.Status, rooms, st.integers(0, 4), st.integers(0, 63)),
    st.builds(frames.AbortAck, rooms, st.integers(0, 63), st.one_of(st.none(), st.integers(0, 1 << 31))),
)


@given(to_prefill)
def test_what_decode_says_is_read_back(message: frames.Registration | frames.Destination | frames.Abort) -> None:
    assert frames.to_prefill(message.frames()) == message


@given(to_decode)
def test_what_prefill_says_is_read_back(message: frames.Status | frames.AbortAck) -> None:
    assert frames.to_decode(message.frames()) == message


@given(to_prefill)
def test_what_later_releases_append_does_no_harm(message: frames.Registration | frames.Destination) -> None:
    if not isinstance(message, frames.Abort):
        assert frames.to_prefill([*message.frames(), b"1", b"", b"\0\0\0\0"]) == message


def test_a_destination_without_a_prefix_is_an_early_releases() -> None:
    early = frames.Destination(7, "127.0.0.1", 9, "s", [1, 2], 3)
    assert frames.to_prefill(early.frames()[:8]) == early


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_anything_else_is_refused_by_one_error(parts: list[bytes]) -> None:
    for read in (frames.to_prefill, frames.to_decode):
        with contextlib.suppress(frames.BadFrames):
            read(parts)


@pytest.mark.parametrize(
    "parts", [[], [b"None"], [b"x", b"y"], [b"ABORT"], [b"7", b"h", b"9", b"s", b"abc", b"1", b"", b"1"]]
)
def test_what_is_cut_off_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(frames.BadFrames):
        frames.to_prefill(parts)


def test_too_many_pages_are_refused() -> None:
    many = frames.Destination(1, "h", 1, "s", [0] * (frames.PAGES_MAX + 1), 0)
    with pytest.raises(frames.BadFrames, match="65537 pages"):
        frames.to_prefill(many.frames())
