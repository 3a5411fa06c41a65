"""Messages: there and back, and nothing but BadMessage for whatever else comes."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocol import wire

ENVELOPE = wire.envelope(0x1122334455667788)
I32 = st.integers(0, (1 << 31) - 1)
U64 = st.integers(0, (1 << 64) - 1)
ROOM = st.integers(1, (1 << 63) - 1)
ANY_ROOM = st.integers(-(1 << 63), (1 << 64) - 1)
ROLE = st.integers(0, 3)
REGISTER = st.builds(wire.Register, ROLE, I32, I32, I32, st.text(max_size=500))
STRATEGIES: dict[type[Any], st.SearchStrategy[Any]] = {
    wire.Request: st.builds(wire.Request, ANY_ROOM, I32, I32, U64, I32, I32),
    wire.Session: st.builds(wire.Session, I32, I32, st.binary(max_size=4096), I32, I32),
    wire.SessionAck: st.builds(wire.SessionAck, I32, st.text(max_size=500)),
    wire.RoomExchange: st.builds(wire.RoomExchange, ROOM, I32, I32, I32, I32, st.lists(I32, max_size=50), I32, I32),
    wire.Status: st.builds(wire.Status, ROOM, st.integers(0, 4), I32, st.booleans()),
    wire.Drained: st.builds(wire.Drained, ROOM, I32, I32),
    wire.Abort: st.builds(wire.Abort, ROOM, I32, I32),
    wire.AuxData: st.builds(wire.AuxData, ROOM, I32, I32),
    wire.Result: st.builds(wire.Result, ANY_ROOM, U64, st.integers(0, 65535), U64),
    wire.Register: REGISTER,
    wire.Topology: st.builds(wire.Topology, st.lists(REGISTER, max_size=5), I32),
    wire.Configure: st.builds(wire.Configure, st.binary(max_size=65536)),
    wire.Ready: st.builds(wire.Ready, ROLE, I32, st.text(max_size=2000)),
    wire.Beat: st.builds(wire.Beat, ROLE, I32, I32),
    wire.Gone: st.builds(wire.Gone, ROLE, I32, I32),
    wire.CensusRequest: st.builds(wire.CensusRequest, I32),
    wire.Census: st.builds(
        wire.Census,
        ROLE,
        I32,
        I32,
        st.dictionaries(st.integers(-100, 100), st.tuples(I32, I32, I32), max_size=64),
    ),
    wire.Finish: st.builds(wire.Finish, st.booleans()),
    wire.Finished: st.builds(wire.Finished, ROLE, I32),
    wire.Ping: st.builds(wire.Ping, st.text(max_size=500)),
    wire.Pong: st.builds(wire.Pong, ROLE, I32, I32, st.booleans(), st.lists(st.tuples(ROLE, I32), max_size=9)),
    wire.Claim: st.builds(wire.Claim, ROLE, U64, st.text(max_size=500)),
    wire.Claimed: st.builds(wire.Claimed, U64, I32),
    wire.Rendezvous: st.builds(wire.Rendezvous, I32, st.text(max_size=500), st.binary(max_size=4096)),
    wire.Cancel: st.builds(wire.Cancel, ANY_ROOM),
    wire.Arm: st.builds(wire.Arm, st.booleans()),
}
CLIENTS = {wire.Request, wire.Result, wire.Cancel}
"""Bear a room as the client gave it: the engine refuses what is none, and says so."""
MESSAGES = st.one_of(list(STRATEGIES.values()))


def _body(*items: Any) -> bytes:
    return msgspec.msgpack.encode(items)


def test_every_message_type_is_tested_and_has_its_own_tag() -> None:
    kinds = get_args(wire.Message)
    assert set(kinds) == set(STRATEGIES)
    assert sorted(kind.__struct_config__.tag for kind in kinds) == list(range(1, len(kinds) + 1))


@given(MESSAGES, st.binary(max_size=200))
def test_there_and_back(message: Any, raw: bytes) -> None:
    row = [raw] if isinstance(message, wire.AuxData) else []
    decoded, extra = wire.decode([ENVELOPE, wire.encode(message), *row], ENVELOPE)
    assert decoded == message
    assert type(decoded) is type(message)
    assert extra == b"".join(row)


def _only_bad_message(frames: list[bytes]) -> None:
    try:
        message, raw = wire.decode(frames, ENVELOPE)
    except wire.BadMessage:
        return
    assert frames[0] == ENVELOPE
    assert isinstance(message, get_args(wire.Message))
    assert len(frames) == (3 if isinstance(message, wire.AuxData) else 2)
    assert raw == b"".join(frames[2:])


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_arbitrary_frames_raise_only_bad_message(frames: list[bytes]) -> None:
    _only_bad_message(frames)
    _only_bad_message([ENVELOPE, *frames])


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.integers(-2, 25), st.lists(_VALUES, max_size=9))
def test_arrays_with_any_tag_and_any_items_raise_only_bad_message(tag: int, items: list[Any]) -> None:
    _only_bad_message([ENVELOPE, _body(tag, *items)])
    _only_bad_message([ENVELOPE, _body(tag, *items), b"row"])


@given(MESSAGES, st.data())
def test_mutated_messages_raise_only_bad_message(message: Any, data: st.DataObject) -> None:
    body = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    _only_bad_message([ENVELOPE, bytes(body)])
    _only_bad_message([ENVELOPE, bytes(body[:cut])])


@given(MESSAGES)
def test_a_body_cut_short_or_with_a_tail_is_bad(message: Any) -> None:
    body = wire.encode(message)
    row = [b"row"] if isinstance(message, wire.AuxData) else []
    for changed in (body[:-1], body + b"\0", b""):
        with pytest.raises(wire.BadMessage):
            wire.decode([ENVELOPE, changed, *row], ENVELOPE)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_missing_and_extra_frames_are_bad(kind: type[Any]) -> None:
    body = wire.encode(_SAMPLES[kind])
    row = 1 if kind is wire.AuxData else 0
    for extra in range(4):
        frames = [ENVELOPE, body, *[b"x"] * extra]
        if extra == row:
            wire.decode(frames, ENVELOPE)
        else:
            with pytest.raises(wire.BadMessage, match="frames"):
                wire.decode(frames, ENVELOPE)
    for frames in ([], [ENVELOPE], [body], [body, body]):
        with pytest.raises(wire.BadMessage, match="foreign or truncated"):
            wire.decode(frames, ENVELOPE)


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        wire.envelope(1),
        ENVELOPE[:-1],
        ENVELOPE + b"\0",
        b"PDH0" + ENVELOPE[4:],
        bytes(12),
        ENVELOPE[::-1],
    ],
)
def test_another_runs_envelope_is_foreign(envelope: bytes) -> None:
    with pytest.raises(wire.BadMessage, match="foreign"):
        wire.decode([envelope, wire.encode(wire.Finish(leave=True))], ENVELOPE)


def test_envelopes_differ_by_tag() -> None:
    assert len({wire.envelope(tag) for tag in (0, 1, 1 << 32, (1 << 64) - 1)}) == 4
    assert len(ENVELOPE) == 12


def test_a_body_over_its_bound_is_bad_before_it_is_parsed() -> None:
    limit = wire.BODY_BYTES_MAX
    with pytest.raises(wire.BadMessage, match=f"body of {limit + 1} bytes"):
        wire.decode([ENVELOPE, bytes(limit + 1)], ENVELOPE)
    with pytest.raises(wire.BadMessage) as caught:
        wire.decode([ENVELOPE, bytes(limit)], ENVELOPE)
    assert "body of" not in str(caught.value)


def test_a_body_nested_deeply_is_bad() -> None:
    beat = wire.encode(wire.Beat(1, 1, 1))
    body = bytes([beat[0] + 1]) + beat[1:] + b"\x91" * 100_000 + b"\x01"
    with pytest.raises(wire.BadMessage):
        wire.decode([ENVELOPE, body], ENVELOPE)


_TOP, _R = (1 << 31) - 1, (1 << 63) - 1
_ROLE, _REASON = 3, (1 << 16) - 1
_SAMPLES: dict[type[Any], Any] = {
    wire.Cancel: wire.Cancel(_R),
    wire.Arm: wire.Arm(armed=True),
    wire.Request: wire.Request(_R, _TOP, _TOP, (1 << 64) - 1, _TOP, _TOP),
    wire.Session: wire.Session(_TOP, _TOP, b"x" * 4096, _TOP, _TOP),
    wire.SessionAck: wire.SessionAck(_TOP, "x" * 500),
    wire.RoomExchange: wire.RoomExchange(_R, _TOP, _TOP, _TOP, _TOP, [_TOP] * 65536, _TOP, _TOP),
    wire.Status: wire.Status(_R, 4, _TOP, drained=True),
    wire.Drained: wire.Drained(_R, _TOP, _TOP),
    wire.Abort: wire.Abort(_R, _TOP, _TOP),
    wire.AuxData: wire.AuxData(_R, _TOP, _TOP),
    wire.Result: wire.Result(_R, (1 << 64) - 1, _REASON, (1 << 64) - 1),
    wire.Register: wire.Register(_ROLE, _TOP, _TOP, _TOP, "x" * 500),
    wire.Topology: wire.Topology([wire.Register(1, 2, 3, 4, "a")] * 4096, _TOP),
    wire.Configure: wire.Configure(b"x" * 65536),
    wire.Ready: wire.Ready(_ROLE, _TOP, "x" * 2000),
    wire.Beat: wire.Beat(_ROLE, _TOP, _TOP),
    wire.Gone: wire.Gone(_ROLE, _TOP, _TOP),
    wire.CensusRequest: wire.CensusRequest(_TOP),
    wire.Census: wire.Census(_ROLE, _TOP, _TOP, dict.fromkeys(range(64), (1, 2, 3))),
    wire.Finish: wire.Finish(leave=True),
    wire.Finished: wire.Finished(_ROLE, _TOP),
    wire.Ping: wire.Ping("x" * 500),
    wire.Pong: wire.Pong(_ROLE, _TOP, _TOP, registered=True, peers=[(_ROLE, _TOP)] * 4096),
    wire.Claim: wire.Claim(_ROLE, (1 << 64) - 1, "x" * 500),
    wire.Claimed: wire.Claimed((1 << 64) - 1, _TOP),
    wire.Rendezvous: wire.Rendezvous(_TOP, "x" * 500, b"x" * 4096),
}
"""One of each type, every field at the end of its range."""


@pytest.mark.parametrize("kind", _SAMPLES)
def test_the_ends_of_all_ranges_are_allowed(kind: type[Any]) -> None:
    message = _SAMPLES[kind]
    row = [b""] if kind is wire.AuxData else []
    assert wire.decode([ENVELOPE, wire.encode(message), *row], ENVELOPE)[0] == message


def _beyond(value: Any) -> list[Any]:
    """Values of a field that lie just beyond `value`, the end of its range, and of other types."""
    if isinstance(value, bool):
        return [0, 1, None, "true"]
    if isinstance(value, int):
        return [-1, value + 1, None, "1", 1.5, [1]] if value < (1 << 64) - 1 else [-1, None, "1", 1.5]
    if isinstance(value, str | bytes):
        return [value + value[:1], None, 5, [value]]
    if isinstance(value, dict):
        return [{**value, 64: (1, 2, 3)}, {1: (1, 2)}, {"a": (1, 2, 3)}, {1: (1, 2, 3.5)}, None, []]
    return [[*value, value[0]], [-1], ["a"], None, {}, 7]


CASES = [
    (kind, name, changed)
    for kind, message in _SAMPLES.items()
    for name in kind.__struct_fields__
    for changed in _beyond(getattr(message, name))
    if not (kind in CLIENTS and name == "room" and type(changed) is int)
]


@pytest.mark.parametrize(("kind", "name", "changed"), CASES, ids=lambda part: str(getattr(part, "__name__", part))[:20])
def test_every_field_is_bounded(kind: type[Any], name: str, changed: Any) -> None:
    values = [changed if field == name else getattr(_SAMPLES[kind], field) for field in kind.__struct_fields__]
    row = [b"row"] if kind is wire.AuxData else []
    with pytest.raises(wire.BadMessage):
        wire.decode([ENVELOPE, _body(kind.__struct_config__.tag, *values), *row], ENVELOPE)


@pytest.mark.parametrize(
    "kind", [kind for kind in _SAMPLES if "room" in kind.__struct_fields__ and kind not in CLIENTS]
)
@pytest.mark.parametrize("room", [0, -1, 1 << 63])
def test_no_message_names_the_sentinel_or_no_room(kind: type[Any], room: int) -> None:
    rest = [getattr(_SAMPLES[kind], field) for field in kind.__struct_fields__[1:]]
    row = [b"row"] if kind is wire.AuxData else []
    with pytest.raises(wire.BadMessage, match="int"):
        wire.decode([ENVELOPE, _body(kind.__struct_config__.tag, room, *rest), *row], ENVELOPE)


@pytest.mark.parametrize("tag", [0, -1, 22, 255, "Request", None, 1.0])
def test_an_unknown_tag_is_bad(tag: Any) -> None:
    with pytest.raises(wire.BadMessage):
        wire.decode([ENVELOPE, _body(tag, 1, 1, 1, 1, 1, 1)], ENVELOPE)
